"""OpenAI's API to the simulated models: its fields, its errors, and what llama.cpp tells beside it."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.process import EmbeddedServer
from tests.simulator.conftest import Ask

CHAT: dict[str, Any] = {
    "model": "sim-target",
    "messages": [{"role": "user", "content": "What is rain?"}],
    "temperature": 0,
}
COMPLETION = {
    "choices": [{"finish_reason": "", "index": 0, "message": {"role": "", "content": ""}}],
    "created": 0,
    "model": "",
    "system_fingerprint": "",
    "object": "",
    "usage": {
        "completion_tokens": 0,
        "prompt_tokens": 0,
        "total_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 0},
    },
    "id": "",
    "timings": {
        "cache_n": 0,
        "prompt_n": 0,
        "prompt_ms": 0.0,
        "prompt_per_token_ms": 0.0,
        "prompt_per_second": 0.0,
        "predicted_n": 0,
        "predicted_ms": 0.0,
        "predicted_per_token_ms": 0.0,
        "predicted_per_second": 0.0,
    },
}
"""The fields and types of a reply of llama.cpp's server (build 11549)."""


def shape(value: object) -> object:
    """The fields of JSON and the types of their values."""
    if isinstance(value, dict):
        return {name: shape(field) for name, field in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value)


def test_a_completion_has_the_fields_of_llama_cpp(ask: Ask) -> None:
    status, reply = ask("POST", "/v1/chat/completions", CHAT)
    assert status == 200
    assert shape(reply) == shape(COMPLETION)
    assert reply["object"] == "chat.completion"
    usage, timings = reply["usage"], reply["timings"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert (timings["prompt_n"], timings["predicted_n"]) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )


def test_a_reply_says_why_it_ends(ask: Ask) -> None:
    ends = {}
    for more in ({}, {"max_tokens": 3}, {"max_completion_tokens": 3}, {"stop": "e"}, {"stop": ["e"]}):
        _, reply = ask("POST", "/v1/chat/completions", CHAT | more)
        ends[str(more)] = (reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"] <= 3)
    assert [end[0] for end in ends.values()] == ["stop", "length", "length", "stop", "stop"]
    assert ends["{'max_tokens': 3}"] == ends["{'max_completion_tokens': 3}"] == ("length", True)


def test_embeddings_and_models_come_as_lists(ask: Ask) -> None:
    status, reply = ask("POST", "/v1/embeddings", {"model": "sim-embed", "input": ["a", "b"]})
    assert (status, reply["object"], [row["index"] for row in reply["data"]]) == (200, "list", [0, 1])
    assert reply["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    status, reply = ask("GET", "/v1/models")
    assert status == 200
    assert "sim-target:latest" in [item["id"] for item in reply["data"]]


def test_slots_are_told_as_llama_cpp_tells_them(ask: Ask, server: EmbeddedServer) -> None:
    server.set_slots(3)
    assert ask("GET", "/props")[1]["total_slots"] == 3
    status, slots = ask("GET", "/slots?model=sim-target")
    assert status == 200
    assert [(slot["id"], slot["is_processing"]) for slot in slots] == [(0, False), (1, False), (2, False)]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "words"),
    [
        ("chat/completions", CHAT | {"model": "nobody"}, 404, "not_found_error", "model 'nobody' not found"),
        ("chat/completions", {"model": "sim-target"}, 400, "invalid_request_error", "'messages' is required"),
        ("chat/completions", CHAT | {"temperature": "hot"}, 400, "invalid_request_error", "temperature"),
        (
            "chat/completions",
            CHAT | {"response_format": {"type": "xml"}},
            400,
            "invalid_request_error",
            "xml",
        ),
        ("chat/completions", b"no", 400, "invalid_request_error", "not JSON"),
        (
            "embeddings",
            {"model": "sim-embed", "input": "a", "stream": True},
            *(501, "not_supported_error", "stream"),
        ),
        ("embeddings", {"model": "sim-embed"}, 400, "invalid_request_error", "must be provided"),
        ("embeddings", {"model": "nobody", "input": "a"}, 404, "not_found_error", "not found"),
    ],
)
def test_an_error_has_the_form_of_openai(
    ask: Ask, path: str, body: object, status: int, kind: str, words: str
) -> None:
    got, reply = ask("POST", f"/v1/{path}", body)
    assert (got, reply["error"]["code"], reply["error"]["type"]) == (status, status, kind)
    assert words in reply["error"]["message"]


def test_a_fault_has_the_form_of_openai_too(ask: Ask, server: EmbeddedServer) -> None:
    server.set_faults([{"kind": "busy_503", "rate": 1}])
    status, reply = ask("POST", "/v1/chat/completions", CHAT)
    assert (status, reply["error"]["type"]) == (503, "unavailable_error")
