"""One JSON object in a fixed schema, asked of a model: one call, at most one repair, or nothing at all.

A reply that is no such object is never searched for one, nor for a number. It is shown to the model once
more, with what is wrong with it; where that brings no object either, there is no reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from ollama_utils.errors import BadReplyError
from ollama_utils.prompts import fenced_with_note
from ollama_utils.types import Call, Completion

Schema = Mapping[str, Any]
"""A flat JSON schema: its properties are booleans, integers within bounds and strings of an `enum`."""

SHOWN = 400
"""Characters of a faulty reply that the repair shows."""
_QUOTED = 80
_FENCED = re.compile(r"\s*```(?:json)?\s*\n(?P<inside>.*?)\s*```\s*", re.DOTALL | re.IGNORECASE)
_REPAIR = """\

You were asked this before. Your reply began as follows:
{faulty}
That reply {fault}. Give the JSON object alone, with the keys {keys}: no other text, no Markdown.
"""


class Model(Protocol):
    """Where calls go: a `Dispatcher`, or what caps the calls to one."""

    def generate(self, call: Call) -> Completion:
        """The reply to one call; a failure stands in its `error`."""
        ...


@dataclass(frozen=True, kw_only=True)
class JsonReply:
    """An object that follows its schema."""

    values: Mapping[str, Any]
    """By property."""
    repaired: bool
    """Whether only the repair brought it."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A question about texts of others, each of which stands in a fence that nothing in the prompt closes."""

    template: str
    """With `{note}` right before the first text, the names of the texts, and `{rubric}` if there is one."""
    texts: Mapping[str, str]
    """By name."""
    rubric: str = ""
    """The words of the user who asks."""

    @property
    def prompt(self) -> str:
        """The question."""
        return self._filled(self.template, fenced_with_note(self.texts, self.rubric))

    def repair_prompt(self, faulty: str, fault: str, schema: Schema) -> str:
        """The question again, the beginning of the reply to it, and what is wrong with that.

        Where it has a boundary it is a new one, for the reply knows the first.
        """
        shown = fenced_with_note({**self.texts, "faulty": faulty[:SHOWN]}, self.rubric, fault)
        keys = " and ".join(schema["properties"])
        return self._filled(self.template + _REPAIR, {**shown, "fault": fault, "keys": keys})

    def _filled(self, template: str, shown: Mapping[str, str]) -> str:
        return template.format(rubric=self.rubric.strip(), **shown)


@dataclass(frozen=True)
class JsonModel:
    """A model that is asked at temperature 0 and with a fixed seed: equal questions are one call."""

    dispatcher: Model
    """Where the calls go."""
    model: str
    """Its name as the server lists it."""
    _: KW_ONLY
    seed: int = 0
    """The seed of every call."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """More of Ollama's options (`num_ctx`); `temperature` and `seed` are set here."""

    def ask(self, case: Case, schema: Schema) -> JsonReply:
        """What the model replies under a flat schema.

        The repair has the options of the first call, so it is a pure function of it: equal questions get
        equal objects, or none, however often they are asked.

        Args:
            case: The question.
            schema: A flat schema.

        Raises:
            OllamaError: A call failed, or (BadReplyError) neither reply is an object that follows the schema.
        """
        first = self._reply(case.prompt, schema)
        values, fault = read_object(first, schema)
        if not fault:
            return JsonReply(values=values, repaired=False)
        second = self._reply(case.repair_prompt(first.text, fault, schema), schema)
        values, still = read_object(second, schema)
        if still:
            raise BadReplyError(
                f"the judge's reply {fault}: {first.text[:_QUOTED]!r}, and its repair {still}: "
                f"{second.text[:_QUOTED]!r}"
            )
        return JsonReply(values=values, repaired=True)

    def _reply(self, prompt: str, schema: Schema) -> Completion:
        options = {**self.options, "temperature": 0, "seed": self.seed}
        call = Call(model=self.model, prompt=prompt, format=schema, options=options, role="judge")
        completion = self.dispatcher.generate(call)
        if completion.error is not None:
            raise completion.error
        return completion


def object_schema(properties: Mapping[str, Schema]) -> Schema:
    """The schema of an object that has these properties, and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def read_object(reply: Completion, schema: Schema) -> tuple[dict[str, Any], str]:
    """The values that a reply has under a flat schema, and what is wrong with it; "" where nothing is.

    Not every server holds a model to the schema: a Markdown fence around the whole object is taken off, and
    further keys are left out.
    """
    if reply.truncated or reply.filtered:
        by = "by a content filter" if reply.filtered else "before its end"
        return {}, f"was cut off {by}"
    fenced = _FENCED.fullmatch(reply.text)
    try:
        found = json.loads(fenced["inside"] if fenced else reply.text)
    except (ValueError, RecursionError):
        return {}, "is not JSON"
    properties = schema["properties"]
    if not isinstance(found, dict) or not found.keys() >= properties.keys():
        return {}, f"is not an object with the keys {', '.join(properties)}"
    wrong = [name for name, kind in properties.items() if not _is_a(found[name], kind)]
    said = ", ".join(f"{found[name]!r:.{_QUOTED}} as {name}" for name in wrong)
    if wrong:
        return {}, f"does not follow its schema: it has {said}"
    return {name: found[name] for name in properties}, ""


def _is_a(value: object, kind: Schema) -> bool:
    """Whether a value is of a property's kind; true is no integer, and 7.0 is none."""
    if kind["type"] == "boolean":
        return isinstance(value, bool)
    if kind["type"] == "integer":
        return type(value) is int and kind["minimum"] <= value <= kind["maximum"]
    return value in kind["enum"]
