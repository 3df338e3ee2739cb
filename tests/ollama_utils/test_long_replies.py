"""Replies longer than what is kept: cut, and flagged as such."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import BadReplyError
from ollama_utils.types import MAX_REPLY_CHARS, Completion
from ollama_utils.wires import open_client
from tests.ollama_utils.hostile import CALL, WIRES, RawServer, http, outcome
from tests.ollama_utils.scripted import SAID
from tests.ollama_utils.threads import PATIENCE_S


def saying(wire: str, text: str, *, why: str = "stop") -> bytes:
    """A whole reply with this text."""
    if wire == "ollama":
        return http("200 OK", json.dumps(SAID | {"response": text, "done_reason": why}).encode())
    choice = {"index": 0, "finish_reason": why, "message": {"content": text}}
    return http("200 OK", json.dumps({"choices": [choice]}).encode())


def kept(wire: str, answer: bytes, most: int) -> Completion:
    """What is kept of a reply, through the dispatcher."""
    with RawServer(answer) as server:
        host = f"openai:{server.host}" if wire == "openai" else server.host
        with Dispatcher([host], max_reply_chars=most, attempts=1, timeout_s=PATIENCE_S) as dispatcher:
            return dispatcher.generate(CALL)


@pytest.mark.parametrize("wire", WIRES)
def test_a_reply_is_cut_at_the_most_characters_and_flagged(wire: str) -> None:
    for text, most, expected in (
        ("abc", 3, ("abc", False)),
        ("abcd", 3, ("abc", True)),
        ("😀" * 5, 4, ("😀" * 4, True)),
        ("<think>a long thought</think>\n\nYes.", 4, ("Yes.", False)),
        ("<think>a long thought</think>\n\nYes, indeed.", 4, ("Yes,", True)),
    ):
        completion = kept(wire, saying(wire, text), most)
        assert completion.error is None
        assert (completion.text, completion.truncated) == expected
    assert kept(wire, saying(wire, "abc", why="length"), 9).truncated


@pytest.mark.parametrize("wire", WIRES)
def test_a_reply_that_is_blank_as_far_as_it_is_kept_is_no_text(wire: str) -> None:
    error = kept(wire, saying(wire, " " * 9 + "Yes."), 5).error
    assert type(error) is BadReplyError
    assert "without a text" in str(error)


@pytest.mark.parametrize("wire", WIRES)
def test_a_million_characters_are_kept_unless_another_number_is_set(wire: str) -> None:
    completion = outcome(wire, saying(wire, "x" * (MAX_REPLY_CHARS + 1)))
    assert (len(completion.text), completion.truncated) == (1_000_000, True)


@pytest.mark.parametrize("host", ["http://127.0.0.1:1", "openai:http://127.0.0.1:1"])
def test_at_least_one_character_is_kept(host: str) -> None:
    with closing(open_client(host, timeout_s=1, max_reply_chars=1)):
        pass
    with pytest.raises(ValueError, match="max_reply_chars must be at least 1, got 0"):
        open_client(host, timeout_s=1, max_reply_chars=0)
