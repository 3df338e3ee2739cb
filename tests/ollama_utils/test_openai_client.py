"""One call to one OpenAI-compatible server: what is sent, what comes back, and what every failure becomes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ollama_utils.client import OllamaClient
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    BrokenReplyError,
    CallCancelledError,
    CallTimeoutError,
    ModelMissingError,
    OllamaError,
    ServerBusyError,
    ServerFaultError,
    ServerOverloadedError,
    ServerUnreachableError,
)
from ollama_utils.hosts import parse_openai_host
from ollama_utils.openai_client import OpenAIClient
from ollama_utils.types import Call, Completion, Usage
from simulator.process import EmbeddedServer
from tests.ollama_utils.fault_cases import Fault, cases, patience_s
from tests.ollama_utils.scripted import ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S

CALL = Call(model="m", prompt="p")
NOBODY = "openai:http://127.0.0.1:1/v1"
SAID: dict[str, Any] = {
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes."}}],
    "usage": {"prompt_tokens": 34, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 24}},
}
TIMINGS = {"prompt_n": 10, "prompt_ms": 1.5, "predicted_n": 7, "predicted_ms": 2.5}


def connected(host: str, timeout_s: float = PATIENCE_S) -> closing[OpenAIClient]:
    """A client that is closed at the end of the block."""
    return closing(
        OpenAIClient(host if host.startswith("openai:") else f"openai:{host}", timeout_s=timeout_s)
    )


def saying(message: dict[str, Any], finish_reason: str = "stop") -> dict[str, Any]:
    """A reply with this message."""
    return SAID | {"choices": [{"index": 0, "finish_reason": finish_reason, "message": message}]}


def answer_to(body: object, *, status: int = 200, call: Call = CALL) -> Completion:
    """What the client makes of one answer; an error stands in the completion."""
    with ScriptedServer(lambda _: (status, body)) as server:
        try:
            with connected(server.host) as client:
                return client.generate(call)
        except OllamaError as error:
            return Completion(text="", error=error)


def sent_for(call: Call) -> dict[str, Any]:
    """The body that goes out for a call."""
    with ScriptedServer(lambda _: (200, SAID)) as server, connected(server.host) as client:
        client.generate(call)
    return server.bodies[0]


@pytest.fixture
def wires(server: EmbeddedServer) -> Iterator[tuple[OllamaClient, OpenAIClient]]:
    """Both clients to one simulator."""
    with closing(OllamaClient(server.host)) as ollama, connected(server.host) as openai:
        yield ollama, openai


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("openai:http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("openai:http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
        ("openai:https://models.example/openai/v1", "https://models.example:443/openai/v1"),
        (" openai:http://[::1]:8080/v1 ", "http://[::1]:8080/v1"),
    ],
)
def test_a_host_is_the_word_openai_and_a_base_url(written: str, url: str) -> None:
    assert parse_openai_host(written) == url


@pytest.mark.parametrize(
    "written", ["openai:", "openai:127.0.0.1:8000", "openai:ftp://x", "openai:http://a b"]
)
def test_a_host_that_cannot_be_read_is_an_error(written: str) -> None:
    with pytest.raises(ValueError, match="expected a host such as"):
        OpenAIClient(written)


SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}


@pytest.mark.parametrize(
    "call",
    [
        Call(model="sim-target", prompt="What is rain?", options={"seed": 1}),
        Call(model="sim-target", prompt="What is rain?", system="Be brief.", options={"temperature": 0}),
        Call(model="sim-target", prompt="And?", examples=(("a", "b"), ("c", "d")), options={"seed": 2}),
        Call(model="sim-target", prompt="Why?", options={"seed": 1, "temperature": 0.3, "num_predict": 9}),
        Call(model="sim-target", prompt="Why?", options={"seed": -1, "num_predict": -1, "temperature": 0}),
        Call(model="sim-target", prompt="Why?", options={"temperature": 0, "stop": ["e"]}),
        Call(model="sim-judge", prompt="Rate it.", format=SCHEMA, options={"temperature": 0}),
        Call(model="sim-thinker", prompt="Why?", options={"temperature": 0}, think=False),
        Call(model="sim-thinker", prompt="Why?", options={"temperature": 0}),
    ],
)
def test_equal_calls_get_equal_replies_on_both_wires(
    wires: tuple[OllamaClient, OpenAIClient], call: Call
) -> None:
    ollama, openai = (client.generate(call) for client in wires)
    assert (openai.text, openai.truncated) == (ollama.text, ollama.truncated)
    assert openai.usage is not None
    assert ollama.usage is not None
    for name in ("prompt_tokens", "completion_tokens"):
        assert getattr(openai.usage, name) == getattr(ollama.usage, name)
    assert openai.usage.decode_s > 0
    assert openai.usage.total_s >= openai.usage.prefill_s + openai.usage.decode_s


def test_embeddings_are_the_same_rows_on_both_wires(wires: tuple[OllamaClient, OpenAIClient]) -> None:
    texts = ["one text", "another", "one text"]
    ollama, openai = (client.embed("sim-embed", texts).rows for client in wires)
    np.testing.assert_array_equal(openai, ollama)
    assert wires[1].embed("sim-embed", []).rows.shape == (0, 0)


def test_the_same_models_are_listed_on_both_wires(wires: tuple[OllamaClient, OpenAIClient]) -> None:
    ollama, openai = (client.models() for client in wires)
    assert set(openai) == set(ollama)
    assert len(set(openai.values())) == len(openai)


def test_slots_are_known_where_a_server_tells_them(
    server: EmbeddedServer, wires: tuple[OllamaClient, OpenAIClient]
) -> None:
    ollama, openai = wires
    assert (openai.slots(), ollama.slots()) == (server.settings.slots, None)
    with ScriptedServer(lambda _: (404, {"error": "no"})) as other, connected(other.host) as client:
        assert client.slots() is None
    with connected(NOBODY) as client, pytest.raises(ServerUnreachableError):
        client.slots()


def test_only_what_the_call_names_is_sent() -> None:
    plain = {"model": "m", "messages": [{"role": "user", "content": "p"}], "stream": False}
    assert sent_for(CALL) == plain
    call = Call(
        model="m",
        prompt="p",
        system="s",
        examples=(("q", "a"),),
        format=SCHEMA,
        options={"seed": 3, "num_predict": 40, "temperature": 0.2, "stop": ["\n"], "repeat_penalty": 1.1},
        think=False,
    )
    roles = ("system", "user", "assistant", "user")
    assert sent_for(call) == plain | {
        "messages": [{"role": role, "content": text} for role, text in zip(roles, "sqap", strict=True)],
        "seed": 3,
        "max_tokens": 40,
        "temperature": 0.2,
        "stop": ["\n"],
        "repeat_penalty": 1.1,
        "repetition_penalty": 1.1,
        "response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA}},
        "chat_template_kwargs": {"enable_thinking": False},
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [({"num_ctx": 4096}, "leave num_ctx out"), ({"mirostat": 1}, "expected num_predict")],
)
def test_an_option_that_has_no_field_is_an_error_and_not_left_out(
    options: dict[str, int], words: str
) -> None:
    with ScriptedServer(lambda _: (200, SAID)) as server, connected(server.host) as client:
        with pytest.raises(BadRequestError, match=words):
            client.generate(replace(CALL, options=options))
        assert not server.bodies


def test_the_key_comes_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "schl\u00fcssel")
    with pytest.raises(ValueError, match="OPENAI_API_KEY holds letters that no header can") as caught:
        OpenAIClient(NOBODY)
    assert "schl" not in str(caught.value)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    error = answer_to({"error": {"message": "Invalid API Key"}}, status=401).error
    assert isinstance(error, BadRequestError)
    assert "is OPENAI_API_KEY set" in str(error)
    assert "sk-secret" not in str(error)


def test_what_a_call_cost_is_read_with_the_timings_and_without() -> None:
    usage = answer_to(SAID | {"timings": TIMINGS}).usage
    assert usage is not None
    told = Usage(prompt_tokens=34, completion_tokens=7, cached_tokens=24)
    assert replace(usage, total_s=0.0) == replace(told, prefill_s=0.0015, decode_s=0.0025)
    assert usage.queue_s == pytest.approx(max(0.0, usage.total_s - 0.004))
    usage = answer_to(SAID).usage
    assert usage is not None
    assert (replace(usage, total_s=0.0), usage.queue_s) == (told, 0.0)


def test_a_reply_cut_at_its_length_is_flagged() -> None:
    assert answer_to(saying({"content": "Yes"}, "length")).truncated
    assert not answer_to(SAID).truncated


@pytest.mark.parametrize(
    "message",
    [
        {"content": "Yes.", "reasoning_content": "Hm."},
        {"content": "Yes.", "reasoning": "Hm."},
        {"content": "<think>\nHm.\n</think>\n\nYes."},
    ],
)
def test_reasoning_is_no_part_of_the_text(message: dict[str, str]) -> None:
    assert answer_to(saying(message)).text == "Yes."


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (saying({"content": ""}), "without a text"),
        (saying({"content": None, "reasoning_content": "Hm."}), "only thought"),
        (saying({"content": 5}), "unreadable"),
        (SAID | {"choices": []}, "unreadable"),
        ({}, "unreadable"),
        ([], "unreadable"),
        (b"<html>", "unreadable"),
        (b"\xff\xfe", "unreadable"),
        (b"[" * 200_000, "unreadable"),
    ],
)
def test_an_answer_that_cannot_be_used_is_a_bad_reply(body: object, words: str) -> None:
    error = answer_to(body).error
    assert type(error) is BadReplyError
    assert words in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (404, {"message": "The model `m` does not exist.", "type": "NotFoundError"}, ModelMissingError),
        (404, {"message": "File Not Found", "type": "not_found_error"}, BadRequestError),
        (400, {"message": "request (4031 tokens) exceeds the available context size"}, BadRequestError),
        (408, {"message": "late"}, CallTimeoutError),
        (429, {"message": "rate limit"}, ServerBusyError),
        (500, {"message": "Context size has been exceeded."}, ServerOverloadedError),
        (500, {"message": "Compute error."}, ServerFaultError),
        (501, {"message": "This server does not support embeddings."}, BadRequestError),
        (503, {"message": "Loading model", "type": "unavailable_error"}, ServerBusyError),
    ],
)
def test_each_status_has_its_error(status: int, said: dict[str, str], expected: type[OllamaError]) -> None:
    error = answer_to({"error": said}, status=status).error
    assert type(error) is expected
    assert "ollama pull" not in str(error)
    assert "ollama serve" not in str(error)


@pytest.mark.parametrize(
    "said", [b'{"detail": "Not here"}', b'{"error": "Not here"}', b"Not here", b'"Not here"']
)
def test_whatever_form_an_error_has_its_words_are_shown(said: bytes) -> None:
    assert "Not here" in str(answer_to(said, status=400).error)


FAULTS: list[tuple[Fault, type[OllamaError]]] = [
    ({"kind": "status"}, ServerFaultError),
    ({"kind": "status", "status": 503}, ServerBusyError),
    ({"kind": "hang", "at": "body"}, CallTimeoutError),
    ({"kind": "drop", "at": "body"}, BrokenReplyError),
    ({"kind": "garbage", "what": "cut"}, BadReplyError),
    ({"kind": "garbage"}, BadReplyError),
    ({"kind": "garbage", "what": "empty"}, BadReplyError),
    ({"kind": "garbage", "what": "wrong_type"}, BadReplyError),
]


@pytest.mark.parametrize(("fault", "expected"), cases(FAULTS))
def test_a_fault_of_the_first_attempt_is_got_over(
    server: EmbeddedServer, fault: Fault, expected: type[OllamaError]
) -> None:
    call = Call(model="sim-target", prompt="What is tea?")
    host = f"openai:{server.host}"
    with connected(server.host) as client:
        text = client.generate(call).text
    server.set_faults([fault | {"rate": 1, "first": 1}])
    timeout_s = patience_s(expected)
    with Dispatcher([host], attempts=8, timeout_s=timeout_s, backoff_s=0.001) as dispatcher:
        completion = dispatcher.generate(call)
    assert (completion.text, completion.error, completion.attempts > 1) == (text, None, True)
    server.set_faults([fault | {"rate": 1}])
    with connected(server.host, timeout_s) as client, pytest.raises(OllamaError) as caught:
        client.generate(call)
    assert type(caught.value) is expected


def test_without_a_server_the_message_says_so() -> None:
    with connected(NOBODY) as client:
        for ask in (lambda: client.generate(CALL), lambda: client.embed("m", ["t"]), client.models):
            with pytest.raises(ServerUnreachableError, match="no OpenAI-compatible server answers at"):
                ask()


def test_a_closed_client_cancels() -> None:
    client = OpenAIClient(NOBODY)
    client.close()
    with pytest.raises(CallCancelledError):
        client.generate(CALL)


@pytest.mark.parametrize(
    "call",
    [
        Call(model="", prompt="p"),
        replace(CALL, prompt="half \ud83d a pair"),
        replace(CALL, options={"temperature": float("nan")}),
    ],
)
def test_a_call_that_cannot_be_sent_is_a_bad_request(call: Call) -> None:
    with ScriptedServer(lambda _: (200, SAID)) as server, connected(server.host) as client:
        with pytest.raises(BadRequestError):
            client.generate(call)
        assert not server.bodies


def test_llama_cpp_lists_a_file_by_its_name_and_what_is_in_it() -> None:
    entry = {
        "id": "/models/tiny.Q4.gguf",
        "owned_by": "llamacpp",
        "tags": ["sha256:1"],
        "meta": {"n_ctx": 1, "size": 5},
    }

    def listed(**change: object) -> dict[str, str]:
        with (
            ScriptedServer(lambda _: (200, {"data": [entry | change]})) as server,
            connected(server.host) as client,
        ):
            return client.models()

    assert list(listed()) == ["tiny.Q4.gguf"]
    assert list(listed(owned_by="vllm")) == ["/models/tiny.Q4.gguf"]
    assert listed() == listed(meta={"n_ctx": 2, "size": 5})
    assert listed() != listed(tags=["sha256:2"])
    assert listed(meta=None) == {"tiny.Q4.gguf": ""}


def test_rows_come_in_the_order_of_the_texts_whatever_order_they_have_in_the_reply() -> None:
    rows = [{"index": 1, "embedding": [0.0, 1.0]}, {"index": 0, "embedding": [2.0, 0.0]}]
    with ScriptedServer(lambda _: (200, {"data": rows})) as server, connected(server.host) as client:
        np.testing.assert_array_equal(client.embed("m", ["a", "b"]).rows, [[1, 0], [0, 1]])
        assert json.dumps(server.bodies[0]["input"]) == '["a", "b"]'
