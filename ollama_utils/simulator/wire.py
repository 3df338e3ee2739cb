"""Ollama's JSON: request bodies read with its checks and its error texts, replies in its fields."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Body = Mapping[str, Any]

_FIELDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("model", "name", "prompt", "suffix", "system", "template"), (str, "string")),
    **dict.fromkeys(("stream", "raw", "truncate"), (bool, "bool")),
    "options": (dict, "map[string]interface {}"),
    "messages": (list, "[]api.Message"),
    "dimensions": (int, "int"),
}
"""The fields of any request: the type of a value, and Go's name for it."""
_INTEGERS = "num_keep num_predict num_ctx num_batch num_gpu num_thread seed top_k repeat_last_n main_gpu"
_FLOATS = "temperature top_p min_p typical_p repeat_penalty presence_penalty frequency_penalty"
_OPTIONS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(_INTEGERS.split(), ((int, float), "integer")),
    **dict.fromkeys(_FLOATS.split(), ((int, float), "float32")),
    "use_mmap": ((bool,), "boolean"),
    "stop": ((list,), "array"),
}
"""The options that Ollama knows: the types of a value, and what its messages call them."""
_JSON_NAMES = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
_DURATION = re.compile(r"[-+]?(?:0|(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
_THINK = ("high", "medium", "low")
_DEFAULT_TEMPERATURE = 0.8


class ApiError(Exception):
    """A request that Ollama rejects: the status and the text of its `{"error": ...}`."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request for words, whichever endpoint it came by."""

    model: str
    """The full name, with its tag."""
    prompt: str
    """The user's last turn."""
    system: str = ""
    history: str = ""
    """Earlier turns of a chat, as JSON; "" without any."""
    format: Any = None
    """`"json"`, a JSON schema, or None."""
    options: Body = field(default_factory=dict)

    @property
    def temperature(self) -> float:
        """The option, or Ollama's default."""
        return float(_option(self.options, "temperature", _DEFAULT_TEMPERATURE))

    @property
    def num_predict(self) -> int:
        """The most tokens a reply may have; 0 or less is no limit."""
        return int(_option(self.options, "num_predict", -1))

    def identity(self) -> tuple[object, ...]:
        """All that decides the reply: at temperature 0 the content alone, else the seed too."""
        shape = json.dumps(self.format, sort_keys=True) if self.format else ""
        content = (self.model, self.prompt, self.system, self.history, shape)
        if self.temperature <= 0:
            return content
        return (*content, self.temperature, int(_option(self.options, "seed", -1)))


def _option(options: Body, name: str, default: float) -> float:
    value = options.get(name)
    return default if value is None else value


def parse_body(raw: bytes, request: str) -> Body:
    """The JSON object of a request.

    Args:
        raw: the body as it came.
        request: the name Ollama's messages give the request, such as `GenerateRequest`.

    Raises:
        ApiError: no body, no JSON, no object, or a field of another type.
    """
    if not raw.strip():
        raise ApiError(400, "missing request body")
    try:
        body = json.loads(raw, parse_int=_number, parse_float=_number, parse_constant=_not_json)
    except (ValueError, RecursionError):
        raise ApiError(400, "invalid character in the request body: it is not JSON") from None
    if not isinstance(body, dict):
        found = _json_name(body)
        raise ApiError(400, f"json: cannot unmarshal {found} into Go value of type api.{request}")
    for name, value in body.items():
        if value is not None:
            _check_field(name, value, request)
    return body


def _number(text: str) -> float:
    """A number as Go's float64 holds it, whole numbers in full."""
    value = float(text)
    if math.isinf(value):
        raise ApiError(400, f"json: cannot unmarshal number {text} into Go value of type float64")
    return int(text) if text.lstrip("-").isdecimal() else value


def _not_json(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _check_field(name: str, value: object, request: str) -> None:
    kind, wanted = _FIELDS.get(name, (object, ""))
    if kind not in {object, type(value)}:
        found = _json_name(value)
        raise ApiError(
            400, f"json: cannot unmarshal {found} into Go struct field {request}.{name} of type {wanted}"
        )
    if name == "keep_alive":
        _check_keep_alive(value)
    if name == "think" and not isinstance(value, bool) and value not in _THINK:
        raise ApiError(400, 'think must be a boolean or string ("high", "medium", "low", true, or false)')


def _check_keep_alive(value: object) -> None:
    if isinstance(value, str):
        if not _DURATION.fullmatch(value):
            raise ApiError(400, f'time: invalid duration "{value}"')
    elif type(value) not in {int, float}:
        raise ApiError(400, f"unsupported keep_alive type: {_json_name(value)}")


def unloads(body: Body) -> bool:
    """Whether `keep_alive` is a duration of zero, by which a client asks to unload a model."""
    keep_alive = body.get("keep_alive")
    return keep_alive is not None and not re.search(r"[1-9]", str(keep_alive))


def _json_name(value: object) -> str:
    return _JSON_NAMES.get(type(value), "null")


def check_options(options: Body | None) -> Body:
    """The options, when those that Ollama knows have its types; unknown ones are left alone.

    Raises:
        ApiError: 500, as Ollama answers.
    """
    for name, value in (options or {}).items():
        if value is None or name not in _OPTIONS:
            continue
        kinds, wanted = _OPTIONS[name]
        if type(value) not in kinds:
            raise ApiError(500, f'option "{name}" must be of type {wanted}')
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            raise ApiError(500, f'option "{name}" must be of an array of strings')
    return options or {}


def check_format(wanted: object) -> object:
    """A request's `format`: None for no format, `"json"`, or a schema.

    Raises:
        ApiError: 500, as Ollama answers, for anything else.
    """
    if wanted in (None, "", {}):
        return None
    if wanted == "json" or isinstance(wanted, dict):
        return wanted
    raise ApiError(
        500, f'invalid format: {json.dumps(wanted)}; expected "json" or a valid JSON Schema object'
    )


def read_generate(body: Body, model: str) -> Ask:
    """The question in the body of `/api/generate`."""
    return Ask(
        model=model,
        prompt=body.get("prompt") or "",
        system=body.get("system") or "",
        format=check_format(body.get("format")),
        options=check_options(body.get("options")),
    )


def read_chat(body: Body, model: str) -> Ask:
    """The question in the body of `/api/chat`: the last turn, with the earlier ones as history.

    Raises:
        ApiError: a message is no object with texts.
    """
    messages = [_message(item) for item in body.get("messages") or []]
    system = "\n".join(text for role, text in messages if role == "system")
    turns = [(role, text) for role, text in messages if role != "system"]
    return Ask(
        model=model,
        prompt=turns[-1][1] if turns else "",
        system=system,
        history=json.dumps(turns[:-1]) if turns[1:] else "",
        format=check_format(body.get("format")),
        options=check_options(body.get("options")),
    )


def _message(item: object) -> tuple[str, str]:
    if not isinstance(item, dict):
        found = _json_name(item)
        raise ApiError(400, f"json: cannot unmarshal {found} into Go struct field ChatRequest.messages")
    role, text = item.get("role") or "", item.get("content") or ""
    if not isinstance(role, str) or not isinstance(text, str):
        raise ApiError(400, "json: cannot unmarshal into Go struct field Message.content of type string")
    if role not in {"system", "user", "assistant", "tool"}:
        raise ApiError(400, f'invalid role: {role}. Must be one of "system", "user", "assistant", or "tool"')
    return role, text


def read_inputs(body: Body) -> list[str]:
    """The texts of `/api/embed`.

    Raises:
        ApiError: `input` is neither a text nor a list of texts.
    """
    given = body.get("input")
    if given is None or given == "":
        return []
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and all(isinstance(item, str) for item in given):
        return list(given)
    raise ApiError(400, "invalid input type")


def without_zeros(fields: Body) -> dict[str, Any]:
    """The fields that Go's `omitempty` keeps."""
    return {name: value for name, value in fields.items() if value}


def now_text() -> str:
    """This moment as Go writes it (RFC 3339 with fractions, UTC)."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """A duration as Ollama reports it."""
    return max(0, round(seconds * 1e9))


def count_tokens(text: str) -> int:
    """About how many tokens a text has: one for every four characters begun."""
    return (len(text) + 3) // 4


def dumps(payload: Body) -> bytes:
    """JSON without spaces, in UTF-8."""
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
