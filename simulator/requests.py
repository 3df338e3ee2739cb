"""Request bodies: read with Ollama's checks and error texts, and what is asked as one `Question`.

Checked are the fields that Ollama's own clients send and that decide a reply or its time; a field that is
not named here is ignored, as Ollama ignores fields that it does not know.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from simulator.fences import without_boundaries
from simulator.keep_alive import is_duration, keep_alive_s
from simulator.wire import ApiError, Body

_TEXTS = ("model", "name", "prompt", "suffix", "system", "template")
_FLAGS = ("stream", "raw", "truncate")
_FIELDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(_TEXTS, (str, "string")),
    **dict.fromkeys(_FLAGS, (bool, "bool")),
    "dimensions": (int, "int"),
    "options": (dict, "map[string]interface {}"),
    "messages": (list, "[]api.Message"),
    "tools": (list, "api.Tools"),
    "images": (list, "[]api.ImageData"),
    "context": (list, "[]int"),
}
"""The fields of any request: the type of a value, and Go's name for it."""
_JSON_NAMES = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
_THINK = ("high", "medium", "low")
_MOST_COMMAS = 2**19
"""Bounds the lists and objects of a request, each of whose parts takes time while all other calls wait."""
_MOST_INPUTS = 2048
"""Texts in one request for embeddings: OpenAI's limit. Every one becomes a vector in memory."""
_LEVELS = '"high", "medium", "low", true, or false'


def parse_body(raw: bytes, request: str) -> Body:
    """The JSON object of a request.

    Args:
        raw: the body as it came.
        request: the name Ollama's messages give the request, such as `GenerateRequest`.

    Raises:
        ApiError: 400, there is no body, it is not a JSON object, or a field has another type; 413, it has
            too many parts.
    """
    if not raw.strip():
        raise ApiError(400, "missing request body")
    if raw.count(b",") > _MOST_COMMAS:
        raise ApiError(413, f"the simulator reads request bodies of at most {_MOST_COMMAS} commas")
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
        ApiError: 400, `input` is neither a text nor a list of texts, or there are too many.
    """
    given = body.get("input")
    if given is None or given == "":
        return []
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and all(isinstance(item, str) for item in given):
        if len(given) > _MOST_INPUTS:
            raise ApiError(
                400, f"the simulator embeds at most {_MOST_INPUTS} inputs at once, got {len(given)}"
            )
        return list(given)
    raise ApiError(400, "invalid input type")


def _number(text: str) -> float:
    """A number as Go's float64 holds it, whole numbers in full."""
    value = float(text)
    if math.isinf(value):
        raise ApiError(400, f"json: cannot unmarshal number {text} into Go value of type float64")
    return int(text) if text.lstrip("-").isdecimal() else value


def _not_json(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _check_field(name: str, value: Any, request: str) -> None:  # noqa: ANN401 - JSON holds anything
    kind, wanted = _FIELDS.get(name, (object, ""))
    if kind not in {object, type(value)}:
        raise _mistyped(value, f"{request}.{name}", wanted)
    if name == "keep_alive":
        _check_keep_alive(value)
    elif name == "think":
        _check_think(value)
    elif name == "context" and not all(type(item) is int for item in value):
        raise _mistyped(next(item for item in value if type(item) is not int), f"{request}.{name}", "int")


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


_INTEGERS = "num_keep num_predict num_ctx num_batch num_gpu num_thread seed top_k repeat_last_n main_gpu"
_FLOATS = "temperature top_p min_p typical_p repeat_penalty presence_penalty frequency_penalty"
_KNOWN: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(_INTEGERS.split(), ((int, float), "integer")),
    **dict.fromkeys(_FLOATS.split(), ((int, float), "float32")),
    "use_mmap": ((bool,), "boolean"),
    "stop": ((list,), "array"),
}
"""The options that Ollama knows: the types of a value, and what its messages call them."""
_TEMPERATURE = 0.8


def check_options(options: Body | None) -> Body:
    """The options, when those that Ollama knows have its types; unknown ones are left alone.

    Raises:
        ApiError: 500, as Ollama answers.
    """
    for name, value in (options or {}).items():
        if value is None or name not in _KNOWN:
            continue
        kinds, wanted = _KNOWN[name]
        if type(value) not in kinds:
            raise ApiError(500, f'option "{name}" must be of type {wanted}')
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            raise ApiError(500, f'option "{name}" must be of an array of strings')
    return options or {}


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The options that decide a reply; the others are checked and change nothing here."""

    temperature: float = _TEMPERATURE
    seed: int = -1
    num_predict: int = -1
    """The most tokens a reply may have; 0 or less is no limit."""
    num_ctx: int = 0
    """The tokens of prompt and reply that the model holds; 0 or less is as many as it can."""
    stop: tuple[str, ...] = ()
    """Texts before which a reply ends."""


def read_sampling(options: Body | None) -> Sampling:
    """The options of a request that decide its reply.

    Raises:
        ApiError: 500, an option has another type.
    """
    given = {name: value for name, value in check_options(options).items() if value is not None}
    return Sampling(
        temperature=float(given.get("temperature", _TEMPERATURE)),
        seed=int(given.get("seed", -1)),
        num_predict=int(given.get("num_predict", -1)),
        num_ctx=int(given.get("num_ctx", 0)),
        stop=tuple(filter(None, given.get("stop", ()))),
    )


_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, kw_only=True)
class Question:
    """One request for words, whichever endpoint it came by."""

    model: str
    """The full name, with its tag."""
    prompt: str
    """The user's last turn."""
    system: str = ""
    history: str = ""
    """The other turns of a chat, or the context of an earlier reply, as JSON; "" without any."""
    more: str = ""
    """What else decides the reply (a template, raw mode), as JSON; "" without any."""
    think: bool | str | None = None
    """Whether it is to think, or how hard; None leaves it to the model."""
    format: Any = None
    """`"json"`, a JSON schema, or None."""
    sampling: Sampling = field(default_factory=Sampling)

    def identity(self) -> tuple[object, ...]:
        """All that decides the reply: at temperature 0 the content alone, else the seed too."""
        shape = json.dumps(self.format, sort_keys=True) if self.format else ""
        said = map(without_boundaries, (self.prompt, self.system, self.history))
        content = (self.model, *said, shape, *filter(None, [self.more]))
        if self.sampling.temperature <= 0:
            return content
        return (*content, self.sampling.temperature, self.sampling.seed)


def check_format(wanted: object) -> object:
    """A request's `format`: None for no format, `"json"`, or a schema.

    Raises:
        ApiError: 500, as Ollama answers, for anything else.
    """
    if wanted in (None, "", {}):
        return None
    if wanted == "json" or isinstance(wanted, dict):
        return wanted
    quoted = json.dumps(json.dumps(wanted))
    raise ApiError(500, f'invalid format: {quoted}; expected "json" or a valid JSON Schema object')


def read_generate(body: Body, model: str) -> Question:
    """The question in the body of `/api/generate`.

    Raises:
        ApiError: an option or the format.
    """
    more = {name: body[name] for name in ("template", "raw") if body.get(name)}
    return Question(
        model=model,
        prompt=body.get("prompt") or "",
        system=body.get("system") or "",
        history=json.dumps(body["context"]) if body.get("context") else "",
        more=json.dumps(more, sort_keys=True) if more else "",
        think=body.get("think"),
        format=check_format(body.get("format")),
        sampling=read_sampling(body.get("options")),
    )


def read_chat(body: Body, model: str) -> Question:
    """The question in the body of `/api/chat`: the user's last turn, with the others as history.

    Raises:
        ApiError: a message is not an object with the fields it must have, an option, or the format.
    """
    messages = [_message(item) for item in body.get("messages") or []]
    turns = [item for item in messages if item["role"] != "system"]
    last = max((place for place, item in enumerate(turns) if item["role"] == "user"), default=len(turns) - 1)
    others: list[object] = [*map(_turn, turns[:last])]
    if later := turns[last + 1 :]:
        others += [None, *map(_turn, later)]
    return Question(
        model=model,
        prompt=turns[last].get("content") or "" if turns else "",
        system="\n".join(item.get("content") or "" for item in messages if item["role"] == "system"),
        history=json.dumps(others) if others else "",
        think=body.get("think"),
        format=check_format(body.get("format")),
        sampling=read_sampling(body.get("options")),
    )


def _message(item: object) -> Body:
    if not isinstance(item, dict):
        found = json_name(item)
        raise ApiError(400, f"json: cannot unmarshal {found} into Go struct field ChatRequest.messages")
    for name in ("role", "content"):
        value = item.get(name)
        if value is not None and not isinstance(value, str):
            raise _mistyped(value, f"Message.{name}", "string")
    role = (item.get("role") or "").lower()
    if role not in _ROLES:
        raise ApiError(400, f'invalid role: {role}. Must be one of "system", "user", "assistant", or "tool"')
    return item | {"role": role}


def _turn(message: Body) -> list[object]:
    """A turn of the history: who spoke and what, then what else came with it."""
    more = {name: message.get(name) for name in ("thinking", "tool_calls", "tool_name", "tool_call_id")}
    given = {name: value for name, value in more.items() if value}
    return [message["role"], message.get("content") or "", *([given] if given else [])]
