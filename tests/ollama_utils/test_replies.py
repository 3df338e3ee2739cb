"""Whatever a server sends is the reply or one named error: on both wires, streamed or whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    CallTimeoutError,
    CutReplyError,
    ModelMissingError,
    OllamaError,
    PromptTooLongError,
    ServerBusyError,
    ServerFaultError,
    ServerOverloadedError,
    ServerUnreachableError,
)
from ollama_utils.reply_log import as_json, from_json
from ollama_utils.thoughts import MARKS
from ollama_utils.types import Completion, Usage
from ollama_utils.wires import open_client
from tests.ollama_utils.hostile import (
    CALL,
    CHAT,
    KINDS,
    WIRES,
    RawServer,
    chunk,
    events,
    http,
    lines,
    message,
    outcome,
    reply_to,
    streamed,
    whole,
)


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
    text = "".join(said)
    if not any(mark in text for marks in MARKS for mark in marks):
        assert first.text == text


def test_a_reply_has_its_cost() -> None:
    ours = reply_to("ollama", whole("ollama", "Yes."), stream=False).usage
    assert ours == Usage(completion_tokens=7, decode_s=1.0, total_s=3.0)
    assert ours.queue_s == 2.0
    odd = whole("openai", "Yes.").replace(b'"completion_tokens": 7', b'"completion_tokens": -1')
    for body, completion_tokens in ((whole("openai", "Yes."), 7), (odd, 0)):
        found = reply_to("openai", body, stream=False)
        assert but_for_the_clock(found).usage == Usage(
            prompt_tokens=34,
            completion_tokens=completion_tokens,
            cached_tokens=24,
            prefill_s=0.0015,
            decode_s=0.0025,
        )


def text_of(text: object) -> dict[str, object]:
    """A part of a message."""
    return {"type": "text", "text": text}


HM = {"type": "thinking", "thinking": [text_of("Hm. No.")]}
SHAPES: list[tuple[str, Any, str, Any]] = [
    # What is asked, the message (or an Ollama text), why it ended, and the text or the error;
    # "cut" and "filtered" replies are flagged so.
    *((kind, "Yes.", reason, "Yes.") for kind in KINDS for reason in ("stop", "", "load", "x")),
    *((kind, "Ye", reason, ServerFaultError) for kind in KINDS for reason in ("error", "abort")),
    *((kind, text, "content_filter", text) for kind in KINDS for text in ("Ye", "")),
    *((kind, "Ye", "length", "Ye") for kind in KINDS),
    *((kind, "", "length", CutReplyError) for kind in KINDS),
    *((kind, "", "stop", BadReplyError) for kind in KINDS),
    ("openai", {"content": [text_of("Ye"), text_of("s.")]}, "stop", "Yes."),
    ("openai", {"content": [HM, text_of("Yes.")]}, "stop", "Yes."),
    ("openai", {"content": [HM | {"thinking": "Hm."}, text_of("Yes.")]}, "stop", "Yes."),
    ("openai", {"content": [HM]}, "length", CutReplyError),
    ("openai", {"content": [{"type": "refusal", "refusal": "No."}]}, "stop", "No."),
    ("openai", {"content": None, "refusal": "No."}, "stop", "No."),
    ("openai", {"refusal": None, "content": "Yes."}, "stop", "Yes."),
    ("openai", {"content": None}, "stop", BadReplyError),
    ("openai", {"content": None, "reasoning_content": "Hm."}, "length", CutReplyError),
    ("openai", {"content": "Yes.", "reasoning": "Hm.", "reasoning_content": None}, "stop", "Yes."),
    ("openai", {"content": ["Ye", "s."], "reasoning": {"steps": 1}}, "stop", "Yes."),
    ("openai", {"content": [5]}, "stop", BadReplyError),
    ("openai", {"content": [text_of(5)]}, "stop", BadReplyError),
]


@pytest.mark.parametrize(("kind", "said", "reason", "expected"), SHAPES)
def test_a_reply_is_read_in_each_shape_that_servers_give_it(
    kind: str, said: Any, reason: str, expected: Any
) -> None:
    if isinstance(said, str):
        bodies = [whole(kind, said, None, reason), streamed(kind, [said], [], reason)]
    else:
        choice = {"message": said, "finish_reason": reason}
        bodies = [
            json.dumps({"choices": [choice]}).encode(),
            events([chunk(said), chunk({}, reason)]),
        ]
    for reply in (reply_to(kind, bodies[0], stream=False), reply_to(kind, bodies[1], stream=True)):
        if isinstance(expected, type):
            assert type(reply) is expected
        else:
            flags = (reason == "length", reason == "content_filter")
            assert (reply.text, reply.truncated, reply.filtered) == (expected, *flags)


DEEP = b"[" * 100_000
HALF_A_PAIR = "half \ud83d a pair"
BAD = [(kind, whole(kind, HALF_A_PAIR), "not valid Unicode") for kind in KINDS]
"""What is asked, the body of the reply to it, whole or streamed, and words of the BadReplyError."""
BAD += [(kind, whole(kind, "", "Hm."), "only thought") for kind in KINDS]
BAD += [
    (kind, body, "unreadable")
    for kind in KINDS
    for body in (b"", b"<html>", b"\xff\xfe", b"[]", DEEP, b"9" * 5000, whole(kind, 5))
]
BAD_STREAMS = [
    ("ollama", lines([message("ollama", "Ye", done=False)]), "broke off"),
    ("ollama", lines([message("ollama", "Ye")]) + b'{"response": "s.', "unreadable"),
    ("ollama", lines([message("ollama", "Ye"), {"message": 5}]), "unreadable"),
    ("openai", events([chunk({"content": "Ye"})], end=b""), "broke off"),
    ("openai", events([chunk({"content": "Ye"})], end=b'data: {"choices"'), "unreadable"),
    ("openai", events([chunk({"content": 5})]), "unreadable"),
    ("openai", b"data: [DONE]\n\n", "without a text"),
]


@pytest.mark.parametrize(("kind", "body", "words"), [*BAD, *BAD_STREAMS])
def test_a_reply_that_cannot_be_used_is_a_bad_reply(kind: str, body: bytes, words: str) -> None:
    for stream in (True, (kind, body, words) in BAD_STREAMS):
        error = reply_to(kind, body, stream=stream)
        assert isinstance(error, BadReplyError), body
        assert words in str(error)


LONG = "This model's maximum context length is 8 tokens. Please reduce the length of the messages."
STATUSES: list[tuple[str, int, object, type[OllamaError]]] = [
    ("ollama", 404, 'model "m" not found, try pulling it first', ModelMissingError),
    ("openai", 404, {"message": "The model `m` does not exist."}, ModelMissingError),
    ("ollama", 500, 'option "temperature" must be of type float32', BadRequestError),
    *(
        (kind, status, text, expected)
        for kind in ("ollama", "openai")
        for status, text, expected in [
            (404, "File Not Found", BadRequestError),
            (401, "unauthorized", BadRequestError),
            (408, "late", CallTimeoutError),
            (429, "too many requests", ServerBusyError),
            (500, {"message": "Context size has been exceeded."}, ServerOverloadedError),
            (500, "model runner has unexpectedly stopped", ServerFaultError),
            (500, 5, ServerFaultError),
            (501, "This server does not support embeddings.", BadRequestError),
            (502, "bad gateway", ServerUnreachableError),
            (503, "server busy, please try again.", ServerBusyError),
        ]
    ),
    ("ollama", 400, "the input length exceeds the context length", PromptTooLongError),
    ("ollama", 500, "input exceeds maximum context length", PromptTooLongError),
    *(
        ("openai", status, text, PromptTooLongError)
        for status, text in [
            (400, {"message": "request (9 tokens) exceeds the available context size (8)"}),
            (500, "input (103 tokens) is too large to process. increase the physical batch size"),
            (400, LONG),  # OpenAI's, vLLM's
            (400, "The input (9 tokens) is longer than the model's context length (8 tokens)."),
            (400, "This model's maximum prompt length is 8 but the request contains 9 tokens."),
            (400, "Please reduce the length of the messages or completion."),  # Groq, Cerebras
            (400, "The input token count (9) exceeds the maximum number of tokens allowed (8)."),
            (413, "Input validation error: `inputs` must have less than 8 tokens. Given: 9"),
            (400, "prompt is too long: 9 tokens > 8 maximum"),
            (422, "Too many input tokens."),
        ]
    ),
]
DO = {
    401: "_API_KEY set, and right?",
    ("ollama", ModelMissingError): "run 'ollama pull m'",
    ("openai", ModelMissingError): "name one that its /models lists",
    PromptTooLongError: "shorten the prompt, ",
}


@pytest.mark.parametrize(("kind", "status", "text", "expected"), STATUSES)
def test_each_status_has_its_error_with_the_words_of_the_server(
    kind: str, status: int, text: object, expected: type[OllamaError]
) -> None:
    for body in ({"error": text}, {"detail": text}):
        error = reply_to(kind, json.dumps(body).encode(), stream=False, status=f"{status} No")
        assert type(error) is expected
        assert error.retryable == expected.retryable
    words = text["message"] if isinstance(text, dict) else str(text)
    assert expected is ModelMissingError or words in str(error)
    assert kind == "ollama" or "ollama" not in str(error).lower()
    for about in (status, expected, (kind, expected)):
        assert DO.get(about, "") in str(error)


@pytest.mark.parametrize(
    ("kind", "part", "expected", "words"),
    [
        ("ollama", {"error": "runner has stopped"}, ServerFaultError, "runner has stopped"),
        ("chat", {"error": 'option "seed" must be of type integer'}, BadRequestError, "option"),
        ("ollama", {"error": {"message": "no slot"}}, ServerFaultError, "no slot"),
        ("openai", {"error": {"code": 429, "message": "slow"}}, ServerBusyError, "429: 'slow'"),
        ("openai", {"error": {"code": "x", "message": "odd"}}, ServerFaultError, "500: 'odd'"),
        ("openai", {"error": "plain"}, ServerFaultError, "plain"),
    ],
)
def test_a_failure_under_status_200_is_the_error_that_a_status_would_have_been(
    kind: str, part: dict[str, Any], expected: type[OllamaError], words: str
) -> None:
    if kind != "openai":
        errors = [reply_to(kind, lines([message(kind, "Ye", done=False), part]), stream=True)]
    else:
        choice = {"message": {"content": "Ye"}, "finish_reason": "error"}
        older = b"error: %s\n\n" % json.dumps(part).encode()  # llama.cpp's
        streams = [events([chunk({"content": "Ye"}), part]), older]
        errors = [reply_to(kind, body, stream=True) for body in streams]
        for at_once in (part, {"choices": [choice | part]}):
            errors.append(reply_to(kind, json.dumps(at_once).encode(), stream=False))
    for error in errors:
        assert type(error) is expected
        assert words in str(error)


def test_the_servers_retry_after_is_read_up_to_five_minutes() -> None:
    for written, expected in [("2.5", 2.5), ("900", 300), ("soon", None), ("-1", None)]:
        error = outcome("openai", http("429 Slow down", Retry_After=written))
        assert isinstance(error, ServerBusyError)
        assert error.retry_after_s == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [900, 2050, 6000])
def test_a_prompt_of_which_a_part_was_read_is_too_long(kind: str, tokens: int) -> None:
    """Fewer than 1000 tokens may be those that were not in the server's cache."""
    call = replace(CHAT if kind == "chat" else CALL, system="word " * 2000, prompt="word " * 3000)
    body = json.loads(whole(kind, "Yes."))
    if kind == "openai":
        body["usage"]["prompt_tokens"] = tokens
    body["prompt_eval_count"] = tokens
    wire = "openai" if kind == "openai" else "ollama"
    reply = http("200 OK", json.dumps(body).encode())
    found = outcome(wire, reply, lambda client: client.generate(call))
    assert isinstance(found, PromptTooLongError) == (tokens == 2050)


PIECES = [
    *(b"[", b"{", b"}", b"]", b'"', b",", b":", b"null", b"[]", b"{}", b"5", b'"x"', b"\n"),
    *(b"1e999", b"-1", b"9" * 50, b"9" * 5000, b"NaN", b"\xff", b"\x00", b"\\ud800", b"data: "),
    *(b'{"error": 5}', b"\r\n", DEEP[:5000]),
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
    b'{"data": [{"id": "m", "meta": {"n_ctx": 5}}, "n"]}',
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


@settings(max_examples=150)
@example(wire="openai", ask=ASK[3], answer=http("200 OK", DEEP))
@example(wire="openai", ask=ASK[3], answer=http("200 OK", b'{"data": [{"id": 5}]}'))
@example(wire="openai", ask=ASK[3], answer=http("200 OK", b'{"data": [{"id": "m", "meta": [5]}]}'))
@given(wire=st.sampled_from(WIRES), ask=st.sampled_from(ASK), answer=odd_replies() | st.binary())
def test_any_bytes_are_a_reply_that_can_be_kept_or_an_error_in_one_line(
    wire: str, ask: Callable[[Any], object], answer: bytes
) -> None:
    found = outcome(wire, answer, ask)
    if isinstance(found, Completion):
        assert from_json(as_json(found)).usage == found.usage


ODD_ROWS = ["[]", "[[1.0, 0.0]]", "[[1.0], [1.0, 2.0]]", "[[], []]", "5", "[[1.0, NaN], [1, 2]]"]
ODD_INDICES = [[0, 0], [1, 2], [0, None], [0, [1]]]


@pytest.mark.parametrize("odd", [*ODD_ROWS, *ODD_INDICES])
def test_embeddings_that_do_not_fit_the_texts_are_a_bad_reply(odd: Any) -> None:
    body, wire = f'{{"embeddings": {odd}}}', "ollama"
    if isinstance(odd, list):
        rows = [{"index": index, "embedding": [1.0]} for index in odd]
        body, wire = json.dumps({"data": rows}), "openai"
    reply = http("200 OK", body.encode())
    found = outcome(wire, reply, lambda client: client.embed("m", ["a", "b"]))
    assert isinstance(found, BadReplyError)


@pytest.mark.parametrize("odd", [["1"], [True], [None]])
def test_an_embedding_that_is_no_numbers_is_a_bad_reply(odd: list[object]) -> None:
    reply = http("200 OK", json.dumps({"data": [{"index": 0, "embedding": odd}]}).encode())
    found = outcome("openai", reply, lambda client: client.embed("m", ["a"]))
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
