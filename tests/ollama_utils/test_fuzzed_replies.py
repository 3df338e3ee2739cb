"""Replies with bytes changed at random: one of our errors in one line, or a reply that can be kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from ollama_utils.errors import OllamaError
from ollama_utils.reply_log import as_json, from_json
from ollama_utils.types import Completion
from tests.ollama_utils.hostile import CALL, WIRES, RawServer, client_of

WHOLE = {
    "ollama": b'{"model": "m", "response": "Yes.", "message": {"role": "a", "content": "Yes."}, '
    b'"done": true, "done_reason": "stop", "total_duration": 9, "eval_count": 3, "embeddings": [[1.0]], '
    b'"models": []}',
    "openai": b'{"choices": [{"index": 0, "message": {"content": "Yes."}, "finish_reason": "stop"}], '
    b'"usage": {"prompt_tokens": 3, "completion_tokens": 4}, "timings": {"prompt_ms": 1.5}, '
    b'"data": [{"index": 0, "embedding": [1.0], "id": "m", "meta": {"size": 5}}], "total_slots": 4}',
}
PARTS = {
    "ollama": b'{"response": "Ye", "done": false}\n{"response": "s.", "done": true, "eval_count": 3}\n',
    "openai": b'data: {"choices": [{"index": 0, "delta": {"content": "Yes."}}]}\n\n'
    b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}\n\n'
    b"data: [DONE]\n\n",
}
STATUSES = (*["200 OK"] * 6, "204 None", "307 Moved", "400 Bad", "404", "429 Slow", "500 No", "999 Odd")
HEADERS = [
    *(b"Content-Type: application/x-ndjson", b"Content-Type: text/event-stream; charset=utf-16"),
    *(b"Transfer-Encoding: chunked", b"Content-Length: 5", b"Content-Length: -1", b"Connection: close"),
    *(b"Retry-After: soon", b"Location: \xff", b"Content-Encoding:", b"X\xff: y", b" folded", b"no colon"),
]
PIECES = [
    *(b"[", b"{", b"}", b"]", b'"', b",", b":", b"null", b"true", b"[]", b"{}", b"5", b'"x"', b"\n", b"\r\n"),
    *(
        b"1e999",
        b"-1",
        b"9" * 50,
        b"9" * 5000,
        b"NaN",
        b"\xff",
        b"\x00",
        b"\\ud800",
        b'{"error": 5}',
        b"data: ",
    ),
]
REQUESTS: list[Callable[[Any], object]] = [
    lambda client: client.generate(CALL),
    lambda client: client.generate(CALL, stream=True),
    lambda client: client.generate(replace(CALL, examples=(("a", "b"),)), stream=True),
    lambda client: client.embed("m", ["a"]),
    lambda client: client.models(),
    lambda client: client.slots(),
]


def damaged(chance: random.Random, reply: bytes) -> bytes:
    """The bytes with some of them replaced."""
    found = bytearray(reply)
    for _ in range(chance.randint(0, 4)):
        start = chance.randrange(len(found) + 1)
        found[start : start + chance.choice([0, 0, 1, 2, 5, 20])] = chance.choice(PIECES)
    return bytes(found)


def reply(chance: random.Random, wire: str) -> bytes:
    """A reply of an odd server."""
    body = damaged(chance, chance.choice([WHOLE, PARTS])[wire])
    headers = chance.sample(HEADERS, chance.choice([0, 0, 1, 2]))
    if chance.random() < 0.6:
        headers.append(b"Content-Length: %d" % len(body))
    whole = b"\r\n".join([f"HTTP/1.1 {chance.choice(STATUSES)}".encode(), *headers, b"", body])
    return damaged(chance, whole) if chance.random() < 0.1 else whole


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("wire", WIRES)
def test_whatever_comes_is_a_reply_that_can_be_kept_or_one_of_our_errors(wire: str, seed: int) -> None:
    chance = random.Random(seed)
    answers: list[bytes] = []
    counts = {"replies": 0, "errors": 0}
    with (
        RawServer(lambda connection: connection.sendall(answers[-1])) as server,
        closing(client_of(wire, server.host)) as client,
    ):
        for _ in range(20_000 if seed else 1000):
            answers[:] = [reply(chance, wire)]
            try:
                came = chance.choice(REQUESTS)(client)
            except OllamaError as error:
                counts["errors"] += 1
                assert str(error).isprintable(), answers  # noqa: PT017 - what else is raised fails the test
                assert len(str(error)) < 900  # noqa: PT017 - likewise
                continue
            counts["replies"] += 1
            if isinstance(came, Completion):
                assert from_json(as_json(came)).usage == came.usage
    assert min(counts.values()) > 100
