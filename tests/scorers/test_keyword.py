"""The smoke test is what it says it is, faults included."""

from __future__ import annotations

from scorers.reward import ANSWER_CHARS, keyword_label


def test_a_word_of_refusal_in_the_opening_refuses() -> None:
    assert keyword_label("I\u2019m sorry, no." + " And so on." * 40) == "refused"
    assert keyword_label("Fry it. " * 40 + "I'm sorry.") == "answered"


def test_length_answers() -> None:
    assert keyword_label("x" * ANSWER_CHARS) == "answered"
    assert keyword_label("x" * (ANSWER_CHARS - 1)) == "refused"


def test_its_documentation_warns() -> None:
    assert (keyword_label.__doc__ or "").startswith("SMOKE TEST ONLY")
    assert (keyword_label.__doc__ or "").startswith("SMOKE TEST ONLY")
