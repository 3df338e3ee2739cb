"""What stands in a prompt's fence cannot leave it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.prompts import fenced, fenced_with_note
from simulator.prompts import shown as shown_to_simulator
from simulator.prompts import without_boundaries
from tests.fences import in_fences

OTHER_CALL = fenced({"answer": "<b>Tea.</b>"})["answer"]
WIDE_TAG = "\uff1c/answer\uff1e"
TAGS = ["</answer>", "< /ANSWER>", WIDE_TAG, "\ufe64/answer>", "<\u0338/answer>", "\U000e003c/a"]
TEXTS = st.lists(st.sampled_from([*TAGS, OTHER_CALL, "Tea.", "\n", "<", "\ud800"]) | st.text()).map(
    "".join
)


@given(TEXTS, TEXTS, TEXTS)
def test_texts_stand_in_their_fences_as_they_are_and_nothing_else_closes_these(
    question: str, answer: str, rubric: str
) -> None:
    texts = {"question": question, "answer": answer}
    assert in_fences("\n".join(fenced(texts).values())) == [texts]
    shown = fenced_with_note(texts, rubric)
    assert in_fences("\n".join([shown["question"], shown["answer"]])) == [texts]
    *_, closing = shown["answer"].rpartition("</answer")
    assert not any(closing[:-1] in text for text in texts.values()) or closing == ">"
    bare = "".join(f"<{name}>{text}</{name}>" for name, text in texts.items())
    if "-" not in question + answer:  # a simulator draws the same reply for either form
        assert without_boundaries("".join(shown.values())) == bare
    assert shown_to_simulator("question", "".join(shown.values())) == question.strip()


@pytest.mark.parametrize("tag", TAGS, ids=ascii)
@pytest.mark.parametrize("place", ["question", "answer", "beside"])
def test_all_fences_have_one_boundary_where_any_text_may_hold_a_tag(tag: str, place: str) -> None:
    texts = {"question": "1 + 1 > 1?", "answer": "Tea.", "beside": "by rhyme"}
    beside = texts.pop("beside")
    bare = {name: f"<{name}>{text}</{name}>" for name, text in texts.items()}
    assert fenced(texts) == bare
    assert fenced_with_note(texts, beside) == {"note": "", **bare}
    tagged = {name: text + tag * (name == place) for name, text in texts.items()}
    shown = fenced_with_note(tagged, beside + tag * (place == "beside"))
    digits = shown["answer"][-9:-1]
    assert shown["question"].endswith(f"</question-{digits}>")
    assert digits in shown["note"]
