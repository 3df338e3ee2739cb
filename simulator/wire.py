"""Ollama's JSON on the wire: errors, and moments as Go writes them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

Body = Mapping[str, Any]
"""A JSON object."""

_NANOSECONDS = 1_000_000_000


class ApiError(Exception):
    """A request that Ollama rejects: the status and the text of its `{"error": ...}`."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def without_zeros(fields: Body) -> dict[str, Any]:
    """The fields that Go's `omitempty` keeps."""
    return {name: value for name, value in fields.items() if value}


def now_text() -> str:
    """This moment as Go writes it: RFC 3339 in UTC, nanoseconds without the zeros at their end."""
    seconds, rest = divmod(time.time_ns(), _NANOSECONDS)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}{fraction}Z"


def nanoseconds(seconds: float) -> int:
    """A duration as Ollama reports it."""
    return max(0, round(seconds * _NANOSECONDS))


def dumps(payload: Body) -> bytes:
    """JSON without spaces, in UTF-8."""
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def json_reply(payload: Body, status: int = 200) -> web.Response:
    """A JSON response as Ollama's framework writes it."""
    return web.Response(body=dumps(payload), status=status, content_type="application/json", charset="utf-8")
