"""What clients meet: the real ones, the errors that they tell apart, and any bytes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import ollama
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.process import EmbeddedServer
from tests.simulator.conftest import Ask

TARGET = {"model": "sim-target", "prompt": "Why?", "stream": False}
CHAT = {"model": "sim-target", "messages": [{"role": "user", "content": "Why?"}], "stream": False}


def test_the_official_clients_work_unmodified(server: EmbeddedServer) -> None:
    with ollama.Client(server.host) as client:
        said = client.generate("sim-target", "Why?", options={"temperature": 0})
        chat = client.chat("sim-target", messages=CHAT["messages"], options={"temperature": 0})
        pieces = client.generate("sim-target", "Why?", options={"temperature": 0}, stream=True)
        assert "".join(piece.response for piece in pieces) == said.response == chat.message.content
        assert client.embed("sim-embed", "tea").embeddings[0]
        assert {model.model for model in client.list().models} >= {"sim-target:latest"}
        assert [model.model for model in client.ps().models][-1] == "sim-embed:latest"
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
    assert (stats["calls"], stats["failed"], stats["in_flight"]) == (20, 0, 0)
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
    (
        "/v1/chat/completions",
        CHAT | {"response_format": {"type": "x"}},
        400,
        "response_format type",
    ),
    ("/v1/chat/completions", CHAT | {"reasoning_effort": "x"}, 400, 'invalid think value: "x"'),
    (
        "/v1/chat/completions",
        CHAT | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "invalid message format",
    ),
]


def test_a_wrong_request_gets_a_status_and_one_line(ask: Ask) -> None:
    wrong = {}
    for path, body, status, text in ERRORS:
        reply = ask(path, body)
        error = reply.json()["error"]
        said = error["message"] if path.startswith("/v1") else error
        if (reply.status_code, said[: len(text)]) != (status, text):
            wrong[path, text] = (reply.status_code, said)
    assert not wrong


def test_text_parts_of_a_message_are_one_text(ask: Ask) -> None:
    contents = ("Why?\n\nHow?", [{"type": "text", "text": text} for text in ("Why?", "How?")])
    said = [
        ask(
            "/v1/chat/completions",
            CHAT | {"temperature": 0, "messages": [{"role": "user", "content": content}]},
        ).json()
        for content in contents
    ]
    assert said[0]["choices"] == said[1]["choices"]
    assert said[0]["usage"] == said[1]["usage"]


@pytest.mark.parametrize(("options", "context"), [({}, 4096), ({"num_ctx": 512}, 512)])
def test_a_loaded_model_has_the_context_that_it_was_loaded_with(
    ask: Ask, http: httpx.Client, options: dict[str, int], context: int
) -> None:
    ask("/api/generate", TARGET | {"options": options})
    lengths = {
        each["name"]: each["context_length"] for each in http.get("/api/ps").json()["models"]
    }
    assert lengths["sim-target:latest"] == context


def test_what_ollama_does_not_serve_is_plain_text(ask: Ask, http: httpx.Client) -> None:
    missing, wrong = ask("/api/none", {}), http.get("/api/chat")
    assert (missing.status_code, missing.text) == (404, "404 page not found")
    assert (wrong.status_code, wrong.text) == (405, "405 method not allowed")


FIELDS = (  # noqa: SIM905 - shorter so
    "model prompt messages input options format think stop seed num_predict num_ctx "
    "temperature role content text type properties items enum $ref anyOf minimum response_format "
    "json_schema schema reasoning_effort encoding_format chat_template_kwargs"
).split()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("json_schema"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3)
    ),
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), JSON).map(
    lambda body: json.dumps({"model": "sim-model", "stream": False} | body).encode()
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    path=st.sampled_from(["/api/generate", "/api/chat", "/api/embed", "/api/show"])
    | st.sampled_from(["/v1/chat/completions", "/v1/embeddings"]),
    body=BODIES | st.binary(),
)
def test_any_bytes_get_a_reply_or_one_json_error(ask: Ask, path: str, body: bytes) -> None:
    reply = ask(path, body)
    assert reply.status_code in {200, 400, 404, 500}
    if reply.status_code != 200:
        assert reply.json()["error"]
