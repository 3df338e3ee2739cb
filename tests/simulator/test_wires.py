"""What clients meet: the real ones, and the errors that they tell apart."""

from __future__ import annotations

from typing import Any

import httpx
import ollama
import openai
import pytest

from simulator.process import EmbeddedServer
from tests.simulator.conftest import Ask

TARGET = {"model": "sim-target", "prompt": "Why?", "stream": False}
CHAT = {"model": "sim-target", "messages": [{"role": "user", "content": "Why?"}], "stream": False}

IMAGE = {"role": "user", "content": [{"type": "image_url"}]}


def test_the_official_clients_work_unmodified(server: EmbeddedServer) -> None:
    with ollama.Client(server.host) as client:
        said = client.generate("sim-target", "Why?", options={"temperature": 0})
        chat = client.chat("sim-target", messages=CHAT["messages"], options={"temperature": 0})
        pieces = client.generate("sim-target", "Why?", options={"temperature": 0}, stream=True)
        assert "".join(piece.response for piece in pieces) == said.response == chat.message.content
        assert client.embed("sim-embed", "tea").embeddings[0]
        assert {model.model for model in client.list().models} >= {"sim-target:latest"}
        client.generate("sim-judge", "Why?", options={"num_ctx": 512})
        contexts = {model.model: model.context_length for model in client.ps().models}
        assert contexts["sim-embed:latest"] == 4096
        assert contexts["sim-judge:latest"] == 512
        assert client.show("sim-thinker").capabilities == ["completion", "thinking"]
    with openai.OpenAI(base_url=f"{server.host}/v1", api_key="none") as api:
        messages: Any = CHAT["messages"]
        whole = api.chat.completions.create(model="sim-target", messages=messages, temperature=0)
        assert whole.choices[0].message.content == said.response
        stream = api.chat.completions.create(
            model="sim-target", messages=messages, temperature=0, stream=True
        )
        pieces_of = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert "".join(pieces_of) == said.response
        assert api.embeddings.create(model="sim-embed", input="tea").data[0].embedding
        assert "sim-judge:latest" in {model.id for model in api.models.list()}


def test_what_is_counted_equals_what_replies_report(ask: Ask, server: EmbeddedServer) -> None:
    replies = [ask("/api/generate", TARGET | {"prompt": f"Why {n}?"}).json() for n in range(20)]
    stats = server.stats()
    busy_s = sum(each["prompt_eval_duration"] + each["eval_duration"] for each in replies) / 1e9
    assert stats["busy_slot_s"] == pytest.approx(busy_s, rel=1e-6)
    assert stats["completion_tokens"] == sum(each["eval_count"] for each in replies)
    assert stats["prompt_tokens"] == sum(each["prompt_eval_count"] for each in replies)
    assert stats["calls_by_model"] == {"sim-target:latest": 20}
    assert (stats["calls"], stats["in_flight"]) == (20, 0)
    assert server.reset_stats()["calls"] == 20
    assert server.stats()["calls"] == 0


ERRORS = [
    # Path, body, status, and the beginning of the error.
    ("/api/generate", b"", 400, "missing request body"),
    ("/api/generate", b"{", 400, "invalid character"),
    ("/api/generate", TARGET | {"prompt": 5}, 400, "the request cannot be read"),
    ("/api/generate", TARGET | {"model": "x"}, 404, "model 'x' not found"),
    ("/api/embed", {"model": "x", "input": "a"}, 404, "model 'x' not found"),
    ("/api/chat", CHAT | {"model": "sim-embed"}, 400, '"sim-embed" does not support chat'),
    ("/api/generate", TARGET | {"think": True}, 400, '"sim-target" does not support thinking'),
    ("/api/generate", TARGET | {"think": "much"}, 400, 'invalid think value: "much"'),
    ("/api/generate", TARGET | {"format": {"$ref": "x"}}, 500, "invalid format: "),
    ("/v1/chat/completions", {"model": "sim-target"}, 400, "'messages' is required"),
    ("/v1/chat/completions", CHAT | {"model": "x"}, 404, "model 'x' not found"),
    ("/v1/chat/completions", CHAT | {"response_format": {"type": "x"}}, 400, "response_format"),
    ("/v1/chat/completions", CHAT | {"messages": [IMAGE]}, 400, "invalid message format"),
]


def test_a_wrong_request_gets_a_status_and_one_line(ask: Ask) -> None:
    for path, body, status, text in ERRORS:
        reply = ask(path, body)
        error = reply.json()["error"]
        said = error["message"] if path.startswith("/v1") else error
        assert (reply.status_code, said[: len(text)]) == (status, text)


def test_text_parts_of_a_message_are_one_text(ask: Ask) -> None:
    contents = ("Why?\n\nHow?", [{"type": "text", "text": text} for text in ("Why?", "How?")])
    said = []
    for content in contents:
        asked = CHAT | {"temperature": 0, "messages": [{"role": "user", "content": content}]}
        reply = ask("/v1/chat/completions", asked).json()
        said.append((reply["choices"], reply["usage"]))
    assert said[0] == said[1]


def test_what_ollama_does_not_serve_is_plain_text(ask: Ask, http: httpx.Client) -> None:
    missing, wrong = ask("/api/none", {}), http.get("/api/chat")
    assert (missing.status_code, missing.text) == (404, "404 page not found")
    assert (wrong.status_code, wrong.text) == (405, "405 method not allowed")
