"""Nothing that one request holds keeps the server from answering: each odd one gets a reply or a plain error.

None of these is timed; a server that spins, or that makes a billion values, answers nobody within the
clients' patience, or dies.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import pytest

from simulator.process import EmbeddedServer
from tests.simulator.conftest import Ask

FULL = 2**22 - 4096
"""Nearly all the characters that a body may have."""
TOO_MUCH = "asks for too much"
WORDS = {"model": "sim-target", "prompt": "x", "stream": False}

ODD_NUMBERS: list[object] = [0, -1, 1, 0.5, 1e308, -1e308, 2**63, -(2**63), 10**300]
MISTYPED: list[object] = [True, "7", [1], {}]
INTEGERS = (
    "num_batch",
    "num_ctx",
    "num_predict",
    "num_keep",
    "num_thread",
    "num_gpu",
    "main_gpu",
    "top_k",
    "seed",
)


@pytest.mark.parametrize("option", INTEGERS)
def test_an_odd_number_is_taken_and_another_type_is_refused(ask: Ask, option: str) -> None:
    wrong = []
    for value in ODD_NUMBERS:
        status, reply = ask("POST", "/api/generate", WORDS | {"options": {option: value}})
        if (status, reply.get("error")) != (200, None):
            wrong.append((value, status, reply))
    for value in MISTYPED:
        status, reply = ask("POST", "/api/generate", WORDS | {"options": {option: value}})
        if (status, reply.get("error")) != (500, f'option "{option}" must be of type integer'):
            wrong.append((value, status, reply))
    assert not wrong


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400", "9" * 5000])
def test_what_is_no_number_of_go_s_is_refused(ask: Ask, number: str) -> None:
    body = json.dumps(WORDS | {"options": {"num_batch": 7}}).replace("7", number).encode()
    status, reply = ask("POST", "/api/generate", body)
    assert status == 400
    assert "not JSON" in reply["error"] or "cannot unmarshal number" in reply["error"]


def nested(depth: int) -> dict[str, Any]:
    """A list of 1024 lists, each of 1024 lists, and so on."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "minItems": 1024, "items": schema}
    return schema


def doubling(end: object, keyword: str) -> dict[str, Any]:
    """Sixty definitions, each of which names the next one twice: 2^60 values."""

    def twice(name: str) -> dict[str, Any]:
        ref = {"$ref": f"#/$defs/{name}"}
        return {"anyOf": [ref, ref]} if keyword == "anyOf" else {keyword: {"a": ref, "b": ref}}

    steps = {f"d{step}": twice(f"d{step + 1}") for step in range(60)}
    return {"$defs": steps | {"d60": end}, "$ref": "#/$defs/d0"}


def referred(definition: object, times: int) -> dict[str, Any]:
    """An object whose every property is one definition."""
    properties = {f"p{place}": {"$ref": "#/$defs/c"} for place in range(times)}
    return {"$defs": {"c": definition}, "type": "object", "properties": properties}


SCHEMAS: dict[str, Any] = {
    "properties that double": doubling({"type": "string"}, "properties"),
    "options that double": doubling(False, "anyOf"),
    "lists of lists": nested(6),
    "a long constant many times": referred({"const": "x" * 10**6}, 5000),
    "a long list to choose from many times": referred({"enum": list(range(10**5))}, 5000),
    "long texts": referred({"type": "string", "minLength": 10**5}, 5000),
    "many options of many keywords": {f"k{place}": 1 for place in range(10**5)} | {"anyOf": [{}] * 10**5},
    "many properties that cannot be": {
        "properties": {f"p{place}": False for place in range(10**5)},
        "required": [f"q{place}" for place in range(10**5)],
    },
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_schema_that_asks_for_too_much_is_refused(ask: Ask, schema: object) -> None:
    status, reply = ask("POST", "/api/generate", WORDS | {"format": schema})
    assert status == 500
    assert TOO_MUCH in reply["error"]
    assert len(reply["error"]) < 1000


GENERATE, CHAT, EMBED = "/api/generate", "/api/chat", "/api/embed"
COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
TURN = {"model": "sim-target", "messages": [{"role": "user", "content": "x"}]}

BODIES: dict[str, tuple[str, Any, int]] = {
    "a prompt of megabytes": (GENERATE, WORDS | {"prompt": "a " * (FULL // 2)}, 200),
    "question marks without end": (
        GENERATE,
        WORDS | {"model": "sim-mutator", "prompt": "?" * FULL + "x"},
        200,
    ),
    "spaces without end": (GENERATE, WORDS | {"prompt": "x" + " " * FULL + "x"}, 200),
    "small chunks of a long prompt": (
        GENERATE,
        WORDS | {"prompt": "a b " * 5000, "options": {"num_batch": 1}},
        200,
    ),
    "a system prompt of megabytes": (
        GENERATE,
        WORDS | {"model": "sim-solver", "system": "q: a " * (FULL // 5)},
        400,
    ),
    "stops without end": (
        GENERATE,
        WORDS | {"options": {"stop": [f"z{place}" for place in range(10**5)]}},
        200,
    ),
    "a context without end": (GENERATE, WORDS | {"context": [1] * 10**5}, 200),
    "a keep_alive of digits": (GENERATE, WORDS | {"keep_alive": "1" * FULL}, 400),
    "a keep_alive of parts": (GENERATE, WORDS | {"keep_alive": "1s" * (FULL // 2) + "x"}, 400),
    "a keep_alive of ages": (GENERATE, WORDS | {"keep_alive": 1e308}, 200),
    "a keep_alive before all ages": (GENERATE, WORDS | {"keep_alive": -1e308}, 200),
    "a model's name of megabytes": (GENERATE, WORDS | {"model": "a." * (FULL // 2) + ":"}, 400),
    "images that are none": (GENERATE, WORDS | {"images": [[{}]] * 10**5}, 500),
    "too many parts": (GENERATE, WORDS | {"context": [1] * (2**19 + 2)}, 413),
    "too long": (GENERATE, WORDS | {"prompt": "x" * 2**22}, 413),
    "turns without end": (CHAT, WORDS | {"messages": [{"role": "user"}] * 10**5}, 200),
    "too many inputs": (EMBED, {"model": "sim-embed", "input": ["a"] * 2049}, 400),
    "as many inputs as may be": (
        EMBED,
        {"model": "sim-embed", "input": ["a " * 900] * 2048, "options": {"num_batch": 1}},
        200,
    ),
    "an input of megabytes": (EMBED, {"model": "sim-embed", "input": "a b " * (FULL // 4)}, 200),
    "a schema that is a list": (
        COMPLETIONS,
        TURN | {"response_format": {"type": "json_schema", "json_schema": [1]}},
        400,
    ),
    "thinking that is a list": (
        COMPLETIONS,
        TURN | {"model": "sim-thinker", "chat_template_kwargs": {"enable_thinking": [1]}},
        200,
    ),
    "a format of numbers that is a list": (
        EMBEDDINGS,
        {"model": "sim-embed", "input": "x", "encoding_format": [1]},
        501,
    ),
}


@pytest.mark.parametrize(("path", "body", "status"), BODIES.values(), ids=BODIES)
def test_a_request_of_any_size_is_answered(ask: Ask, path: str, body: object, status: int) -> None:
    got, reply = ask("POST", path, body)
    assert got == status
    assert (status == 200) != ("error" in reply)
    assert ask("GET", "/api/version")[0] == 200


RAW = {
    "lists in lists": b"[" * 10**6,
    "objects in objects": b'{"a":' * 10**5 + b"1" + b"}" * 10**5,
    "a number of megabytes": b'{"a":' + b"1" * FULL + b"}",
}


@pytest.mark.parametrize("body", RAW.values(), ids=RAW)
def test_json_without_a_floor_is_refused(ask: Ask, body: bytes) -> None:
    assert ask("POST", GENERATE, body)[0] == 400


@pytest.mark.parametrize("depth", [200, 400, 600, 800, 1000])
def test_a_deep_schema_gets_a_reply_or_an_error_that_is_meant(ask: Ask, depth: int) -> None:
    schema = b'{"anyOf":[' * depth + b"]}" * depth
    body = json.dumps(WORDS | {"format": 7}).encode().replace(b"7", schema)
    status, reply = ask("POST", GENERATE, body)
    assert status in {200, 400, 500}
    assert "Recursion" not in reply.get("error", "")


def test_what_was_packed_counts_by_what_it_unpacks_to(server: EmbeddedServer, ask: Ask) -> None:
    packed = gzip.compress(b'{"a":"' + b"0" * 2**26 + b'"}')
    reply = httpx.post(
        server.host + GENERATE, content=packed, headers={"Content-Encoding": "gzip"}, timeout=10
    )
    assert reply.status_code == 413
    assert ask("GET", "/api/version")[0] == 200
