"""Replies that come whole but are no good: from the reply that Ollama would give, the bytes of another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_utils.simulator import wire
from ollama_utils.simulator.faults import CONTENT, Fault

_OTHER_TYPES: Mapping[str, Any] = {
    "response": 5,
    "message": "Yes.",
    "embeddings": [["one", "two"]],
    "embedding": ["one", "two"],
    "model": 5,
    "done": "perhaps",
    "eval_count": "many",
    "total_duration": "long",
}
"""For each field a value that it never has."""


def spoilt(fault: Fault, endpoint: str, reply: wire.Body) -> bytes:
    """The body of a reply, struck by a fault of kind cut_json, empty, enormous, not_done or wrong_type."""
    content = CONTENT[endpoint]
    changed = dict(reply)
    if fault.kind == "empty":
        changed[content] = _without_words(reply[content])
    elif fault.kind == "enormous":
        changed[content] = _repeated(reply[content], fault.bytes)
    elif fault.kind == "not_done":
        changed = {name: value for name, value in reply.items() if name != "done_reason"} | {"done": False}
    elif fault.kind == "wrong_type":
        field = fault.field or content
        changed[field] = _OTHER_TYPES[field]
    body = wire.dumps(changed).rjust(fault.bytes)
    return body[: len(body) // 2] if fault.kind == "cut_json" else body


def _without_words(content: Any) -> Any:  # noqa: ANN401 - a field of JSON
    """A reply's content with no text, or no embeddings."""
    if isinstance(content, dict):
        return content | {"content": ""}
    return "" if isinstance(content, str) else []


def _repeated(content: Any, size: int) -> Any:  # noqa: ANN401 - a field of JSON
    """A reply's content with its text over and over, at least `size` bytes; embeddings as they are."""
    if isinstance(content, dict):
        return content | {"content": _repeated(content["content"], size)}
    return f"{content} " * (size // max(1, len(content)) + 1) if isinstance(content, str) else content
