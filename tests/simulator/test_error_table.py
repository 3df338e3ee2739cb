"""Ollama's table of errors, each row at every endpoint where it applies, whole and streamed."""

from __future__ import annotations

import json

import pytest

from simulator.process import EmbeddedServer
from tests.simulator.conftest import Ask

ENDPOINTS = ["generate", "chat", "embed", "embeddings", "show", "pull"]
MISSING = "model 'x' not found"
UNPULLED = 'model "x" not found, try pulling it first'
CRASH = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal "
    "error, check ollama server logs for details"
)
BUSY = "server busy, please try again.  maximum pending requests exceeded"
HELLO = {"prompt": "q", "input": "q", "messages": [{"role": "user", "content": "q"}]}
FULL_NAME = "registry.ollama.ai/library/sim-target:latest"
HOT = 'option "temperature" must be of type float32'


def every(row: dict[str, object], **errors: tuple[int, str]) -> list[tuple[str, object, int, str]]:
    """One row of Ollama's table of errors at the endpoints where it applies."""
    return [(f"/api/{path}", HELLO | row, *error) for path, error in errors.items()]


TABLE = [
    *((f"/api/{path}", b"", 400, "missing request body") for path in ENDPOINTS),
    *every(
        {"model": "x"},
        generate=(404, MISSING),
        chat=(404, MISSING),
        show=(404, MISSING),
        embed=(404, UNPULLED),
        embeddings=(404, UNPULLED),
    ),
    *every(
        {"model": ""},
        generate=(404, "model '' not found"),
        embed=(404, "model '' not found"),
        chat=(400, "model is required"),
        show=(400, "model is required"),
        embeddings=(400, "model is required"),
    ),
    *every(
        {"model": "sim-embed"},
        generate=(400, '"sim-embed" does not support generate'),
        chat=(400, '"sim-embed" does not support chat'),
    ),
    *every(  # before the model's abilities are looked at, and also where there is only a model to load
        {"model": "sim-embed", "raw": True, "system": "s", "prompt": ""},
        generate=(400, "raw mode does not support template, system, or context"),
    ),
    *every(
        {"model": "sim-target", "think": True},
        generate=(400, '"sim-target" does not support thinking'),
        chat=(400, '"sim-target" does not support thinking'),
    ),
    *every(
        {"model": "sim-target", "tools": [{"function": {"name": "f"}}], "suffix": "s"},
        generate=(400, f"{FULL_NAME} does not support insert"),
        chat=(400, f"{FULL_NAME} does not support tools"),
    ),
    *every({"model": "sim-embed", "input": 5}, embed=(400, "invalid input type")),
    *every(
        {"model": "sim-target", "options": {"temperature": "hot"}},
        **dict.fromkeys(["generate", "chat", "embed", "embeddings"], (500, HOT)),
    ),
    *every(
        {"model": "sim-target", "top_logprobs": 21},
        **dict.fromkeys(["generate", "chat"], (400, "top_logprobs must be between 0 and 20")),
    ),
]


@pytest.mark.parametrize("stream", [False, True, None])
@pytest.mark.parametrize(("path", "payload", "status", "error"), TABLE)
def test_a_row_of_ollama_s_table_of_errors(
    ask: Ask, path: str, payload: object, status: int, error: str, *, stream: bool | None
) -> None:
    body = payload | {"stream": stream} if isinstance(payload, dict) else payload
    assert ask("POST", path, body) == (status, {"error": error})


@pytest.mark.parametrize(("fault", "status", "error"), [("error_500", 500, CRASH), ("busy_503", 503, BUSY)])
@pytest.mark.parametrize("path", ["generate", "chat", "embed", "embeddings"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_crash_and_a_full_queue_have_ollama_s_words(
    server: EmbeddedServer,
    ask: Ask,
    fault: str,
    status: int,
    error: str,
    path: str,
    *,
    stream: bool,
) -> None:
    server.set_faults([{"kind": fault, "rate": 1.0}])
    body = HELLO | {"model": "sim-target", "stream": stream}
    assert ask("POST", f"/api/{path}", body) == (status, {"error": error})


def test_a_model_that_cannot_be_pulled_fails_after_the_first_line(ask: Ask) -> None:
    status, lines = ask("POST", "/api/pull", {"model": "nope"})
    first, last = map(json.loads, lines.splitlines())
    assert (status, first) == (200, {"status": "pulling manifest"})
    assert last == {"error": "pull model manifest: file does not exist"}
    assert ask("POST", "/api/pull", {"model": "nope", "stream": False}) == (500, last)
