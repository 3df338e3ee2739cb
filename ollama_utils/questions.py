"""Calls and replies as JSON in one fixed form: what caches and logs compare and keep."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from ollama_utils.errors import BadRequestError
from ollama_utils.types import Call, Completion, Usage, short_name

_AS_JSON = json.JSONEncoder(default=dict, allow_nan=False)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a model of a server is asked, as the log keeps it."""

    endpoint: Literal["generate", "embed"]
    model: str
    """The name, without the tag `:latest`."""
    request: str
    """Everything else that decides the reply, as JSON in one fixed form."""
    repeatable: bool = True
    """Whether an equal question gets an equal reply."""


def question_of(call: Call) -> Question:
    """What a call asks; equal calls are equal questions.

    Raises:
        BadRequestError: the call holds what JSON cannot.
    """
    asked = {name: value for name, value in vars(call).items() if name != "model"}
    try:
        asked["options"] = dict(sorted(call.options.items()))
        request = _AS_JSON.encode(asked)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequestError(f"the call to {call.model!r} cannot be written as JSON: {error}") from error
    return Question(
        endpoint="generate", model=short_name(call.model), request=request, repeatable=call.repeatable
    )


def as_json(completion: Completion) -> str:
    """A reply as a log keeps it."""
    kept = {
        "text": completion.text,
        "truncated": completion.truncated,
        "usage": None if completion.usage is None else vars(completion.usage),
    }
    return json.dumps(kept, ensure_ascii=False)


def from_json(reply: str) -> Completion:
    """The reply that a log kept, marked as one that an earlier call paid for."""
    kept = json.loads(reply)
    usage = None if kept["usage"] is None else Usage(**kept["usage"])
    return Completion(text=kept["text"], truncated=kept["truncated"], usage=usage, cached=True, attempts=0)


def embed_question(model: str, text: str) -> Question:
    """What is asked when a text is to be embedded."""
    return Question(endpoint="embed", model=short_name(model), request=json.dumps(text))
