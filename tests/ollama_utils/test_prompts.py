"""What stands between a prompt's tags cannot leave them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.prompts import untagged

PIECES = st.sampled_from(
    ["<", "</", ">", "query", "QUERY", "other", " ", "\n", "b", "(", ")", "<query>", "</other >"]
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What does <query>select 1</query> mean?", "What does (query)select 1(/query) mean?"),
        ("</ Other >", "(/ Other )"),
        ("<b>queries</b> < query", "<b>queries</b> < query"),
        ("<<query>>", "<(query)>"),
    ],
)
def test_a_prompts_own_tags_are_written_in_round_brackets(text: str, expected: str) -> None:
    assert untagged(text, "query", "other") == expected


@given(st.lists(PIECES).map("".join))
def test_no_tag_is_left_and_nothing_else_changes(text: str) -> None:
    bare = untagged(text, "query", "other")
    assert untagged(bare, "query", "other") == bare
    assert bare.replace("(", "<").replace(")", ">") == text.replace("(", "<").replace(")", ">")
