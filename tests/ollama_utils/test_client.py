"""One call to one server: what comes back, and what every failure becomes."""

from __future__ import annotations

import math
import threading
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from ollama_utils.client import OllamaClient
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
    ServerUnreachableError,
)
from ollama_utils.types import Call, Completion, Usage, short_name
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S

CALL = Call(model="m", prompt="p")
NOBODY = "http://127.0.0.1:1"


def connected(host: str, timeout_s: float = PATIENCE_S) -> closing[OllamaClient]:
    """A client that is closed at the end of the block."""
    return closing(OllamaClient(host, timeout_s=timeout_s))


def answer_to(body: object, *, status: int = 200) -> Completion:
    """What the client makes of one answer; an error stands in the completion."""
    with ScriptedServer(lambda _: (status, body)) as server:
        try:
            with connected(server.host) as client:
                return client.generate(CALL)
        except OllamaError as error:
            return Completion(text="", error=error)


def test_a_reply_carries_its_text_and_what_it_cost(server: EmbeddedServer) -> None:
    with connected(server.host) as client:
        completion = client.generate(Call(model="sim-target", prompt="What is rain?", options={"seed": 1}))
    assert completion.text
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 64
    assert completion.usage.total_s >= completion.usage.decode_s > 0
    assert (completion.error, completion.attempts, completion.cached) == (None, 1, False)


def test_durations_become_seconds_and_those_left_out_zero() -> None:
    said = SAID | {"total_duration": 3_000_000_000, "eval_duration": 1_500_000_000, "eval_count": 7}
    usage = answer_to(said).usage
    assert usage is not None
    assert usage == Usage(completion_tokens=7, decode_s=1.5, total_s=3.0)
    assert usage.queue_s == 1.5
    assert answer_to(SAID).usage is None


def test_a_reply_cut_at_its_length_is_flagged() -> None:
    assert answer_to(SAID | {"done_reason": "length"}).truncated
    assert not answer_to(SAID | {"done_reason": "stop"}).truncated


@pytest.mark.parametrize(
    "said",
    [
        {"thinking": "Hm.", "response": "Yes."},
        {"response": "<think>\nHm.\n</think>\n\nYes."},
        {"response": " \n<think></think>Yes."},
        {"response": "Hmm, cannot help?\n</think>\n\nYes."},
    ],
)
def test_thinking_is_no_part_of_the_text(said: dict[str, str]) -> None:
    assert answer_to(SAID | said).text == "Yes."


@pytest.mark.parametrize("text", ["Write <think>so</think>.", "A <think> tag opens.", "Yes.\n"])
def test_a_tag_later_in_the_text_belongs_to_it(text: str) -> None:
    assert answer_to(SAID | {"response": text}).text == text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (SAID | {"done": False}, "broke off"),
        (SAID | {"response": ""}, "without a text"),
        (SAID | {"response": " \n"}, "without a text"),
        (SAID | {"response": "", "thinking": "Hm."}, "only thought"),
        (SAID | {"response": "<think>Hm."}, "only thought"),
        (SAID | {"response": "Hm.</think>\n"}, "only thought"),
        (SAID | {"response": "half \ud83d a pair"}, "not valid Unicode"),
        (SAID | {"response": 5}, "unreadable"),
        (b"[" * 200_000, "unreadable"),
        ([], "unreadable"),
        (b"<html>", "unreadable"),
        (b"\xff\xfe", "unreadable"),
    ],
)
def test_an_answer_that_cannot_be_used_is_a_bad_reply(body: object, words: str) -> None:
    error = answer_to(body).error
    assert type(error) is BadReplyError
    assert words in str(error)


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (404, "model 'm' not found", ModelMissingError),
        (404, 'model "m" not found, try pulling it first', ModelMissingError),
        (400, '"m" does not support generate', BadRequestError),
        (401, "unauthorized", BadRequestError),
        (408, "request timeout", CallTimeoutError),
        (500, 'option "temperature" must be of type float32', BadRequestError),
        (500, "model runner has unexpectedly stopped", ServerFaultError),
        (502, "bad gateway", ServerUnreachableError),
        (503, "server busy, please try again.  maximum pending requests exceeded", ServerBusyError),
        (429, "too many requests", ServerBusyError),
    ],
)
def test_each_status_has_its_error(status: int, said: str, expected: type[OllamaError]) -> None:
    assert type(answer_to({"error": said}, status=status).error) is expected


@pytest.mark.parametrize("body", [b"404 page not found", b'"odd"', b"[]", b""])
def test_a_host_that_is_no_ollama_server_is_never_a_missing_model(body: bytes) -> None:
    assert isinstance(answer_to(body, status=404).error, BadRequestError | BadReplyError)


def test_a_missing_model_names_the_command_that_brings_it(server: EmbeddedServer) -> None:
    with connected(server.host) as client:
        with pytest.raises(ModelMissingError, match=r"'nobody:7b' .* run 'ollama pull nobody:7b'") as caught:
            client.generate(Call(model="nobody:7b", prompt="p"))
        assert not caught.value.retryable
        with pytest.raises(ModelMissingError, match="ollama pull nobody"):
            client.embed("nobody", ["text"])


def test_without_a_server_the_message_says_how_to_start_one() -> None:
    words = f"no Ollama server answers at '{NOBODY}': start it with 'ollama serve' or pass --ollama-host"
    with connected(NOBODY) as client:
        for ask in (lambda: client.generate(CALL), lambda: client.embed("m", ["t"]), client.models):
            with pytest.raises(ServerUnreachableError, match=words):
                ask()


def test_a_server_that_stays_silent_times_out() -> None:
    answered = threading.Event()

    def handler(_: object) -> tuple[int, object]:
        answered.wait(PATIENCE_S)
        return 200, SAID

    with ScriptedServer(handler) as server, connected(server.host, timeout_s=0.05) as client:
        with pytest.raises(CallTimeoutError, match=r"did not answer within 0\.05 s"):
            client.generate(CALL)
        answered.set()


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"kind": "status"}, ServerFaultError),
        ({"kind": "status", "status": 503}, ServerBusyError),
        ({"kind": "drop"}, BrokenReplyError),
        ({"kind": "garbage"}, BadReplyError),
        ({"kind": "garbage", "what": "empty"}, BadReplyError),
    ],
)
def test_each_fault_of_the_simulator_is_one_of_our_errors(
    server: EmbeddedServer, fault: dict[str, Any], expected: type[OllamaError]
) -> None:
    server.set_faults([fault | {"rate": 1.0}])
    with connected(server.host) as client:
        with pytest.raises(OllamaError) as caught:
            client.generate(Call(model="sim-target", prompt="p"))
        assert type(caught.value) is expected
        with pytest.raises(OllamaError) as caught:
            client.embed("sim-embed", ["text"])
        assert type(caught.value) is expected
    assert server.host in str(caught.value)
    assert caught.value.retryable


@pytest.mark.parametrize("status", [404, 500])
def test_what_a_host_says_of_its_failure_can_always_be_written_down(status: int) -> None:
    error = answer_to({"error": "half \ud83d a pair\nand a second line"}, status=status).error
    assert isinstance(error, OllamaError)
    assert len(str(error).encode("utf-8").splitlines()) == 1


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(depth):
        inner = {"in": inner}
    return inner


@pytest.mark.parametrize(
    "call",
    [
        Call(model="", prompt="p"),
        replace(CALL, prompt="half \ud83d a pair"),
        replace(CALL, prompt=cast("str", 5)),
        replace(CALL, format=nested(100_000)),
        *(
            replace(CALL, options=options)
            for options in ({"temperature": math.nan}, {"stop": {1, 2}}, {"num_predict": np.int64(3)})
        ),
    ],
)
def test_a_call_that_cannot_be_sent_is_a_bad_request(call: Call) -> None:
    with ScriptedServer(lambda _: (200, SAID)) as server, connected(server.host) as client:
        with pytest.raises(BadRequestError):
            client.generate(call)
        assert client.generate(CALL).text == "Yes."
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("options", "retryable"),
    [({}, True), ({"temperature": 0.8}, True), ({"temperature": 0}, False), ({"seed": 3}, False)],
)
def test_an_empty_reply_may_pass_only_where_an_equal_call_draws_anew(
    options: dict[str, float], *, retryable: bool
) -> None:
    with ScriptedServer(lambda _: (200, SAID | {"response": ""})) as server, connected(server.host) as client:
        with pytest.raises(BadReplyError, match="without a text") as caught:
            client.generate(replace(CALL, options=options))
        assert caught.value.retryable == retryable


def test_a_closed_client_cancels() -> None:
    client = OllamaClient(NOBODY)
    client.close()
    with pytest.raises(CallCancelledError):
        client.generate(CALL)


def test_only_what_the_call_names_is_sent() -> None:
    schema = {"type": "object"}
    with ScriptedServer(lambda _: (200, SAID)) as server, connected(server.host) as client:
        client.generate(CALL)
        client.generate(
            Call(model="m", prompt="p", system="s", format=schema, options={"seed": 3}, think=False)
        )
    plain = {"model": "m", "prompt": "p", "stream": False}
    more = {"system": "s", "format": schema, "options": {"seed": 3}, "think": False}
    assert server.bodies == [plain, plain | more]


def test_worked_examples_are_sent_as_turns_of_a_chat_before_the_prompt() -> None:
    said = {name: value for name, value in SAID.items() if name != "response"}
    message = {"role": "assistant", "content": "<think>Hm.</think>Yes.", "thinking": "Hm."}
    call = replace(CALL, examples=(("one", "1"), ("two", "2")), options={"seed": 1})
    with (
        ScriptedServer(lambda _: (200, said | {"message": message, "done_reason": "length"})) as server,
        connected(server.host) as client,
    ):
        replies = [client.generate(each) for each in (call, replace(call, system="Count."))]
    assert [(reply.text, reply.truncated) for reply in replies] == [("Yes.", True)] * 2
    shown = [("user", "one"), ("assistant", "1"), ("user", "two"), ("assistant", "2"), ("user", "p")]
    turns = [{"role": role, "content": content} for role, content in shown]
    sent = {"model": "m", "messages": turns, "options": {"seed": 1}, "stream": False, "tools": []}
    assert server.bodies == [
        sent,
        sent | {"messages": [{"role": "system", "content": "Count."}, *turns]},
    ]


def test_embeddings_are_unit_rows_in_the_order_of_the_texts(server: EmbeddedServer) -> None:
    with connected(server.host) as client:
        rows = client.embed("sim-embed", ["one text", "another", "one text"]).rows
        assert client.embed("sim-embed", []).rows.shape == (0, 0)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(rows[0], rows[2])
    assert not np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize(
    "embeddings", [[], [[1.0, 0.0]], [[1.0], [1.0, 2.0]], [[], []], [[1.0, None]], [[1e999, 1.0], [1.0, 1.0]]]
)
def test_embeddings_that_do_not_fit_the_texts_are_a_bad_reply(embeddings: object) -> None:
    said = {"model": "m", "embeddings": embeddings}
    with (
        ScriptedServer(lambda _: (200, said)) as server,
        connected(server.host) as client,
        pytest.raises(BadReplyError),
    ):
        client.embed("m", ["one", "two"])


def test_the_models_are_listed_with_their_tags(server: EmbeddedServer) -> None:
    with connected(server.host) as client:
        assert "sim-target:latest" in client.models()


def test_the_tag_latest_goes_without_saying() -> None:
    assert [short_name(name) for name in ("x", "x:latest", "x:7b", "a/x:latest")] == ["x", "x", "x:7b", "a/x"]


def test_a_key_that_no_header_can_hold_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_API_KEY", "schl\u00fcssel")
    with pytest.raises(ValueError, match="OLLAMA_API_KEY holds letters that no header can") as caught:
        OllamaClient("127.0.0.1")
    assert "schl" not in str(caught.value)
