"""Replies as servers write them on each wire, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.ollama_utils.hostile import CALL, http, outcome

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


def whole(kind: str, text: object, thought: object = None, reason: object = "stop") -> bytes:
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
