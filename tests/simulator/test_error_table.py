"""Ollama's table of errors, each row at every endpoint where it applies, whole and streamed."""

from __future__ import annotations

from simulator.process import EmbeddedServer
from tests.simulator.conftest import Ask

ENDPOINTS = ["generate", "chat", "embed", "show"]
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
    ),
    *every(
        {"model": ""},
        generate=(404, "model '' not found"),
        embed=(404, "model '' not found"),
        chat=(400, "model is required"),
        show=(400, "model is required"),
    ),
    *every(
        {"model": "sim-embed"},
        generate=(400, '"sim-embed" does not support generate'),
        chat=(400, '"sim-embed" does not support chat'),
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
        **dict.fromkeys(["generate", "chat", "embed"], (500, HOT)),
    ),
]


def test_every_row_of_ollama_s_table_of_errors(ask: Ask) -> None:
    wrong = []
    for path, payload, status, error in TABLE:
        for stream in (False, True, None):
            body = payload | {"stream": stream} if isinstance(payload, dict) else payload
            reply = ask("POST", path, body)
            if reply != (status, {"error": error}):
                wrong.append((path, body, reply))
    assert not wrong


def test_a_crash_and_a_full_queue_have_ollama_s_words(server: EmbeddedServer, ask: Ask) -> None:
    for kind, status, error in (("error_500", 500, CRASH), ("busy_503", 503, BUSY)):
        server.set_faults([{"kind": kind, "rate": 1.0}])
        for path in ("generate", "chat", "embed"):
            for stream in (False, True):
                body = HELLO | {"model": "sim-target", "stream": stream}
                assert ask("POST", f"/api/{path}", body) == (status, {"error": error})
