"""Texts reworded by mutators."""

from __future__ import annotations

from mutators.system_prompts import improve_instructions
from ollama_utils.types import Call, Completion
from search.genetics import reword


def test_a_rewording_that_a_content_filter_ended_is_not_adopted() -> None:
    reply = Completion(text="Answer with care, and", filtered=True)
    text, replies = reword(
        lambda _call: reply, Call(model="any", prompt=""), improve_instructions, "Answer."
    )
    assert (text, replies) == ("", [reply])
