"""Counts, durations and shapes that no server should send: an absent field or one named error, never more."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from typing import Any

import pytest

from ollama_utils.errors import BadReplyError, OllamaError
from ollama_utils.http import MOST_MARKS
from ollama_utils.reply_log import as_json, from_json
from ollama_utils.types import MOST_COUNTED, is_count
from tests.ollama_utils.hostile import WIRES, RawServer, client_of, failure, http, outcome
from tests.ollama_utils.scripted import SAID

ODD = [
    "0",
    "-1",
    "1.5",
    "1" + "0" * 15,
    "1" + "0" * 400,
    "9" * 5000,
    "9223372036854775808",
    "1e999",
    "-1e999",
    "1e-999",
    "NaN",
    "Infinity",
    "-Infinity",
    "true",
    "false",
    "null",
    '"7"',
    '"many"',
    '"' + "9" * 5000 + '"',
    "[]",
    "[1]",
    "{}",
    '{"a": 1}',
    "[" * 500 + "]" * 500,
    "[" * 100_000 + "]" * 100_000,
]
OLLAMA_FIELDS = (
    *("eval_count", "prompt_eval_count", "total_duration", "load_duration"),
    *("prompt_eval_duration", "eval_duration"),
)
OPENAI = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "Yes."}}]}
OPENAI_FIELDS: dict[str, dict[str, Any]] = {
    "prompt_tokens": {"usage": {"prompt_tokens": 0}},
    "completion_tokens": {"usage": {"completion_tokens": 0}},
    "cached_tokens": {"usage": {"prompt_tokens_details": {"cached_tokens": 0}}},
    "details": {"usage": {"prompt_tokens_details": 0}},
    "prompt_ms": {"timings": {"prompt_ms": 0}},
    "predicted_ms": {"timings": {"predicted_ms": 0}},
    "usage": {"usage": 0},
    "timings": {"timings": 0},
}


def body(wire: str, field: str, value: str) -> bytes:
    """A whole reply in which a field has a value, as JSON text."""
    if wire == "ollama":
        return json.dumps(SAID | {"eval_count": 3, field: "@"}).replace('"@"', value).encode()
    extra = json.dumps(OPENAI_FIELDS[field]).replace("0", value)
    return json.dumps(OPENAI)[:-1].encode() + b", " + extra[1:].encode()


CASES = [("ollama", field) for field in OLLAMA_FIELDS] + [("openai", field) for field in OPENAI_FIELDS]


@pytest.mark.parametrize("value", ODD, ids=lambda value: value[:12])
@pytest.mark.parametrize(("wire", "field"), CASES)
def test_an_odd_count_is_absent_or_a_bad_reply_and_what_is_taken_can_be_kept(
    wire: str, field: str, value: str
) -> None:
    completion = outcome(wire, http("200 OK", body(wire, field, value)))
    if completion.error is not None:
        assert type(completion.error) is BadReplyError
        assert str(completion.error).isprintable()
        assert len(str(completion.error)) < 800
        return
    assert completion.text == "Yes."
    read = from_json(as_json(completion))
    assert read.usage == completion.usage
    if completion.usage is not None:
        assert all(map(is_count, asdict(completion.usage).values()))


@pytest.mark.parametrize("value", ["-1", "1" + "0" * 15, "1" + "0" * 400])
def test_a_count_beyond_any_reply_counts_as_absent(value: str) -> None:
    for wire, field in (("ollama", "total_duration"), ("openai", "completion_tokens")):
        completion = outcome(wire, http("200 OK", body(wire, field, value)))
        assert completion.error is None
        assert completion.usage is not None
        assert completion.usage.total_s < MOST_COUNTED
        assert completion.usage.completion_tokens == (3 if wire == "ollama" else 0)


CHOICES: list[Any] = [[], {}, 5, [5], [[]], [{}], [{"message": 5}], [{"message": {"content": [1]}}]]
SHAPES: list[bytes] = [
    b"5",
    b"null",
    b'"text"',
    b"[]",
    b"{}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"\xff\xfe\x00",
    b"\xef\xbb\xbf{}",
    b"9" * 5000,
    json.dumps(SAID | {"message": 5, "response": 5}).encode(),
    json.dumps(SAID | {"message": [], "response": []}).encode(),
    json.dumps(SAID | {"response": None}).encode(),
    json.dumps(SAID | {"done": "perhaps"}).encode(),
    json.dumps(SAID | {"done_reason": {"a": 1}}).encode(),
    json.dumps(SAID | {"self": 1, "__class__": 2, "model": 5}).encode(),
    *(json.dumps({"choices": choices}).encode() for choices in CHOICES),
]


@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
@pytest.mark.parametrize("wire", WIRES)
def test_a_reply_of_another_shape_is_a_bad_reply(wire: str, shape: bytes) -> None:
    assert type(failure(wire, http("200 OK", shape))) is BadReplyError


@pytest.mark.parametrize("shape", [*SHAPES, b'{"error": ' + b"9" * 5000 + b"}"], ids=range(len(SHAPES) + 1))
@pytest.mark.parametrize("status", ["404 Not Found", "500 No", "101 Switching"])
@pytest.mark.parametrize("wire", WIRES)
def test_so_is_a_failure_of_another_shape_one_of_our_errors(wire: str, status: str, shape: bytes) -> None:
    assert isinstance(failure(wire, http(status, shape)), OllamaError)


def came_of(wire: str, request: Callable[[Any], object], shape: bytes) -> object:
    """What a client gives for a request that is answered so, or its error: one short line."""
    with RawServer(http("200 OK", shape)) as server, closing(client_of(wire, server.host)) as client:
        try:
            came = request(client)
        except BadReplyError as error:
            came = error
    assert not isinstance(came, BadReplyError) or (str(came).isprintable() and len(str(came)) < 800)
    return came


NUMBERS = ["1" + "0" * 400, "9" * 5000, "1e999", "NaN", "true", "null", '"x"', "[]", "{}"]


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: value[:12])
@pytest.mark.parametrize("wire", WIRES)
def test_embeddings_of_other_shapes_are_a_bad_reply(wire: str, value: str) -> None:
    shapes = (
        [f'{{"embeddings": {value}}}', f'{{"embeddings": [{value}]}}', f'{{"embeddings": [[1.0, {value}]]}}']
        if wire == "ollama"
        else [
            f'{{"data": {value}}}',
            f'{{"data": [{value}]}}',
            f'{{"data": [{{"index": {value}, "embedding": [1.0]}}]}}',
            f'{{"data": [{{"index": 0, "embedding": [1.0, {value}]}}]}}',
        ]
    )
    for shape in shapes:
        came = came_of(wire, lambda client: client.embed("m", ["text"]).rows.tolist(), shape.encode())
        assert isinstance(came, BadReplyError) or came == [pytest.approx([0.5**0.5, 0.5**0.5])]


@pytest.mark.parametrize("indices", [[0, 0], [1, 2], [0, -1], [0, 10**30]])
def test_rows_that_are_not_numbered_by_their_texts_are_a_bad_reply(indices: list[int]) -> None:
    rows = [{"index": index, "embedding": [1.0, 2.0]} for index in indices]
    shape = json.dumps({"data": rows}).encode()
    came = came_of("openai", lambda client: client.embed("m", ["a", "b"]), shape)
    assert isinstance(came, BadReplyError)
    assert "not numbered" in str(came)


@pytest.mark.parametrize("wire", WIRES)
def test_an_embedding_longer_than_any_model_s_is_a_bad_reply(wire: str) -> None:
    row = [1.0] * (2**16 + 1)
    shape = {"embeddings": [row]} if wire == "ollama" else {"data": [{"index": 0, "embedding": row}]}
    came = came_of(wire, lambda client: client.embed("m", ["a"]), json.dumps(shape).encode())
    assert isinstance(came, BadReplyError)
    assert "of lengths [65537]" in str(came)


def test_models_whose_names_nobody_could_type_are_left_out() -> None:
    names = ["good", "two\nlines", "\x1b[31mred", "\u2028", ""]
    tags = {"models": [{"model": name, "digest": "d\n" if name == "good" else "d"} for name in names]}
    assert came_of("ollama", lambda client: client.models(), json.dumps(tags).encode()) == {"good": ""}
    data = {"data": [{"id": name} for name in names]}
    assert came_of("openai", lambda client: client.models(), json.dumps(data).encode()) == {"good": ""}
    half = json.dumps({"models": [{"model": "half \ud83d", "digest": "\ud83d"}]}).encode()
    assert came_of("ollama", lambda client: client.models(), half) == {}


@pytest.mark.parametrize("told", ["-1", "0", "1e999", "NaN", '"x"', "1" + "0" * 400, "99999999", "null"])
def test_slots_that_no_server_has_are_not_known(told: str) -> None:
    assert came_of("openai", lambda client: client.slots(), f'{{"total_slots": {told}}}'.encode()) is None


@pytest.mark.parametrize("unit", [b"[],", b"{},", b'"",', b"1.5,"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_reply_of_many_small_parts_is_not_read(wire: str, unit: bytes) -> None:
    """They would take some twenty times their length in memory."""
    shape = b'{"a":[' + unit * (MOST_MARKS + 1) + b"0]}"
    with RawServer(http("200 OK", shape)) as server, closing(client_of(wire, server.host)) as client:
        tracemalloc.start()
        try:
            with pytest.raises(BadReplyError, match="commas and brackets"):
                client.models()
            assert tracemalloc.get_traced_memory()[1] < 5 * len(shape)
        finally:
            tracemalloc.stop()
