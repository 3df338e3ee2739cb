"""Whatever a server sends is the reply or one named error: on both wires, streamed or whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    BrokenReplyError,
    CallTimeoutError,
    ModelMissingError,
    OllamaError,
    ServerBusyError,
    ServerFaultError,
    ServerOverloadedError,
    ServerUnreachableError,
)
from ollama_utils.reply_log import as_json, from_json
from ollama_utils.types import Call, Completion, Usage
from ollama_utils.wires import open_client
from simulator.process import EmbeddedServer
from tests.ollama_utils.hostile import CALL, WIRES, RawServer, client_of, http, outcome

CHAT = replace(CALL, examples=(("one", "1"),))
KINDS = ("ollama", "chat", "openai")
"""What is asked: /api/generate, /api/chat, /v1/chat/completions."""
COUNTS = {"total_duration": 3 * 10**9, "eval_duration": 10**9, "eval_count": 7}
USAGE = {
    "prompt_tokens": 34,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 24},
}
TIMINGS = {"prompt_ms": 1.5, "predicted_ms": 2.5}


def message(kind: str, text: object, thought: object = None, **more: object) -> dict[str, Any]:
    """A whole reply, or what a part of one says."""
    if kind == "openai":
        return {"content": text, "reasoning": thought, **more}
    if kind == "chat":
        return {"message": {"role": "assistant", "content": text, "thinking": thought}, **more}
    return {"model": "m", "response": text, "thinking": thought, **more}


def whole(kind: str, text: object, thought: object = None, reason: str = "stop") -> bytes:
    """A reply that is sent at once."""
    if kind == "openai":
        choice = {"index": 0, "message": message(kind, text, thought), "finish_reason": reason}
        return json.dumps({"choices": [choice], "usage": USAGE, "timings": TIMINGS}).encode()
    return json.dumps(
        message(kind, text, thought, done=True, done_reason=reason, **COUNTS)
    ).encode()


def chunk(delta: object, reason: str | None = None, **more: object) -> dict[str, Any]:
    """One part of OpenAI's."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}


def events(parts: Iterable[object], end: bytes = b"data: [DONE]\n\n") -> bytes:
    """A stream of OpenAI's."""
    return b"".join(b"data: %s\n\n" % json.dumps(part).encode() for part in parts) + end


def lines(parts: Iterable[object]) -> bytes:
    """A stream of Ollama's."""
    return b"".join(json.dumps(part).encode() + b"\n" for part in parts)


def streamed(kind: str, texts: list[str], thoughts: list[str], reason: str = "stop") -> bytes:
    """The same in parts."""
    if kind == "openai":
        deltas = [{"reasoning": each} for each in thoughts] + [{"content": each} for each in texts]
        usage = {"usage": USAGE, "timings": TIMINGS}
        return events([*map(chunk, deltas), chunk({}, reason), {"choices": [], **usage}])
    parts = [message(kind, "", each, done=False) for each in thoughts]
    parts += [message(kind, each, done=False) for each in texts]
    return lines([*parts, message(kind, "", done=True, done_reason=reason, **COUNTS)])


def reply_to(kind: str, body: bytes, *, stream: bool, status: str = "200 OK") -> Any:
    """What a client makes of a body: a completion or an error."""
    wire, call = (
        ("openai", CALL) if kind == "openai" else ("ollama", CHAT if kind == "chat" else CALL)
    )
    return outcome(wire, http(status, body), lambda client: client.generate(call, stream=stream))


def but_for_the_clock(completion: Completion) -> Completion:
    """The same, without the total of our own clock."""
    usage = completion.usage and replace(completion.usage, total_s=0.0)
    return replace(completion, usage=usage)


texts = st.text(st.characters(exclude_categories=["Cs"]))


@settings(max_examples=30)
@given(
    kind=st.sampled_from(KINDS),
    said=st.lists(texts),
    thoughts=st.lists(texts),
    reason=st.sampled_from(["stop", "length"]),
)
@example(kind="ollama", said=["<thi", "nk>Hm.</th", "ink>\nYes."], thoughts=[], reason="stop")
@example(kind="openai", said=["\u2028\x85 \r\n", " x"], thoughts=["Hm."], reason="length")
def test_the_parts_of_a_stream_are_the_reply_that_is_sent_at_once(
    kind: str, said: list[str], thoughts: list[str], reason: str
) -> None:
    at_once = whole(kind, "".join(said), "".join(thoughts) or None, reason)
    replies = [
        reply_to(kind, at_once, stream=False),
        reply_to(kind, at_once, stream=True),  # by a server that does not stream
        reply_to(kind, streamed(kind, said, thoughts, reason), stream=True),
    ]
    if isinstance(replies[0], OllamaError):
        assert [str(each).partition(" replied ")[2] for each in replies][1:] == [
            str(replies[0]).partition(" replied ")[2]
        ] * 2
        return
    first, *others = map(but_for_the_clock, replies)
    assert others == [first, first]
    assert first.truncated == (reason == "length")
    if "think>" not in "".join(said):
        assert first.text == "".join(said)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_has_its_cost(kind: str) -> None:
    expected = Usage(completion_tokens=7, decode_s=1.0, total_s=3.0)
    if kind == "openai":
        expected = Usage(
            prompt_tokens=34,
            completion_tokens=7,
            cached_tokens=24,
            prefill_s=0.0015,
            decode_s=0.0025,
        )
    usage = reply_to(kind, whole(kind, "Yes."), stream=False).usage
    assert replace(usage, total_s=expected.total_s) == expected
    assert usage.queue_s == pytest.approx(
        max(0.0, usage.total_s - usage.prefill_s - usage.decode_s)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", "Yes."),
        (" \n<think></think>Yes.", "Yes."),
        ("Hmm, cannot help?\n</think>\n\nYes.", "Yes."),  # the opening tag is in the template
        ("Write <think>so</think>.", "Write <think>so</think>."),
        ("A <think> tag opens.", "A <think> tag opens."),
    ],
)
def test_thoughts_at_the_start_are_no_part_of_the_text(kind: str, text: str, kept: str) -> None:
    assert reply_to(kind, whole(kind, text), stream=False).text == kept


OLLAMA_FAILED = lines([message("ollama", "Ye"), {"error": "runner has stopped"}])
DEEP = b"[" * 100_000
BAD: list[tuple[str, bool | None, bytes, str]] = [
    # what is asked, whether it is streamed (None: both), the body, words of the BadReplyError
    *((kind, None, whole(kind, ""), "without a text") for kind in KINDS),
    *((kind, None, whole(kind, " \n"), "without a text") for kind in KINDS),
    *((kind, None, whole(kind, "", "Hm."), "only thought") for kind in KINDS),
    *((kind, None, whole(kind, "<think>Hm."), "only thought") for kind in KINDS),
    *((kind, None, whole(kind, "Hm.</think>\n"), "only thought") for kind in KINDS),
    *((kind, None, whole(kind, "half \ud83d a pair"), "not valid Unicode") for kind in KINDS),
    *((kind, None, whole(kind, odd), "unreadable") for kind in KINDS for odd in (5, {"a": 1})),
    *(
        (kind, None, body, "unreadable")
        for kind in KINDS
        for body in (b"", b"\n\n", b"<html>", b"\xff\xfe", b"[]", b"5", b"null", DEEP, b"9" * 5000)
    ),
    ("ollama", None, lines([message("ollama", "Yes.", done=False)]), "broke off"),
    ("ollama", None, b'{"response": "Yes.", "done": "perhaps"}', "unreadable"),
    ("ollama", True, lines([message("ollama", "Ye")]) + b'{"response": "s.', "unreadable"),
    ("ollama", True, lines([message("ollama", "Ye"), 5]), "unreadable"),
    ("ollama", True, lines([message("ollama", "Ye"), {"message": 5}]), "unreadable"),
    ("ollama", True, lines([message("ollama", "Ye")]) + DEEP, "unreadable"),
    ("openai", None, b'{"choices": []}', "unreadable"),
    ("openai", None, b'{"choices": [5]}', "unreadable"),
    ("openai", None, b'{"choices": [{"message": 5}]}', "unreadable"),
    ("openai", True, events([chunk({"content": "Ye"})], end=b""), "broke off"),
    ("openai", True, events([chunk({"content": "Ye"})], end=b'data: {"choices"'), "unreadable"),
    ("openai", True, events([chunk({"content": 5})]), "unreadable"),
    ("openai", True, events([{"choices": 5}]), "unreadable"),
    ("openai", True, events([chunk({"content": "Yes."}, usage=5)]), "unreadable"),
    ("openai", True, b"data: [DONE]\n\n", "without a text"),
]


@pytest.mark.parametrize(("kind", "stream", "body", "words"), BAD)
def test_a_reply_that_cannot_be_used_is_a_bad_reply(
    kind: str, *, stream: bool | None, body: bytes, words: str
) -> None:
    for each in (True, False) if stream is None else (stream,):
        error = reply_to(kind, body, stream=each)
        assert isinstance(error, BadReplyError), body
        assert words in str(error)


STATUSES: list[tuple[str, int, object, type[OllamaError]]] = [
    ("ollama", 404, "model 'm' not found", ModelMissingError),
    ("ollama", 404, 'model "m" not found, try pulling it first', ModelMissingError),
    ("openai", 404, {"message": "The model `m` does not exist."}, ModelMissingError),
    ("ollama", 500, 'option "temperature" must be of type float32', BadRequestError),
    *(
        (kind, status, text, expected)
        for kind in KINDS
        for status, text, expected in [
            (404, "File Not Found", BadRequestError),
            (400, {"message": "exceeds the available context size"}, BadRequestError),
            (401, "unauthorized", BadRequestError),
            (408, "late", CallTimeoutError),
            (429, "too many requests", ServerBusyError),
            (500, {"message": "Context size has been exceeded."}, ServerOverloadedError),
            (500, "model runner has unexpectedly stopped", ServerFaultError),
            (500, 5, ServerFaultError),
            (501, "This server does not support embeddings.", BadRequestError),
            (502, "bad gateway", ServerUnreachableError),
            (503, "server busy, please try again.", ServerBusyError),
            (101, "Switching", BadRequestError),
        ]
    ),
]


@pytest.mark.parametrize(("kind", "status", "text", "expected"), STATUSES)
def test_each_status_has_its_error_with_the_words_of_the_server(
    kind: str, status: int, text: object, expected: type[OllamaError]
) -> None:
    wire = "openai" if kind == "openai" else "ollama"
    for body in ({"error": text}, {"detail": text}):
        for stream in (False, True):
            error = reply_to(kind, json.dumps(body).encode(), stream=stream, status=f"{status} No")
            assert type(error) is expected
            assert error.retryable == expected.retryable
    words = text["message"] if isinstance(text, dict) else str(text)
    key = {"openai": "OPENAI_API_KEY", "ollama": "OLLAMA_API_KEY"}[wire]
    assert status == 101 or expected is ModelMissingError or words in str(error)
    assert (key in str(error)) == (status == 401)
    assert wire == "ollama" or "ollama" not in str(error).lower()


@pytest.mark.parametrize(
    ("kind", "part", "expected", "words"),
    [
        ("ollama", {"error": "runner has stopped"}, ServerFaultError, "runner has stopped"),
        ("chat", {"error": 'option "seed" must be of type integer'}, BadRequestError, "option"),
        ("ollama", {"error": {"message": "no slot"}}, ServerFaultError, "no slot"),
        ("openai", {"error": {"code": 400, "message": "long"}}, BadRequestError, "400: 'long'"),
        ("openai", {"error": {"code": "x", "message": "odd"}}, ServerFaultError, "500: 'odd'"),
        (
            "openai",
            {"error": {"message": "Context size has been exceeded."}},
            ServerOverloadedError,
            "",
        ),
        ("openai", {"error": "plain"}, ServerFaultError, "plain"),
    ],
)
def test_a_failure_in_mid_stream_is_the_error_that_a_status_would_have_been(
    kind: str, part: object, expected: type[OllamaError], words: str
) -> None:
    first = chunk({"content": "Ye"}) if kind == "openai" else message(kind, "Ye", done=False)
    body = events([first, part]) if kind == "openai" else lines([first, part])
    error = reply_to(kind, body, stream=True)
    assert type(error) is expected
    assert words in str(error)
    older = b'error: {"error": {"code": 500, "message": "oops"}}\n\n'  # llama.cpp's
    assert isinstance(reply_to("openai", older, stream=True), ServerFaultError)


PIECES = [
    *(
        b"[",
        b"{",
        b"}",
        b"]",
        b'"',
        b",",
        b":",
        b"null",
        b"true",
        b"[]",
        b"{}",
        b"5",
        b'"x"',
        b"\n",
    ),
    *(b"1e999", b"-1", b"9" * 50, b"9" * 5000, b"NaN", b"\xff", b"\x00", b"\\ud800", b"data: "),
    *(b'{"error": 5}', b"\r\n", DEEP),
]
HEADERS = [
    *(b"Transfer-Encoding: chunked", b"Content-Length: 5", b"Content-Length: -1", b"X\xff: y"),
    *(b"Retry-After: soon", b"Location: \xff", b"Content-Encoding:", b" folded", b"no colon"),
]
SEEDS = [
    *(whole(kind, "Yes.") for kind in KINDS),
    *(streamed(kind, ["Ye", "s."], ["Hm."]) for kind in KINDS),
    b'{"embeddings": [[1.0]], "models": [{"name": "m", "model": "m", "digest": "d", "size": 5}]}',
    b'{"data": [{"index": 0, "embedding": [1.0], "id": "m", "meta": {"n": 5}}], "total_slots": 4}',
]
ASK: list[Callable[[Any], object]] = [
    lambda client: client.generate(CALL),
    lambda client: client.generate(CHAT, stream=True),
    lambda client: client.embed("m", ["a"]),
    lambda client: client.models(),
    lambda client: client.inventory(),
    lambda client: client.slots(),
]


@st.composite
def odd_replies(draw: st.DrawFn) -> bytes:
    """A reply with some of its bytes replaced, in its body and now and then in its head."""
    body = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(body)))
        cut = start + draw(st.sampled_from([0, 0, 1, 2, 5, 20]))
        body[start:cut] = draw(st.sampled_from(PIECES) | st.binary(max_size=4))
    headers = draw(st.lists(st.sampled_from(HEADERS), max_size=2))
    if draw(st.booleans()):
        headers.append(b"Content-Length: %d" % len(body))
    status = draw(
        st.sampled_from([b"200 OK", b"200 OK", b"204 No", b"307 Go", b"404", b"500 No", b"999 Odd"])
    )
    return b"\r\n".join([b"HTTP/1.1 " + status, *headers, b"", bytes(body)])


@settings(max_examples=300)
@given(wire=st.sampled_from(WIRES), ask=st.sampled_from(ASK), answer=odd_replies() | st.binary())
def test_any_bytes_are_a_reply_that_can_be_kept_or_an_error_in_one_line(
    wire: str, ask: Callable[[Any], object], answer: bytes
) -> None:
    found = outcome(wire, answer, ask)
    if isinstance(found, Completion):
        assert from_json(as_json(found)).usage == found.usage


@pytest.mark.parametrize("value", ["-1", "1" + "0" * 400, "1e999", "NaN", "null"])
def test_a_count_that_cannot_be_one_counts_as_absent(value: str) -> None:
    for kind, field, number in (
        ("ollama", "total_duration", 3 * 10**9),
        ("openai", "prompt_tokens", 34),
    ):
        body = whole(kind, "Yes.").replace(
            f'"{field}": {number}'.encode(), f'"{field}": {value}'.encode()
        )
        found = reply_to(kind, body, stream=True)
        if isinstance(found, Completion):
            assert found.usage is not None
            assert getattr(found.usage, {"ollama": "total_s"}.get(kind, "prompt_tokens")) == 0
        else:
            assert isinstance(found, BadReplyError)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "rows",
    [
        "[]",
        "[[1.0, 0.0]]",
        "[[1.0], [1.0, 2.0]]",
        "[[], []]",
        "[[1.0, null], [1, 2]]",
        "5",
        "[[[1]]]",
    ]
    + [f"[[1.0, {odd}], [1, 2]]" for odd in ("1e999", "NaN", "{}", "9" * 400)],
)
def test_embeddings_that_do_not_fit_the_texts_are_a_bad_reply(wire: str, rows: str) -> None:
    body = f'{{"embeddings": {rows}}}'
    if wire == "openai":
        listed = json.loads(rows)
        data = (
            [{"index": place, "embedding": row} for place, row in enumerate(listed)]
            if listed != 5
            else 5
        )
        body = json.dumps({"data": data})
    found = outcome(
        wire, http("200 OK", body.encode()), lambda client: client.embed("m", ["a", "b"])
    )
    assert isinstance(found, BadReplyError)


@pytest.mark.parametrize("indices", [[0, 0], [1, 2], [0, -1], [0, 10**30], [0, None], [0, [1]]])
def test_rows_that_are_not_numbered_by_their_texts_are_a_bad_reply(indices: list[Any]) -> None:
    data = json.dumps(
        {"data": [{"index": index, "embedding": [1.0]} for index in indices]}
    ).encode()
    found = outcome("openai", http("200 OK", data), lambda client: client.embed("m", ["a", "b"]))
    assert isinstance(found, BadReplyError)


@pytest.mark.parametrize("wire", WIRES)
def test_a_long_reply_is_cut_at_the_characters_that_are_kept_and_flagged(wire: str) -> None:
    body = whole(wire, "word " * 20)
    with RawServer(http("200 OK", body)) as server:
        host = f"openai:{server.host}" if wire == "openai" else server.host
        with closing(open_client(host, timeout_s=20, max_reply_chars=11)) as client:
            reply = client.generate(CALL)
        assert (reply.text, reply.truncated) == ("word word w", True)
        with pytest.raises(ValueError, match="max_reply_chars must be at least 1, got 0"):
            open_client(host, timeout_s=20, max_reply_chars=0)


@pytest.mark.parametrize(
    ("options", "retryable"), [({}, True), ({"temperature": 0}, False), ({"seed": 3}, False)]
)
def test_an_empty_reply_may_pass_only_where_an_equal_call_is_drawn_anew(
    options: dict[str, float], *, retryable: bool
) -> None:
    call = replace(CALL, options=options)
    error = outcome(
        "ollama", http("200 OK", whole("ollama", "")), lambda client: client.generate(call)
    )
    assert isinstance(error, BadReplyError)
    assert error.retryable == retryable


FAULTS: list[tuple[dict[str, Any], type[OllamaError]]] = [
    ({"kind": "status"}, ServerFaultError),
    ({"kind": "status", "status": 503}, ServerBusyError),
    ({"kind": "hang", "at": "body"}, CallTimeoutError),
    *(({"kind": "drop", "at": at}, BrokenReplyError) for at in ("start", "body", "end")),
    *(
        ({"kind": "garbage", "what": what}, BadReplyError)
        for what in ("cut", "html", "empty", "wrong_type")
    ),
]


@pytest.mark.parametrize(("fault", "expected"), FAULTS)
@pytest.mark.parametrize("wire", WIRES)
def test_a_fault_is_the_same_error_streamed_and_whole(
    server: EmbeddedServer, wire: str, fault: dict[str, Any], expected: type[OllamaError]
) -> None:
    server.set_faults([fault | {"rate": 1}])
    with closing(client_of(wire, server.host, 0.2 if fault["kind"] == "hang" else 20)) as client:
        for stream in (False, True):
            with pytest.raises(expected) as caught:
                client.generate(Call(model="sim-target", prompt="What is tea?"), stream=stream)
            assert caught.value.retryable
            assert server.host in str(caught.value)
