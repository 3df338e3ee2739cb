"""Request bodies, read with Ollama's checks and its error texts."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from ollama_utils.simulator.durations import is_duration, keep_alive_s
from ollama_utils.simulator.wire import ApiError, Body

_TEXTS = ("model", "name", "prompt", "suffix", "system", "template")
_FLAGS = ("stream", "raw", "truncate", "shift", "logprobs", "insecure", "verbose")
_FIELDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(_TEXTS, (str, "string")),
    **dict.fromkeys(_FLAGS, (bool, "bool")),
    **dict.fromkeys(("dimensions", "top_logprobs"), (int, "int")),
    "options": (dict, "map[string]interface {}"),
    "messages": (list, "[]api.Message"),
    "tools": (list, "api.Tools"),
    "images": (list, "[]api.ImageData"),
    "context": (list, "[]int"),
}
"""The fields of any request: the type of a value, and Go's name for it."""
_JSON_NAMES = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
_THINK = ("high", "medium", "low")
_LEVELS = '"high", "medium", "low", true, or false'
_MOST_TOP_LOGPROBS = 20


def parse_body(raw: bytes, request: str) -> Body:
    """The JSON object of a request.

    Args:
        raw: the body as it came.
        request: the name Ollama's messages give the request, such as `GenerateRequest`.

    Raises:
        ApiError: 400, no body, no JSON, no object, or a field of another type.
    """
    if not raw.strip():
        raise ApiError(400, "missing request body")
    try:
        # As Go reads it: UTF-8 and nothing else, wrong bytes replaced.
        text = raw.decode("utf-8", "replace")
        body = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_not_json)
    except (ValueError, RecursionError):
        raise ApiError(400, "invalid character in the request body: it is not JSON") from None
    if not isinstance(body, dict):
        found = json_name(body)
        raise ApiError(400, f"json: cannot unmarshal {found} into Go value of type api.{request}")
    for name, value in body.items():
        if value is not None:
            _check_field(name, value, request)
    return body


def request_name(endpoint: str) -> str:
    """What Ollama's messages call a request to `/api/<endpoint>`."""
    return f"{endpoint.removesuffix('s').title()}Request"


def json_name(value: object) -> str:
    """What Go's messages call the type of a JSON value."""
    return _JSON_NAMES.get(type(value), "null")


def unloads(body: Body) -> bool:
    """Whether `keep_alive` is a duration of zero, by which a client asks to unload a model."""
    keep_alive = body.get("keep_alive")
    return keep_alive is not None and keep_alive_s(keep_alive) == 0


def read_inputs(body: Body) -> list[str]:
    """The texts of `/api/embed`.

    Raises:
        ApiError: 400, `input` is neither a text nor a list of texts.
    """
    given = body.get("input")
    if given is None or given == "":
        return []
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and all(isinstance(item, str) for item in given):
        return list(given)
    raise ApiError(400, "invalid input type")


def check_images(images: list[Any], request: str) -> None:
    """Refuse what is no picture in base64.

    Raises:
        ApiError: 400.
    """
    for image in images:
        if not isinstance(image, str):
            raise _mistyped(image, f"{request}.images", "[]uint8")
        bare = image.replace("\n", "").replace("\r", "")
        wrong = re.search(r"[^A-Za-z0-9+/=]", bare)
        if wrong or len(bare) % 4 or "=" in bare.rstrip("=") or bare.endswith("==="):
            place = wrong.start() if wrong else len(bare)
            raise ApiError(400, f"illegal base64 data at input byte {place}")


def _number(text: str) -> float:
    """A number as Go's float64 holds it, whole numbers in full."""
    value = float(text)
    if math.isinf(value):
        raise ApiError(400, f"json: cannot unmarshal number {text} into Go value of type float64")
    return int(text) if text.lstrip("-").isdecimal() else value


def _not_json(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _check_field(name: str, value: Any, request: str) -> None:  # noqa: ANN401 - JSON holds anything
    kind, wanted = _FIELDS.get(name, (object, ""))
    if kind not in {object, type(value)}:
        raise _mistyped(value, f"{request}.{name}", wanted)
    if name == "keep_alive":
        _check_keep_alive(value)
    elif name == "think":
        _check_think(value)
    elif name == "images":
        check_images(value, request)
    elif name == "context" and not all(type(item) is int for item in value):
        raise _mistyped(next(item for item in value if type(item) is not int), f"{request}.{name}", "int")
    elif name == "top_logprobs" and not 0 <= value <= _MOST_TOP_LOGPROBS:
        raise ApiError(400, "top_logprobs must be between 0 and 20")


def _mistyped(value: object, field: str, wanted: str) -> ApiError:
    found = json_name(value)
    return ApiError(400, f"json: cannot unmarshal {found} into Go struct field {field} of type {wanted}")


def _check_keep_alive(value: object) -> None:
    if isinstance(value, str):
        if not is_duration(value):
            raise ApiError(400, f'time: invalid duration "{value}"')
    elif type(value) not in {int, float}:
        raise ApiError(400, f"unsupported keep_alive type: {json_name(value)}")


def _check_think(value: object) -> None:
    if isinstance(value, str) and value not in _THINK:
        raise ApiError(400, f"invalid think value: {json.dumps(value)} (must be {_LEVELS})")
    if not isinstance(value, (bool, str)):
        raise ApiError(400, f"think must be a boolean or string ({_LEVELS})")
