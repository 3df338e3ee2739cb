"""What is wrong with a request is said in Ollama's words."""

from __future__ import annotations

import asyncio

import ollama
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from simulator.app import build_app
from simulator.settings import Settings
from tests.simulator.conftest import Ask


def test_what_ollama_serves_but_the_simulator_does_not_is_refused(ask: Ask) -> None:
    for method, path in (
        ("POST", "/api/embeddings"),
        ("POST", "/api/pull"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/push"),
        ("POST", "/api/blobs/sha256:00"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models/sim-target"),
    ):
        text = f"the simulator does not play {path}; docs/simulator.md says what it plays"
        status, body = ask(method, path, {})
        said = body["error"]["message"] if path.startswith("/v1/") else body["error"]
        assert (status, said) == (501, text)


def test_pictures_are_refused(ask: Ask) -> None:
    for path in ("/api/generate", "/api/chat"):
        messages = [{"role": "user", "content": "q", "images": ["aGVsbG8="]}]
        body = {"model": "sim-target", "prompt": "q", "images": ["aGVsbG8="], "messages": messages}
        status, reply = ask("POST", path, body)
        assert status == 500
        assert reply["error"].startswith("image input is not supported")


WRONG_REQUESTS: list[tuple[str, object, int, str]] = [
    ("/api/embed", {"model": "sim-embed", "input": [5]}, 400, "invalid input type"),
    (
        "/api/generate",
        {"model": "sim-target", "prompt": "q", "options": {"seed": True}},
        500,
        'option "seed" must be of type integer',
    ),
    (
        "/api/generate",
        {"model": "sim-target", "prompt": "q", "options": {"stop": "x"}},
        500,
        'option "stop" must be of type array',
    ),
    (
        "/api/generate",
        {"model": "sim-target", "prompt": 5},
        400,
        "json: cannot unmarshal number into Go struct field GenerateRequest.prompt of type string",
    ),
    ("/api/chat", {"model": "sim-judge", "think": "high"}, 400, '"sim-judge" does not support thinking'),
    (
        "/api/chat",
        {"model": "sim-judge", "think": "hard"},
        400,
        'invalid think value: "hard" (must be "high", "medium", "low", true, or false)',
    ),
    (
        "/api/chat",
        {"model": "sim-judge", "think": 1},
        400,
        'think must be a boolean or string ("high", "medium", "low", true, or false)',
    ),
    ("/api/generate", {"model": "a b", "prompt": "q"}, 400, "invalid model name"),
    ("/api/embed", {"model": "x", "input": {}}, 400, "invalid input type"),
    (
        "/api/generate",
        {"model": "sim-target", "prompt": "q", "context": ["1"]},
        400,
        "json: cannot unmarshal string into Go struct field GenerateRequest.context of type int",
    ),
    (
        "/api/generate",
        {"model": "sim-target", "prompt": "q", "format": "xml"},
        500,
        'invalid format: "\\"xml\\""; expected "json" or a valid JSON Schema object',
    ),
    (
        "/api/generate",
        {"model": "sim-target", "prompt": "q", "format": {"$ref": "#/none"}},
        500,
        "invalid JSON schema in format: $ref '#/none' leads nowhere in the schema",
    ),
    (
        "/api/generate",
        {"model": "sim-target", "keep_alive": []},
        400,
        "unsupported keep_alive type: array",
    ),
    ("/api/chat", {"model": "sim-target", "keep_alive": {}}, 400, "unsupported keep_alive type: object"),
    ("/api/embed", {"model": "sim-embed", "keep_alive": "5"}, 400, 'time: invalid duration "5"'),
    (
        "/api/generate",
        b'{"model": "sim-target", "prompt": "q", "options": {"seed": 1e400}}',
        400,
        "json: cannot unmarshal number 1e400 into Go value of type float64",
    ),
    (
        "/api/generate",
        b'{"model": "sim-target", "prompt": "q", "options": {"num_predict": NaN}}',
        400,
        "invalid character in the request body: it is not JSON",
    ),
    (
        "/api/embed",
        {"model": "sim-embed", "input": ["q", "x" * 16_385], "truncate": False},
        400,
        "the input length exceeds the context length",
    ),
]


def test_a_wrong_request_gets_the_status_and_the_text_of_ollama(ask: Ask) -> None:
    replies = [(path, payload, ask("POST", path, payload)) for path, payload, _, _ in WRONG_REQUESTS]
    wanted = [(path, payload, (status, {"error": error})) for path, payload, status, error in WRONG_REQUESTS]
    assert replies == wanted


def test_what_ollama_does_not_serve_is_a_404_or_405_in_plain_text(ask: Ask) -> None:
    assert ask("GET", "/api/nothing") == (404, "404 page not found")
    assert ask("GET", "/api/generate") == (405, "405 method not allowed")


def test_an_error_that_nobody_foresaw_is_json_too() -> None:
    async def fall(request: web.Request) -> web.Response:
        raise ZeroDivisionError(request.path)

    async def fetch() -> tuple[int, object]:
        app = build_app(Settings())
        app.router.add_get("/fall", fall)
        async with TestClient(TestServer(app)) as client:
            reply = await client.get("/fall")
            return reply.status, await reply.json()

    assert asyncio.run(fetch()) == (500, {"error": "ZeroDivisionError: /fall"})


def test_a_body_that_is_not_a_json_object_is_a_400(ask: Ask) -> None:
    for body in (b"{", b"[1]", b"\xff", b"[" * 100_000):
        status, reply = ask("POST", "/api/generate", body)
        assert status == 400
        assert reply["error"]


def test_a_missing_model_is_the_client_s_response_error(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'nope' not found") as caught:
        client.generate("nope", "Why?")
    assert caught.value.status_code == 404
