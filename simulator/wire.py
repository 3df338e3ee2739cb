"""Ollama's JSON on the wire: errors, moments, and durations as Go writes them (`1h30m`, `-1s`)."""

from __future__ import annotations

import json
import re
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


FOR_EVER_S = (2**63 - 1) / 1e9
"""Go's longest duration, 292 years: what Ollama makes of a negative `keep_alive`."""

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = rf"(\d+\.?\d*|\.\d+)({'|'.join(_UNITS)})"
_WHOLE = re.compile(rf"[-+]?(?:0|(?:{_PART})+)", re.ASCII)


def is_duration(text: str) -> bool:
    """Whether Go's `time.ParseDuration` takes the text."""
    return bool(_WHOLE.fullmatch(text))


def keep_alive_s(value: str | float) -> float:
    """Seconds that a model stays in memory after its last use.

    Args:
        value: a duration (`5m`), or a number of seconds; below 0 is for ever.

    Raises:
        ValueError: the text is not a duration.
    """
    if isinstance(value, str):
        if not is_duration(value):
            raise ValueError(
                f"keep_alive must be a duration such as '5m' or a number of seconds, got {value!r}"
            )
        sign = -1 if value.startswith("-") else 1
        value = sign * sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, value))
    return FOR_EVER_S if value < 0 else min(float(value), FOR_EVER_S)


def json_reply(payload: Body, status: int = 200) -> web.Response:
    """A JSON response as Ollama's framework writes it."""
    return web.Response(body=dumps(payload), status=status, content_type="application/json", charset="utf-8")
