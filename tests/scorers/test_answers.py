"""The final answer of a reply, and whether it is right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.answers import final_answer, is_right


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
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
    ],
)
def test_the_final_answer_stands_after_the_last_mark_or_in_the_last_line(reply: str, answer: str) -> None:
    assert final_answer(reply) == answer


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
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
    ],
)
def test_an_answer_is_right_however_it_is_dressed(reply: str, answer: str) -> None:
    assert is_right(reply, answer)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
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
        ("", "7"),
        ("", "fig"),
    ],
)
def test_an_answer_that_is_another_is_wrong(reply: str, answer: str) -> None:
    assert not is_right(reply, answer)


@given(st.floats(min_value=-1e9, max_value=1e9).map(lambda value: round(value, 3)))
def test_every_number_is_its_own_answer(value: float) -> None:
    written = f"{value:,.3f}"
    assert is_right(f"I get this.\nAnswer: **{written}**.", written)


@given(st.text(), st.text())
def test_any_reply_has_a_verdict(reply: str, answer: str) -> None:
    assert is_right(reply, answer) in {True, False}
