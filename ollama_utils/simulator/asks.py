"""What `/api/generate` and `/api/chat` are asked, in one form."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from ollama_utils.simulator.options import Sampling, read_sampling
from ollama_utils.simulator.requests import check_images, json_name
from ollama_utils.simulator.wire import ApiError, Body

_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request for words, whichever endpoint it came by."""

    model: str
    """The full name, with its tag."""
    prompt: str
    """The user's last turn."""
    system: str = ""
    history: str = ""
    """The other turns of a chat, or the context of an earlier reply, as JSON; "" without any."""
    more: str = ""
    """What else decides the reply (a suffix, a template, images, tools), as JSON; "" without any."""
    images: int = 0
    """How many pictures came along."""
    tools: tuple[Body, ...] = ()
    """The functions that the model may call now."""
    think: bool | str | None = None
    """Whether it is to think, or how hard; None leaves it to the model."""
    format: Any = None
    """`"json"`, a JSON schema, or None."""
    sampling: Sampling = field(default_factory=Sampling)

    def identity(self) -> tuple[object, ...]:
        """All that decides the reply: at temperature 0 the content alone, else the seed too."""
        shape = json.dumps(self.format, sort_keys=True) if self.format else ""
        content = (self.model, self.prompt, self.system, self.history, shape, *filter(None, [self.more]))
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


def read_generate(body: Body, model: str) -> Ask:
    """The question in the body of `/api/generate`.

    Raises:
        ApiError: an option or the format.
    """
    images = body.get("images") or []
    more = {name: body.get(name) for name in ("suffix", "template", "raw")}
    return Ask(
        model=model,
        prompt=body.get("prompt") or "",
        system=body.get("system") or "",
        history=json.dumps(body["context"]) if body.get("context") else "",
        more=_written(more | {"images": [_print_of(image) for image in images]}),
        images=len(images),
        think=body.get("think"),
        format=check_format(body.get("format")),
        sampling=read_sampling(body.get("options")),
    )


def read_chat(body: Body, model: str) -> Ask:
    """The question in the body of `/api/chat`: the user's last turn, with the others as history.

    Raises:
        ApiError: a message or a tool is no object with the fields it must have, an option, or the format.
    """
    messages = [_message(item) for item in body.get("messages") or []]
    turns = [item for item in messages if item["role"] != "system"]
    last = max((place for place, item in enumerate(turns) if item["role"] == "user"), default=len(turns) - 1)
    others: list[object] = [*map(_turn, turns[:last])]
    if later := turns[last + 1 :]:
        others += [None, *map(_turn, later)]
    images = [image for item in messages for image in item.get("images") or []]
    tools = tuple(_tool(item) for item in body.get("tools") or [])
    return Ask(
        model=model,
        prompt=turns[last].get("content") or "" if turns else "",
        system="\n".join(item.get("content") or "" for item in messages if item["role"] == "system"),
        history=json.dumps(others) if others else "",
        more=_written({"images": [_print_of(image) for image in images], "tools": tools}),
        images=len(images),
        tools=tools if turns and turns[-1]["role"] == "user" else (),
        think=body.get("think"),
        format=check_format(body.get("format")),
        sampling=read_sampling(body.get("options")),
    )


def _written(more: Body) -> str:
    """The fields that are there, as JSON."""
    given = {name: value for name, value in more.items() if value}
    return json.dumps(given, sort_keys=True) if given else ""


def _print_of(image: str) -> str:
    return sha256(image.encode()).hexdigest()


def _message(item: object) -> Body:
    if not isinstance(item, dict):
        found = json_name(item)
        raise ApiError(400, f"json: cannot unmarshal {found} into Go struct field ChatRequest.messages")
    for name, kind in (("role", str), ("content", str), ("images", list), ("tool_calls", list)):
        value = item.get(name)
        if value is not None and type(value) is not kind:
            found = json_name(value)
            wanted = "string" if kind is str else "array"
            raise ApiError(
                400, f"json: cannot unmarshal {found} into Go struct field Message.{name} of type {wanted}"
            )
    role = (item.get("role") or "").lower()
    if role not in _ROLES:
        raise ApiError(400, f'invalid role: {role}. Must be one of "system", "user", "assistant", or "tool"')
    check_images(item.get("images") or [], "Message")
    return item | {"role": role}


def _turn(message: Body) -> list[object]:
    """A turn of the history: who spoke and what, then what else came with it."""
    more = {name: message.get(name) for name in ("thinking", "tool_calls", "tool_name", "tool_call_id")}
    given = {name: value for name, value in more.items() if value}
    return [message["role"], message.get("content") or "", *([given] if given else [])]


def _tool(item: object) -> Body:
    function = item.get("function") if isinstance(item, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name", ""), str):
        found = json_name(item)
        raise ApiError(400, f"json: cannot unmarshal {found} into Go struct field ChatRequest.tools")
    return function
