"""Replies in parts: joined to what the same reply is when it comes whole, errors included."""

from __future__ import annotations

import json
import re
import socket
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils import http as transport
from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    OllamaError,
    ServerFaultError,
    ServerOverloadedError,
)
from ollama_utils.streams import join_events, join_lines
from ollama_utils.types import Call, Completion, Usage
from simulator.process import EmbeddedServer
from tests.ollama_utils.hostile import CALL, WIRES, RawServer, client_of, http
from tests.ollama_utils.scripted import ScriptedServer

CHAT = replace(CALL, examples=(("one", "1"),))
NDJSON, SSE = "application/x-ndjson", "text/event-stream"
COUNTS = {"total_duration": 3 * 10**9, "eval_duration": 10**9, "eval_count": 7, "prompt_eval_count": 5}
USAGE = {"prompt_tokens": 34, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 24}}
TIMINGS = {"prompt_ms": 1.5, "predicted_ms": 2.5}
MIB = 2**20


def lines(parts: Sequence[object]) -> bytes:
    """A stream of Ollama's."""
    return b"".join(json.dumps(part).encode() + b"\n" for part in parts)


def events(parts: Sequence[object], *, end: bytes = b"data: [DONE]\n\n") -> bytes:
    """A stream of OpenAI's."""
    return b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts) + end


def chunk(delta: object, reason: str | None = None, **more: object) -> dict[str, Any]:
    """One part of OpenAI's."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}


def of(text: str, **more: object) -> dict[str, Any]:
    """One part of `/api/generate`."""
    return {"model": "m", "response": text, "done": False, **more}


def answered(
    wire: str, answer: bytes | Callable[[socket.socket], None], *, stream: bool = True, call: Call = CALL
) -> Completion:
    """What a client makes of the same bytes; an error stands in the completion, in one short line."""
    with RawServer(answer) as server, closing(client_of(wire, server.host)) as client:
        try:
            return client.generate(call, stream=stream)
        except OllamaError as error:
            completion = Completion(text="", error=error)
    assert str(completion.error).isprintable()
    assert len(str(completion.error)) < 800
    return completion


def joined(wire: str, body: bytes, call: Call = CALL, status: str = "200 OK") -> Completion:
    """What comes of a stream."""
    return answered(wire, http(status, body, Content_Type=SSE if wire == "openai" else NDJSON), call=call)


def whole(wire: str, body: object, call: Call = CALL, *, stream: bool = False) -> Completion:
    """What comes of a reply that comes whole."""
    answer = http("200 OK", json.dumps(body).encode(), Content_Type="application/json")
    return answered(wire, answer, stream=stream, call=call)


def but_for_the_clock(completion: Completion) -> Completion:
    """The same, without the total of our own clock."""
    usage = completion.usage and replace(completion.usage, total_s=0.0)
    return replace(completion, usage=usage)


OLLAMA_TEXTS: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    ([of("Ye"), of("s."), of("", done=True)], {"response": "Yes."}),
    ([of("Ye"), of("s."), of("", done=True, done_reason="length", **COUNTS)], {"response": "Yes."}),
    ([of("", thinking="H"), of("", thinking="m."), of("Yes."), of("", done=True)], {"response": "Yes."}),
    ([of("<thi"), of("nk>Hm.</th"), of("ink>\nYes."), of("", done=True)], {"response": "Yes."}),
    ([of("Yes.", done=True, **COUNTS)], {"response": "Yes."}),
    ([of("é😀"), of("\u2028\x85 "), of("x", done=True)], {"response": "é😀\u2028\x85 x"}),
    ([of("\r\n"), of(" \n"), of(" Yes", done=True)], {"response": "\r\n \n Yes"}),
]


@pytest.mark.parametrize(("parts", "said"), OLLAMA_TEXTS, ids=range(len(OLLAMA_TEXTS)))
def test_the_lines_of_ollama_join_to_the_whole_reply(
    parts: list[dict[str, Any]], said: dict[str, Any]
) -> None:
    expected = whole("ollama", parts[-1] | said)
    assert expected.text == said["response"]
    assert joined("ollama", lines(parts)) == expected
    assert joined("ollama", lines(parts).replace(b"\n", b"\r\n\n")) == expected
    chats = [
        {name: value for name, value in part.items() if name not in {"response", "thinking"}}
        | {"message": {"role": "assistant", "content": part["response"], "thinking": part.get("thinking")}}
        for part in parts
    ]
    assert joined("ollama", lines(chats), CHAT) == expected


OPENAI_TEXTS: list[list[dict[str, Any]]] = [
    [chunk({"role": "assistant", "content": None}), chunk({"content": "Yes."}), chunk({}, "stop")],
    [chunk({"content": "Ye"}), chunk({"content": "s."}, "stop"), {"choices": [], "usage": USAGE}],
    [chunk({"content": "Yes."}), chunk({}, "length", usage=USAGE, timings=TIMINGS)],
    [chunk({"reasoning_content": "Hm."}), chunk({"content": "Yes."}), chunk({}, "stop")],
    [chunk({"reasoning": "Hm."}, usage=None), chunk({"content": "Yes."}), chunk({}, "stop")],
    [chunk({"content": "<think>Hm.</thi"}), chunk({"content": "nk>Yes."}), chunk({}, "stop")],
    [chunk({"content": "Yes."}), {"choices": [{"index": 1, "delta": {"content": "No."}}]}, chunk({}, "stop")],
]


@pytest.mark.parametrize("parts", OPENAI_TEXTS, ids=range(len(OPENAI_TEXTS)))
def test_the_events_of_openai_join_to_the_whole_reply(parts: list[dict[str, Any]]) -> None:
    more = {name: part[name] for part in parts for name in ("usage", "timings") if part.get(name)}
    reason = next(part["choices"][0]["finish_reason"] for part in reversed(parts) if part["choices"])
    choice = {"index": 0, "message": {"content": "Yes."}, "finish_reason": reason}
    expected = but_for_the_clock(whole("openai", {"choices": [choice], **more}))
    assert expected.text == "Yes."
    sent = events(parts)
    for body in (
        sent,
        events(parts, end=b""),
        sent.replace(b"\n", b"\r\n"),
        sent.replace(b"data: ", b"data:"),
        b": a comment\n\nevent: message\nid: 1\n" + sent,
    ):
        assert but_for_the_clock(joined("openai", body)) == expected


def test_a_stream_is_asked_for_and_its_usage_with_it() -> None:
    with ScriptedServer(lambda _: (200, of("Yes.", done=True))) as server:
        with closing(client_of("ollama", server.host)) as client:
            client.generate(Call(model="m", prompt="p"), stream=True)
        assert server.bodies == [{"model": "m", "prompt": "p", "stream": True}]
    reply = {"choices": [{"message": {"content": "Yes."}}]}
    with ScriptedServer(lambda _: (200, reply)) as server:
        with closing(client_of("openai", server.host)) as client:
            client.generate(Call(model="m", prompt="p"), stream=True)
        asked = {"model": "m", "messages": [{"role": "user", "content": "p"}]}
        assert server.bodies == [asked | {"stream": True, "stream_options": {"include_usage": True}}]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_server_that_ignores_the_wish_and_answers_whole_is_understood(indent: int | None) -> None:
    choice = {"index": 0, "message": {"content": "Yes.", "reasoning": "Hm."}, "finish_reason": "length"}
    bodies = {"ollama": of("Yes.", done=True, **COUNTS), "openai": {"choices": [choice], "usage": USAGE}}
    for wire, body in bodies.items():
        for kind in ("application/json", NDJSON, SSE):
            answer = http("200 OK", json.dumps(body, indent=indent).encode(), Content_Type=kind)
            came = answered(wire, answer)
            assert but_for_the_clock(came) == but_for_the_clock(whole(wire, body))
            assert came.text == "Yes."


ERRORS: list[tuple[str, object, type[OllamaError], str]] = [
    ("ollama", "runner has stopped", ServerFaultError, "answered 500: 'runner has stopped'"),
    ("ollama", 'option "seed" must be of type integer', BadRequestError, "option"),
    ("ollama", {"message": "no slot"}, ServerFaultError, "no slot"),
    ("ollama", ["no slot"], ServerFaultError, "no slot"),
    ("openai", {"code": 500, "message": "Compute error."}, ServerFaultError, "Compute error."),
    ("openai", {"code": 500, "message": "Context size has been exceeded."}, ServerOverloadedError, "dropped"),
    ("openai", {"code": 400, "message": "too long"}, BadRequestError, "answered 400: 'too long'"),
    ("openai", {"code": 10**400, "message": "odd"}, ServerFaultError, "answered 500: 'odd'"),
    ("openai", {"code": "x", "message": "odd"}, ServerFaultError, "answered 500: 'odd'"),
    ("openai", "plain", ServerFaultError, "answered 500: 'plain'"),
]


@pytest.mark.parametrize(("wire", "said", "expected", "words"), ERRORS, ids=range(len(ERRORS)))
@pytest.mark.parametrize("begun", [False, True])
def test_an_error_in_mid_stream_is_the_error_that_a_whole_reply_would_have_been(
    wire: str,
    said: object,
    expected: type[OllamaError],
    words: str,
    begun: bool,  # noqa: FBT001 - a parameter of pytest's
) -> None:
    part = of("Ye") if wire == "ollama" else chunk({"content": "Ye"})
    write = lines if wire == "ollama" else events
    error = joined(wire, write([part] * begun + [{"error": said}])).error
    assert type(error) is expected
    assert words in str(error)


def test_llama_cpp_s_older_field_for_an_error_is_read() -> None:
    body = events([chunk({"content": "Ye"})], end=b'error: {"error": {"code": 500, "message": "oops"}}\n\n')
    error = joined("openai", body).error
    assert type(error) is ServerFaultError
    assert "oops" in str(error)


BROKEN: list[tuple[str, bytes, str]] = [
    ("ollama", lines([of("Yes.")]), "broke off"),
    ("ollama", lines([of("Yes."), of("")]), "broke off"),
    ("ollama", b"", "unreadable"),
    ("ollama", b"\n\n", "unreadable"),
    ("ollama", lines([of("Ye")]) + b'{"response": "s.', "unreadable"),
    ("ollama", lines([of("Ye"), 5]), "unreadable"),
    ("ollama", lines([[of("Ye")]]), "unreadable"),
    ("ollama", lines([of("Ye"), {"response": 5}, of("", done=True)]), "unreadable"),
    ("ollama", lines([of("Ye"), {"message": 5}, of("", done=True)]), "unreadable"),
    ("ollama", lines([of("Ye"), of("", done="perhaps")]), "unreadable"),
    ("ollama", lines([of("Ye")]) + b"[" * 100_000 + b"\n", "unreadable"),
    ("ollama", lines([of("Ye")]) + b"9" * 5000 + b"\n", "unreadable"),
    ("ollama", lines([of("Ye")]) + b"\xff\n", "unreadable"),
    ("ollama", lines([of("half \ud83d"), of(" a pair", done=True)]), "not valid Unicode"),
    ("ollama", lines([of(""), of("", done=True)]), "without a text"),
    ("ollama", lines([of("", thinking="Hm."), of("", done=True)]), "only thought"),
    ("ollama", lines([of("", done=True, eval_count="many")]), "unreadable"),
    ("openai", events([chunk({"content": "Ye"})], end=b""), "broke off"),
    ("openai", b"", "unreadable"),
    ("openai", b": only a comment\n\n", "unreadable"),
    ("openai", b"data: [DONE]\n\n", "without a text"),
    ("openai", events([chunk({"content": "Ye"})], end=b'data: {"choices"'), "unreadable"),
    ("openai", events([5]), "unreadable"),
    ("openai", events([{"choices": 5}]), "unreadable"),
    ("openai", events([{"choices": [5]}]), "unreadable"),
    ("openai", events([chunk(5)]), "unreadable"),
    ("openai", events([chunk({"content": 5})]), "unreadable"),
    ("openai", events([chunk({"content": "Yes."}, usage=5)]), "unreadable"),
    ("openai", b"data: " + b"[" * 100_000 + b"\n\n", "unreadable"),
    ("openai", events([chunk({"content": ""}, "stop")]), "without a text"),
    ("openai", events([chunk({"reasoning": "Hm."}, "stop")]), "only thought"),
]


@pytest.mark.parametrize(("wire", "body", "words"), BROKEN, ids=range(len(BROKEN)))
def test_a_stream_that_cannot_be_used_is_a_bad_reply(wire: str, body: bytes, words: str) -> None:
    error = joined(wire, body).error
    assert isinstance(error, BadReplyError)
    assert words in str(error)


@pytest.mark.parametrize("wire", WIRES)
def test_a_status_other_than_2xx_is_its_error_streamed_or_not(wire: str) -> None:
    for status in ("404 Not Found", "429 Slow", "500 No", "307 Moved"):
        answer = http(status, b'{"error": "no"}')
        errors = [answered(wire, answer, stream=stream).error for stream in (False, True)]
        assert type(errors[0]) is type(errors[1])
        assert re.sub("[0-9]{5}", "", str(errors[0])) == re.sub("[0-9]{5}", "", str(errors[1]))  # the ports


def test_odd_counts_in_the_last_part_count_as_absent() -> None:
    last = chunk({"content": "Yes."}, "stop", usage={"completion_tokens": 10**400}, timings={"prompt_ms": -1})
    completion = joined("openai", events([last]))
    assert but_for_the_clock(completion) == Completion(text="Yes.", usage=Usage())


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_is_cut_where_it_is_too_long_and_flagged(monkeypatch: pytest.MonkeyPatch, wire: str) -> None:
    monkeypatch.setattr(transport, "MOST_STREAMED", 1000)
    write = lines if wire == "ollama" else events
    parts = [of("word ") if wire == "ollama" else chunk({"content": "word "})] * 100
    sent = write(parts)
    kept = sent[:1000].rpartition(b"\n")[0].count(b"word ")
    for answer in (
        http("200 OK", sent, Content_Type=SSE if wire == "openai" else NDJSON),
        b"HTTP/1.1 200 OK\r\nContent-Type: %s; charset=utf-8\r\n\r\n"
        % (SSE if wire == "openai" else NDJSON).encode()
        + sent,
    ):
        completion = answered(wire, answer)
        assert (completion.text, completion.truncated, completion.error) == ("word " * kept, True, None)


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_without_an_end_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch, wire: str) -> None:
    monkeypatch.setattr(transport, "MOST_STREAMED", 4 * MIB)
    part = lines([of("word ")]) if wire == "ollama" else events([chunk({"content": "word "})], end=b"")
    block = part * (2**16 // len(part))
    frame = b"%x\r\n" % len(block) + block + b"\r\n"

    def pour(connection: socket.socket) -> None:
        kind = SSE if wire == "openai" else NDJSON
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        while True:
            connection.sendall(frame)

    tracemalloc.start()
    try:
        completion = answered(wire, pour)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert completion.truncated
    assert completion.text.startswith("word word")
    assert len(completion.text) <= 10**6
    assert peak < 24 * MIB


texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(texts, min_size=1), st.lists(texts))
def test_any_parts_join_to_the_text_they_are_parts_of(said: list[str], thought: list[str]) -> None:
    parts = [of("", thinking=text) for text in thought] + [of(text) for text in said]
    reply = join_lines(lines([*parts, of("", done=True)]), cut=False)
    assert (reply["response"], reply["thinking"]) == ("".join(said), "".join(thought) or None)
    chunks = [chunk({"reasoning": text}) for text in thought] + [chunk({"content": text}) for text in said]
    message = join_events(events([*chunks, chunk({}, "stop")]), cut=False)["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("".join(said), "".join(thought))


SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}


@pytest.mark.parametrize(
    "call",
    [
        Call(model="sim-target", prompt="What is rain?", options={"seed": 1}),
        Call(model="sim-target", prompt="And?", examples=(("a", "b"), ("c", "d")), options={"seed": 2}),
        Call(model="sim-target", prompt="Why?", options={"seed": 1, "num_predict": 9}),
        Call(model="sim-target", prompt="Why?", options={"temperature": 0, "stop": ["e"]}),
        Call(model="sim-judge", prompt="Rate it.", format=SCHEMA, options={"temperature": 0}),
        Call(model="sim-thinker", prompt="Why?", options={"temperature": 0}),
    ],
)
@pytest.mark.parametrize("wire", WIRES)
def test_the_simulator_s_replies_are_the_same_streamed_and_whole(
    server: EmbeddedServer, wire: str, call: Call
) -> None:
    with closing(client_of(wire, server.host)) as client:
        replies = [client.generate(call, stream=stream) for stream in (False, True)]
    assert replies[0].text == replies[1].text
    assert replies[0].truncated == replies[1].truncated
    counts = [reply.usage and (reply.usage.prompt_tokens, reply.usage.completion_tokens) for reply in replies]
    assert counts[0] == counts[1]
    assert all(reply.usage is not None and reply.usage.decode_s > 0 for reply in replies)


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "status"},
        {"kind": "status", "status": 503},
        *({"kind": "drop", "at": at} for at in ("start", "body", "end")),
        *({"kind": "garbage", "what": what} for what in ("cut", "html", "empty", "wrong_type")),
    ],
)
@pytest.mark.parametrize("wire", WIRES)
def test_a_fault_is_the_same_error_streamed_and_whole(
    server: EmbeddedServer, wire: str, fault: dict[str, Any]
) -> None:
    server.set_faults([fault | {"rate": 1}])
    with closing(client_of(wire, server.host)) as client:
        found = []
        for stream in (False, True):
            with pytest.raises(OllamaError) as caught:
                client.generate(Call(model="sim-target", prompt="What is tea?"), stream=stream)
            found.append(type(caught.value))
    assert found[0] is found[1]
