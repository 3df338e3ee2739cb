"""What is sent to a server on either wire, and that both say the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from ollama_utils.errors import BadRequestError
from ollama_utils.ollama import OllamaClient
from ollama_utils.openai import OpenAIClient
from ollama_utils.types import Call, short_name
from simulator.process import EmbeddedServer
from tests.ollama_utils.hostile import WIRES, client_of
from tests.ollama_utils.scripted import SAID, ScriptedServer

CALL = Call(model="m", prompt="p")
SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}
FULL = Call(
    model="m",
    prompt="p",
    system="s",
    format=SCHEMA,
    options={"seed": 3, "num_predict": 40, "stop": ["\n"], "repeat_penalty": 1.1},
    think=False,
)
CHAT = {"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}]}
TURNS = [
    {"role": role, "content": text}
    for role, text in zip(("system", "user", "assistant", "user"), "sqap", strict=True)
]


@pytest.fixture
def wires(server: EmbeddedServer) -> Iterator[tuple[OllamaClient, OpenAIClient]]:
    """Both clients to one simulator."""
    with closing(OllamaClient(server.host)) as ollama:
        with closing(OpenAIClient(f"openai:{server.host}")) as openai:
            yield ollama, openai


TARGET = Call(model="sim-target", prompt="Why?", options={"temperature": 0})
ON_BOTH = [
    replace(TARGET, options={"seed": 1, "temperature": 0.3, "num_predict": 9}),
    replace(TARGET, options={"seed": -1, "num_predict": -1, "temperature": 0}),
    replace(TARGET, options={"temperature": 0, "stop": ["e"]}, system="Be brief."),
    replace(TARGET, examples=(("a", "b"),)),
    replace(TARGET, model="sim-judge", prompt="Rate it.", format=SCHEMA),
    replace(TARGET, model="sim-thinker", think=False),
    replace(TARGET, model="sim-thinker"),
]


@pytest.mark.parametrize("call", ON_BOTH)
def test_equal_calls_get_equal_replies_on_both_wires_streamed_and_whole(
    wires: tuple[OllamaClient, OpenAIClient], call: Call
) -> None:
    replies = [client.generate(call, stream=stream) for client in wires for stream in (False, True)]
    usages = [reply.usage for reply in replies]
    assert len({(reply.text, reply.truncated) for reply in replies}) == 1
    assert len({usage and (usage.prompt_tokens, usage.completion_tokens) for usage in usages}) == 1
    assert all(usage is not None and 0 < usage.decode_s <= usage.total_s for usage in usages)


def test_embeddings_are_the_same_unit_rows_on_both_wires(
    wires: tuple[OllamaClient, OpenAIClient],
) -> None:
    texts = ["one text", "another", "one text"]
    ollama, openai = (client.embed("sim-embed", texts).rows for client in wires)
    np.testing.assert_array_equal(openai, ollama)
    np.testing.assert_array_equal(ollama[0], ollama[2])
    np.testing.assert_allclose(np.linalg.norm(ollama, axis=1), 1.0, rtol=1e-6)
    assert ollama.dtype == np.float32


def test_models_and_slots_are_known_as_far_as_a_server_says(
    server: EmbeddedServer, wires: tuple[OllamaClient, OpenAIClient]
) -> None:
    ollama, openai = wires
    assert set(ollama.models()) == set(openai.models()) >= {"sim-target:latest"}
    assert (openai.slots(), ollama.slots()) == (server.settings.slots, None)
    assert ollama.completes("sim-target")
    assert not ollama.completes("sim-embed")
    assert ollama.inventory().version
    with ScriptedServer(lambda _: (200, {"total_slots": 10**400})) as other:
        with closing(OpenAIClient(f"openai:{other.host}")) as client:
            assert client.slots() is None
    assert [short_name(name) for name in ("x", "x:latest", "x:7b")] == ["x", "x", "x:7b"]


def sent(wire: str, *calls: Call) -> list[dict[str, Any]]:
    """The bodies that go out for calls, and for the embedding of a text."""
    said = SAID | {"message": {"role": "assistant", "content": "Yes."}} | CHAT
    rows = {"embeddings": [[1.0]], "data": [{"embedding": [1.0]}]}
    with ScriptedServer(lambda _: (200, said | rows)) as server:
        with closing(client_of(wire, server.host)) as client:
            for call in calls:
                client.generate(call)
            client.embed("m", ["a"])
    return server.bodies


def test_only_what_a_call_names_is_sent_to_ollama() -> None:
    plain = {"model": "m", "prompt": "p", "stream": False, "truncate": False}
    more = {"system": "s", "format": SCHEMA, "options": dict(FULL.options), "think": False}
    turns = replace(CALL, system="s", examples=(("q", "a"),))
    chat = {"model": "m", "messages": TURNS, "stream": False, "truncate": False, "tools": []}
    embed = {"model": "m", "input": ["a"], "truncate": False}
    assert sent("ollama", CALL, FULL, turns) == [plain, plain | more, chat, embed]
    assert sent("ollama", replace(turns, system=None))[0] == chat | {"messages": TURNS[1:]}
    unanswered = replace(turns, examples=(("q", ""),))
    without_reply = {"messages": [turn for turn in TURNS if turn["role"] != "assistant"]}
    assert sent("ollama", unanswered)[0] == chat | without_reply
    for think in (True, "low"):
        assert sent("ollama", replace(CALL, think=think))[0] == plain | {"think": think}


def test_only_what_a_call_names_is_sent_to_an_openai_server() -> None:
    plain = {"model": "m", "messages": TURNS[-1:], "stream": False}
    more = {
        "messages": TURNS,
        "seed": 3,
        "max_tokens": 40,
        "stop": ["\n"],
        "repeat_penalty": 1.1,
        "repetition_penalty": 1.1,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": SCHEMA},
        },
        "reasoning_effort": "none",
        "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "none"},
    }
    embed = {"model": "m", "input": ["a"], "encoding_format": "float"}
    full = replace(FULL, examples=(("q", "a"),))
    assert sent("openai", CALL, full) == [plain, plain | more, embed]
    on = {"chat_template_kwargs": {"enable_thinking": True}}
    low = {"chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "low"}}
    thinking = sent("openai", replace(CALL, think=True), replace(CALL, think="low"))
    assert thinking[:-1] == [plain | on, plain | low | {"reasoning_effort": "low"}]
    unset = replace(CALL, options={"num_predict": None, "seed": -1, "top_k": 5})
    without = replace(CALL, options={"num_predict": -5})
    assert sent("openai", unset, without)[:-1] == [plain | {"top_k": 5}, plain]
    with pytest.raises(BadRequestError, match="leave num_ctx out"):
        sent("openai", replace(CALL, options={"num_ctx": 4096}))
    with pytest.raises(BadRequestError, match="expected one of num_predict, temperature"):
        sent("openai", replace(CALL, options={"mirostat": 1}))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "call",
    [
        Call(model="", prompt="p"),
        replace(CALL, prompt="half \ud83d a pair"),
        replace(CALL, prompt=cast("str", {1})),
        *(replace(CALL, options=odd) for odd in ({"temperature": math.nan}, {"stop": {1, 2}})),
    ],
)
def test_a_call_that_cannot_be_written_is_a_bad_request_and_not_sent(wire: str, call: Call) -> None:
    with ScriptedServer(lambda _: (200, SAID | CHAT)) as server:
        with closing(client_of(wire, server.host)) as client:
            with pytest.raises(BadRequestError):
                client.generate(call)
            assert client.generate(CALL).text == "Yes."
    assert len(server.bodies) == 1


def test_llama_cpp_lists_a_file_by_its_name_and_what_is_in_it() -> None:
    entry = {
        "id": "/models/tiny.Q4.gguf",
        "owned_by": "llamacpp",
        "tags": ["sha256:1"],
        "meta": {"n_ctx": 1, "size": 5},
    }

    def listed(**change: object) -> dict[str, str]:
        with ScriptedServer(lambda _: (200, {"data": [entry | change]})) as server:
            with closing(OpenAIClient(f"openai:{server.host}")) as client:
                return client.models()

    assert list(listed()) == ["tiny.Q4.gguf"]
    assert list(listed(owned_by="vllm")) == ["/models/tiny.Q4.gguf"]
    assert listed() == listed(meta={"n_ctx": 2, "size": 5})
    assert listed() != listed(tags=["sha256:2"])
    assert listed(meta=None) == {"tiny.Q4.gguf": ""}


def test_rows_have_the_order_of_the_texts_whatever_order_they_have_in_the_reply() -> None:
    rows = [{"index": 1, "embedding": [0.0, 1.0]}, {"index": 0, "embedding": [2.0, 0.0]}]
    bare = [{"embedding": row["embedding"]} for row in reversed(rows)]
    for data in (rows, bare):
        with ScriptedServer(lambda _, data=data: (200, {"data": data})) as server:  # type: ignore[misc] # a default
            with closing(OpenAIClient(f"openai:{server.host}")) as client:
                np.testing.assert_array_equal(client.embed("m", ["a", "b"]).rows, [[1, 0], [0, 1]])
        assert server.bodies[0]["input"] == ["a", "b"]
