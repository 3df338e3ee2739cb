"""What is asked, whichever wire it came by, and the reply: a pure function of request and seed.

A reply is counted as as many tokens as the settings draw for it, so its text is divided evenly into
that many pieces: the chunks of a stream. A prompt has a token for every four characters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from simulator import judge, mutator, solver
from simulator.chance import digest_of, share_of
from simulator.prompts import query_of, task_of, without_boundaries
from simulator.world import World
from simulator.world_file import Model

_CHARACTERS_A_TOKEN = 4
"""An assumption."""
_DEEPEST = 8
"""Of a schema that refers to itself: deeper lists are empty."""
THINKING = {"high": 2.0, "medium": 1.0, "low": 0.5, "max": 4.0}
"""How long a model thinks, in lengths of a reply (an assumption), as Ollama's errors order them."""


class ApiError(Exception):
    """A request that the server rejects; `more` are fields of an error of llama.cpp's own."""

    def __init__(self, status: int, text: str, **more: object) -> None:
        super().__init__(text)
        self.status, self.more = status, more


@dataclass(frozen=True, kw_only=True)
class Question:
    """One request for words."""

    model: str
    """The full name, with its tag."""
    prompt: str
    """The user's last turn."""
    system: str = ""
    history: tuple[tuple[str, str], ...] = ()
    """The other turns of a chat, each a role and a text."""
    think: bool | str | None = None
    """Whether it is to think, or how hard; None leaves it to the model."""
    format: Any = None
    """`"json"`, a JSON schema, or None."""
    temperature: float = 0.8
    seed: int = -1
    num_predict: int = -1
    """The most tokens of a reply, its thoughts included; below 1 is no limit."""
    num_ctx: int = 4096
    """Tokens of a prompt that the model holds."""
    stop: tuple[str, ...] = ()
    """Texts before which a reply ends."""

    def digest(self, *more: object) -> bytes:
        """Stands for all that decides the reply: at temperature 0 the seed is no part of it."""
        said = (self.prompt, self.system, json.dumps(self.history))
        shape = json.dumps(self.format, sort_keys=True)
        drawn = (self.temperature, self.seed) if self.temperature > 0 else ()
        content = (*map(without_boundaries, said), "", shape)  # the "" stays: it goes into replies
        return digest_of(*more, self.model, *content, *drawn)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A reply, known in full before its time begins."""

    prompt_tokens: int
    text: str
    text_tokens: int
    thinking: str = ""
    thought_tokens: int = 0
    reason: str = "stop"
    """`length` where it was cut at its limit."""

    @property
    def tokens(self) -> int:
        """Those that were written, thoughts included; they decide the reply's time."""
        return self.thought_tokens + self.text_tokens

    def pieces(self) -> Iterator[tuple[int, str, str]]:
        """The chunks of its stream: the tokens written by then, and its thoughts or its text."""
        for place, thought in enumerate(_divided(self.thinking, self.thought_tokens), 1):
            if thought:
                yield place, thought, ""
        for place, text in enumerate(_divided(self.text, self.text_tokens), 1):
            if text:
                yield self.thought_tokens + place, "", text


@dataclass(frozen=True, kw_only=True)
class Composer:
    """Writes the replies of a server."""

    world: World
    models: Mapping[str, Model]
    """By full name."""
    seed: int
    reply_length: Callable[[float], int]
    """From a share in [0, 1) to a count of tokens."""

    def reply(self, question: Question) -> Reply:
        """The reply to a question.

        Raises:
            ApiError: the prompt does not fit into the context, or the format cannot be followed.
        """
        read = [question.system, question.prompt, *(text for _, text in question.history)]
        prompt_tokens = max(1, sum(map(count_tokens, read)))
        if prompt_tokens > question.num_ctx:
            raise ApiError(
                400,
                f"request ({prompt_tokens} tokens) exceeds the available context size "
                f"({question.num_ctx} tokens), try increasing it",
                type="exceed_context_size_error",
                n_prompt_tokens=prompt_tokens,
                n_ctx=question.num_ctx,
            )
        level = question.think if isinstance(question.think, str) else "medium"
        thinks = self.models[question.model].thinks and question.think is not False
        digest = question.digest(self.seed, level if thinks else None)
        role = self._role(question)
        text = self._words(role, question, digest)
        tokens = self.reply_length(share_of(digest, "length"))
        if role == "mutator" and question.history and count_tokens(text) <= question.num_predict:
            tokens = min(tokens, question.num_predict)  # the words fit: no draw cuts them
        reply = Reply(prompt_tokens=prompt_tokens, text=text, text_tokens=tokens)
        if thinks:
            length = self.reply_length(share_of(digest, "thinking length")) * THINKING[level]
            thoughts = self.world.thoughts(query_of(question.prompt), digest)
            reply = replace(reply, thinking=thoughts, thought_tokens=max(1, round(length)))
        return _ended(question, reply)

    def _role(self, question: Question) -> str:
        """What the model plays; one that plays all tells it by the prompt."""
        role = self.models[question.model].role
        if role != "all":
            return role
        if question.format is not None and judge.is_asked(question.prompt):
            return "judge"
        task = task_of(question.prompt, question.system)
        asked = mutator.find_operator(self.world, task.instruction) or solver.edits(task)
        return "mutator" if task.is_tagged and asked else "target"

    def _words(self, role: str, question: Question, digest: bytes) -> str:
        """What the model says."""
        world, rules, prompt = self.world, self.world.file.solver, question.prompt
        if role == "judge":
            judged = judge.judgement(world, question.format, prompt, digest)
            return _as_json(question.format, judged, "")
        if role == "mutator":
            task = task_of(prompt, question.system)
            text = solver.edit_instructions(rules, task, digest)
            text = mutator.reword(world, task, digest) if text is None else text
            text = text if question.history else mutator.dressed(world, text, digest)
        elif role == "solver":
            skill = self.models[question.model].skill
            text = solver.solve(rules, prompt, question.system, skill, digest)
        else:
            text = world.answer(query_of(prompt), digest)
        return text if question.format is None else _as_json(question.format, {}, text)


def count_tokens(text: str) -> int:
    """About how many tokens a text has."""
    return -(-len(text) // _CHARACTERS_A_TOKEN)


def _divided(text: str, count: int) -> list[str]:
    """A text in so many pieces, as long as each other but for one character."""
    ends = [place * len(text) // max(count, 1) for place in range(count + 1)]
    return [text[begin:end] for begin, end in pairwise(ends)]


def _ended(question: Question, reply: Reply) -> Reply:
    """The reply up to its end: before a stop text, or at its limit."""
    text, count = reply.text, reply.text_tokens
    if found := [at for each in question.stop if (at := text.find(each)) >= 0]:
        count, text = max(1, -(-min(found) * count // len(text))), text[: min(found)]
    most = question.num_predict
    if most < 1 or reply.thought_tokens + count <= most:
        return replace(reply, text=text, text_tokens=count)
    thoughts = min(reply.thought_tokens, most)
    return replace(
        reply,
        thinking="".join(_divided(reply.thinking, reply.thought_tokens)[:thoughts]),
        thought_tokens=thoughts,
        text="".join(_divided(text, count)[: most - thoughts]),
        text_tokens=most - thoughts,
        reason="length",
    )


def _as_json(shape: object, values: Mapping[str, Any], text: str) -> str:
    """A reply in the shape that is asked for: the values by their names, else the text."""
    if not isinstance(shape, dict):
        return json.dumps(values or {"response": text})

    def value(schema: dict[str, Any], name: str, depth: int = 0) -> Any:  # noqa: ANN401 - JSON
        if "$ref" in schema:
            schema = shape["$defs"][schema["$ref"].rpartition("/")[2]]
        schema, wish = schema.get("anyOf", [schema])[0], values.get(name, text)
        allowed = schema.get("enum") or [schema.get("const")]
        if allowed != [None]:
            return wish if wish in allowed else allowed[0]
        kind = schema.get("type", "string")
        kind = kind[0] if isinstance(kind, list) else kind
        if kind == "object":
            fields = schema.get("properties", {})
            return {key: value(each, key, depth + 1) for key, each in fields.items()}
        if kind == "array":
            one = depth < _DEEPEST
            return [value(schema.get("items", {}), name, depth + 1)] if one else []
        number = wish if isinstance(wish, (int, float)) else 0
        number = min(max(number, schema.get("minimum", number)), schema.get("maximum", number))
        simple = {"integer": number, "number": number, "boolean": wish is True, "null": None}
        return simple.get(kind, wish)

    try:
        return json.dumps(value(shape, ""))
    except (TypeError, KeyError, AttributeError, IndexError, RecursionError):
        raise ApiError(500, f"invalid format: {shape!r:.100}") from None
