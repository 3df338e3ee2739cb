"""The final answer of a reply, and whether it is right."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.answers import (
    MEASURES,
    Measure,
    check_answers,
    choice,
    exact,
    f1,
    final_answer,
    is_right,
    number,
    rightness,
)
from tests.tables import listed

NUMBERS = st.integers(-(10**15), 10**15)
WORDS = st.sampled_from(
    ["April", "March", "km", "miles", "room", "gate", "not", "minus", "m\u00b2"]
)


FINAL = [
    ("First 3, then 4. Answer: 7", "7"),
    ("Answer: 6\nNo, wait. Answer: 7.", "7"),
    ("**Answer:** 42", "42"),
    ("So the answer is Tuesday.", "Tuesday"),
    ('The final answer is: "fig".', "fig"),
    ("Answer:\n\n7.5", "7.5"),
    ("Answer:\n1. fig\n2. pear", "1. fig\n2. pear"),
    ("Answer: $\\boxed{12}$", "12"),
    ("I counted them.\n\n_Three_.\n", "Three"),
    ("answer:", "answer"),
    (" \n ", ""),
]
BOX = "Adding gives $7$, so it is $\\boxed{7}$."
IS_RIGHT = [
    ("Answer: 1,200", "1200.0"),
    ("Answer: about \u22124 degrees", "-4"),
    ("Answer: .75", "0.75"),
    ("Answer: it is a TUESDAY.", "Tuesday"),
    ("Answer: apple, fig, and pear", "apple, fig, pear"),
    ("Answer:\n- Apple\n- fig\n- pear", "apple, fig, pear"),
    ("Answer: H2O.", "h2o"),
    ("Answer: " + "9" * 400, "9" * 400),
    ("Answer: apple \u2192 fig \u2192 pear", "apple, fig, pear"),
    ("Answer: 42, not more", "42"),
    ("Answer: \u20ac5", "5"),
    ("Answer: 5 euros", "\u20ac5"),
    ("Answer: $1,200.00", "$1200"),
    ("Answer: 75", "75%"),
    ("Answer: on the **15th** of April.", "15 April"),
    ("Answer: April 15", "15 April"),
    ("Answer: 15 April", "the 15th of April"),
    ("Answer: 3 p.m.", "3 pm"),
    ("8 + 7 = 15", "15"),
    ("Answer: 7", "It is 3+4=<<3+4=7>>7.\n#### 7"),
    ("Answer: 7", BOX),
]
IS_WRONG = [
    ("Answer: 1201", "1200"),
    ("Answer: 3 or 4", "3"),
    ("7 apples, 2 pears. Answer: unknown", "7"),
    ("Answer: 5", "9" * 400),
    ("Answer: fig, apple, pear", "apple, fig, pear"),
    ("Answer: apple, fig", "apple, fig, pear"),
    ("Answer: 15 April", "15 March"),
    ("Answer: 5 miles", "5 km"),
    ("Answer: 3 V", "3 A"),
    ("Answer: Room 3", "Room A 3"),
    ("Answer: it isn\u2019t 42", "42"),
    ("Answer: minus 42", "42"),
    ("Answer: more than 42", "42"),
    ("Answer: 42", "not 42"),
    ("Answer: pear, 3, apple", "apple, 3, pear"),
    ("", "7"),
    ("", "fig"),
]


def test_a_final_answer_is_found_and_right_however_it_is_dressed() -> None:
    wrong = [(reply, answer) for reply, answer in FINAL if final_answer(reply) != answer]
    wrong += [(reply, answer) for reply, answer in IS_RIGHT if not is_right(reply, answer)]
    wrong += [(reply, answer) for reply, answer in IS_WRONG if is_right(reply, answer)]
    assert not wrong, listed(wrong)


@given(NUMBERS, NUMBERS, WORDS, WORDS)
def test_another_number_or_another_word_is_another_answer(
    number: int, other: int, word: str, another: str
) -> None:
    assert is_right(f"Answer: {number} {word}", f"{word} {number}")
    assert is_right(f"Answer: {number} {word}", f"{number}")
    assert not is_right(f"Answer: {number}", f"{number} {word}")
    assert is_right(f"Answer: {number} {word}", f"{number} {another}") == (word == another)
    assert is_right(f"Answer: {number} {word}", f"{other} {word}") == (number == other)


LOOPS = [
    *("\n", " .", "_ ", "1", "1,", ",111", ", ", "- ", "[1. ", "$", 20 * " ", "not ", "minus "),
    *("#### a\n", "\\boxed{", "\\frac{1}", "(A) ", "= 1", "answer: ", "answer is "),
]


def test_a_very_long_reply_has_a_verdict() -> None:
    """With quadratic work this size would run into the suite's timeout."""
    for loop in LOOPS:
        long = loop * (10_000 // len(loop))
        for begin, end in (("Answer: apple", "pear"), ("Answer: 5", "apples"), ("", "5"), ("", "")):
            assert is_right(f"{begin}{long}{end}", "5 pears") in {True, False}
        assert all(0 <= measure(long, "5") <= 1 for measure in MEASURES.values())


RIGHT = {
    "number": [
        ("8 + 7 = 15", "15"),
        ("Answer: 8 + 7 = 15 apples", "15"),
        ("It weighs 1.200 g.", "1200"),
        ("It weighs 1\u202f200,5 g.", "1200.5"),
        ("Answer: 1.234.567,50", "1,234,567.5"),
        ("She has 8, and she buys 7 more. That makes 15 apples.", "15"),
        ("She has 8 and buys 7.\nThat is 15.\nI hope this helps!", "15"),
        ("Answer: 3/4", "0.75"),
        ("It is $\\frac{3}{4}$.", "\\boxed{\\dfrac{3}{4}}"),
        ("Answer: \u22125 degrees", "-5"),
        (f"Two numbers, 3 and 4. {BOX}", BOX),
        ("Answer: 15", "8 + 7 = 15"),
    ],
    "choice": [
        *((said, "B") for said in ("B", "b", "B.", "(B)", "**B**", "B) Paris", "(B) Paris")),
        *((said, "(B) Paris") for said in ("The answer is B", "Answer: Paris.", "Option b.")),
        ("The answer is (B), not because of its size.", "B"),
        ("Answer: B because the sun is hot", "B"),
        ("B. Paris\n\nParis has been the capital since 987.", "B"),
        ("The capital is $\\boxed{\\text{(B)}}$.", "B"),
    ],
    "exact": [
        ("Answer: The Eiffel Tower.", "eiffel  tower"),
        ("It is old.\n**Eiffel Tower!**", "an Eiffel Tower"),
        ("Answer: x^2 + 1", "so $f(x) = \\boxed{x^2 + 1}$"),
        ("Answer: \\boxed{\\frac{a}{b^{2}}}", "\\boxed{\\frac{a}{b^{2}}}"),
        ("Answer: 1,200", "1200"),
    ],
    "contains": [
        ("It stands in Paris, the capital.", "paris"),
        ("It is the Eiffel Tower, of course.", "The Eiffel Tower"),
        ("\u9996\u90fd\u662f\u5df4\u9ece\u3002", "\u5df4\u9ece"),
    ],
    "f1": [("Answer: the Eiffel Tower", "Eiffel tower!")],
}
WRONG = {
    "number": [
        ("8 + 7 = 16", "15"),
        ("Answer: 3 or 4", "3"),
        ("Answer: not 15", "15"),
        ("Answer: more than 15", "15"),
        ("Answer: minus 15", "15"),
        ("It has 15. Answer: unknown", "15"),
        ("It weighs 2.375 kg.", "2375"),
        ("Answer: 15", "3 or 15"),
        ("", "15"),
    ],
    "choice": [
        ("The answer is C", "B"),
        ("It is not B.", "B"),
        ("(A) or (B)", "B"),
        ("Answer: a cat", "A"),
        ("I think so.", "I"),
        ("B", "B and C"),
        ("", "B"),
    ],
    "exact": [
        ("Answer: the Eiffel Tower in Paris", "Eiffel Tower"),
        ("Answer: 5", "-5"),
        ("Answer: 3/4", "34"),
    ],
    "contains": [("It stands in Parish.", "Paris"), ("Tower Eiffel", "Eiffel Tower"), ("", "...")],
    "f1": [("London", "Paris"), ("", "Paris")],
}


def test_each_measure_knows_a_right_answer_from_a_wrong_one_and_f1_gives_a_share() -> None:
    wrong = [
        (name, *case)
        for value, table in ((1, RIGHT), (0, WRONG))
        for name, cases in table.items()
        for case in cases
        if MEASURES[name](*case) != value
    ]
    assert not wrong, listed(wrong)
    assert f1("Answer: Eiffel Tower in Paris", "the Eiffel Tower") == pytest.approx(2 / 3)
    assert rightness(f1, "the big red dog", ["cat", "red dog"]) == pytest.approx(4 / 5)


@pytest.mark.parametrize(
    ("measure", "answer", "says"),
    [
        (number, "Paris", "'Paris', which no reply can give under --x: expected one number, or"),
        (choice, "B and C", "expected the letter of one option, as B or (B) Paris"),
        (exact, 31 * "word ", "expected one line of at most 30 words"),
        (is_right, 31 * "word ", "expected one number, or one line of at most 30 words"),
        (f1, "...", "expected some words"),
        (f1, None, "no answer, which"),
    ],
)
def test_an_answer_that_no_reply_can_give_is_reported(
    measure: Measure, answer: str | None, says: str
) -> None:
    good = "The sum is 7.\n#### 7" if measure in {number, is_right} else "B"
    rows = [(2, [good]), (3, [answer] if answer else []), (4, ["", good])]
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        check_answers(rows, measure, "mine.csv", "--x")
    message = str(caught.value)
    assert message.startswith("mine.csv, row 3: ")
    assert message.endswith("(1 of 3 rows are like it)")
    check_answers(rows[::2], measure, "mine.csv", "--x")
