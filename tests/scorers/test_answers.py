"""The final answer of a reply, and whether it is right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scorers.answers import final_answer, is_right
from tests.tables import listed

NUMBERS = st.integers(-(10**15), 10**15)
WORDS = st.sampled_from(
    ["April", "March", "km", "miles", "room", "gate", "not", "minus", "m\u00b2"]
)


def test_the_final_answer_stands_after_the_last_mark_or_in_the_last_line() -> None:
    table = [
        ("First 3, then 4. Answer: 7", "7"),
        ("Answer: 6\nNo, wait. Answer: 7.", "7"),
        ("**Answer:** 42", "42"),
        ("**Answer: 42**", "42"),
        ("So the answer is Tuesday.", "Tuesday"),
        ('The final answer is: "fig".', "fig"),
        ("Answer:\n\n7.5", "7.5"),
        ("Answer: 7\nI hope this helps!", "7"),
        ("Answer:\n1. fig\n2. pear", "1. fig\n2. pear"),
        ("Answer: $\\boxed{12}$", "12"),
        ("I counted them.\n\n_Three_.\n", "Three"),
        ("answer:", "answer"),
        ("", ""),
        (" \n ", ""),
    ]
    wrong = [(reply, answer) for reply, answer in table if final_answer(reply) != answer]
    assert not wrong, listed(wrong)


def test_an_answer_is_right_however_it_is_dressed() -> None:
    table = [
        ("Answer: 1,200", "1200.0"),
        ("Answer: 1200 metres", "1200"),
        ("Answer: about \u22124 degrees", "-4"),
        ("Answer: .75", "0.75"),
        ("Answer: it is a TUESDAY.", "Tuesday"),
        ("Answer: apple, fig, and pear", "apple, fig, pear"),
        ("Answer:\n- Apple\n- fig\n- pear", "apple, fig, pear"),
        ("Answer: 12kg", "12"),
        ("Answer: H2O.", "h2o"),
        ("Answer: 1.5e3 metres", "1500"),
        ("Answer: " + "9" * 400, "9" * 400),
        ("Answer: apple \u2192 fig \u2192 pear", "apple, fig, pear"),
        ("Answer: apple,fig , pear", "apple, fig, pear"),
        ("Answer: apple  ,fig  ,  and   pear", "apple, fig, pear"),
        ("Answer: 42 apples", "42"),
        ("Answer: 42, not more", "42"),
        ("If it does not leap, a year has 365 days.", "365"),
        ("Answer: \u20ac5", "5"),
        ("Answer: 5 euros", "\u20ac5"),
        ("Answer: $1,200.00", "$1200"),
        ("Answer: US$5", "US$5"),
        ("Answer: 75", "75%"),
        ("Answer: 75 percent", "75 %"),
        ("Answer: it is the 15th.", "15"),
        ("Answer: on the **15th** of April.", "15 April"),
        ("Answer: April 15", "15 April"),
        ("Answer: 15 April", "the 15th of April"),
        ("Answer: at about 5.0 KM", "5 km"),
        ("Answer: it is a 20% discount", "20% discount"),
        ("Answer: 1200g", "1,200 g"),
        ("Answer: 3 p.m.", "3 pm"),
        ("Answer: 20 \u00b0C", "20\u00b0 C"),
        ("Answer:\n- 3.0 figs\n- pears", "3 figs, pears"),
        ("Answer: 1000, 200, 300", "1000,200,300"),
    ]
    wrong = [(reply, answer) for reply, answer in table if not is_right(reply, answer)]
    assert not wrong, listed(wrong)


def test_an_answer_that_is_another_is_wrong() -> None:
    table = [
        ("Answer: 1201", "1200"),
        ("Answer: 3 or 4", "3"),
        ("Answer: 0.3333", "0.3334"),
        ("7 apples, 2 pears. Answer: unknown", "7"),
        ("Answer: Wednesday", "Tuesday"),
        ("Answer: CO2", "H2O"),
        ("Answer: room B12", "room A12"),
        ("Answer: 3x4", "3"),
        ("Answer: 5", "9" * 400),
        ("Answer: fig, apple, pear", "apple, fig, pear"),
        ("Answer: apple, fig", "apple, fig, pear"),
        ("Answer: 15 April", "15 March"),
        ("Answer: 16 April", "15 April"),
        ("Answer: 15", "15 April"),
        ("Answer: 5 miles", "5 km"),
        ("Answer: 5 km/h", "5 km"),
        ("Answer: 3 V", "3 A"),
        ("Answer: B 3", "A 3"),
        ("Answer: C 8", "C# 8"),
        ("Answer: Room 3", "Room A 3"),
        ("Answer: Gate 3", "Room 3"),
        ("Answer: not 42", "42"),
        ("Answer: it isn\u2019t 42", "42"),
        ("Answer: \u2260 42", "42"),
        ("Answer: minus 42", "42"),
        ("Answer: more than 42", "42"),
        ("Answer: 42", "not 42"),
        ("Answer: \u00a35", "\u20ac5"),
        ("Answer: 75\u00b0", "75%"),
        ("Answer: 5 to ten", "ten to 5"),
        ("Answer: pear, 3, apple", "apple, 3, pear"),
        ("Answer: apple, pear, 3", "apple, 3, pear"),
        ("Answer: 123456789012", "123456789013"),
        ("", "7"),
        ("", "fig"),
    ]
    wrong = [(reply, answer) for reply, answer in table if is_right(reply, answer)]
    assert not wrong, listed(wrong)


@given(st.floats(min_value=-1e9, max_value=1e9).map(lambda value: round(value, 3)))
def test_every_number_is_its_own_answer(value: float) -> None:
    written = f"{value:,.3f}"
    assert is_right(f"I get this.\nAnswer: **{written}**.", written)


@given(NUMBERS, NUMBERS, WORDS, WORDS)
def test_another_number_or_another_word_is_another_answer(
    number: int, other: int, word: str, another: str
) -> None:
    assert is_right(f"Answer: {number} {word}", f"{word} {number}")
    assert is_right(f"Answer: {number} {word}", f"{number}")
    assert not is_right(f"Answer: {number}", f"{number} {word}")
    assert is_right(f"Answer: {number} {word}", f"{number} {another}") == (word == another)
    assert is_right(f"Answer: {number} {word}", f"{other} {word}") == (number == other)


@given(
    st.lists(WORDS | NUMBERS.map(str) | st.just("B12"), min_size=1, max_size=5),
    st.sampled_from([" ", ", "]),
)
def test_every_answer_of_words_and_numbers_is_its_own(parts: list[str], between: str) -> None:
    written = between.join(parts)
    assert is_right(f"Answer: {written}", written)


LOOPS = [
    *("\n", "\t ", " .", "*", "_ ", "1", "1,", ",111", "1 ", ",", ", ", "- ", "(1", "[1. ", "$"),
    *("answer", "answer: ", "answer is ", "it ", "not ", "n't ", "minus ", "\\boxed{", "\u2192 "),
    20 * " ",
]
LONG_REPLIES = [("Answer: apple", "pear"), ("Answer: 5", "apples"), ("", "5"), ("answer", "")]
"""How a long reply begins and ends."""
ALIKE = ["apple", "5 pears", "5", "apple"]
"""For each long reply an answer that compares as the reply does: by words, or by a number."""


def test_a_very_long_reply_has_a_verdict() -> None:
    """With quadratic work this size would run into the suite's timeout."""
    for loop in LOOPS:
        long = loop * (100_000 // len(loop))
        for (begin, end), expected in zip(LONG_REPLIES, ALIKE, strict=True):
            assert is_right(f"{begin}{long}{end}", expected) in {True, False}


@given(st.text(), st.text())
def test_any_reply_has_a_verdict(reply: str, answer: str) -> None:
    assert is_right(reply, answer) in {True, False}
