"""What is asked, whichever wire it came by, and the reply: a pure function of request and seed.

A reply is counted as as many tokens as the settings draw for it, so its text is divided evenly into
that many pieces: the chunks of a stream. A prompt has a token for every four characters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

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


class SchemaError(ValueError):
    """A `format` is no JSON schema that can be followed."""


class PromptTooLongError(Exception):
    """A prompt does not fit into the context; `body` is llama.cpp's error."""

    def __init__(self, tokens: int, context: int) -> None:
        text = f"request ({tokens} tokens) exceeds the available context size ({context} tokens)"
        super().__init__(text)
        kind = {"code": 400, "type": "exceed_context_size_error"}
        message = f"{text}, try increasing it"
        self.body = {
            "error": {**kind, "message": message, "n_prompt_tokens": tokens, "n_ctx": context}
        }


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


class Piece(NamedTuple):
    """What one chunk of a stream brings, or a whole reply."""

    tokens: int
    """Tokens that are written when it is complete, from the reply's first on."""
    thinking: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A reply, known in full before its time begins."""

    prompt_tokens: int
    text: str
    text_tokens: int
    thinking: str = ""
    thought_tokens: int = 0
    reason: Literal["stop", "length"] = "stop"

    @property
    def tokens(self) -> int:
        """Those that were written, thoughts included; they decide the reply's time."""
        return self.thought_tokens + self.text_tokens

    def pieces(self) -> Iterator[Piece]:
        """The chunks of its stream, thoughts first: one for each token with something to show."""
        for place, thought in enumerate(_divided(self.thinking, self.thought_tokens), 1):
            if thought:
                yield Piece(place, thought, "")
        for place, text in enumerate(_divided(self.text, self.text_tokens), 1):
            if text:
                yield Piece(self.thought_tokens + place, "", text)


@dataclass(frozen=True, kw_only=True)
class Composer:
    """Writes the replies of a server.

    Args:
        world: what its models know.
        models: by full name.
        seed: the server's.
        reply_length: from a share in [0, 1) to a count of tokens.
    """

    world: World
    models: Mapping[str, Model]
    seed: int
    reply_length: Callable[[float], int]

    def reply(self, question: Question) -> Reply:
        """The reply to a question.

        Raises:
            PromptTooLongError: the prompt does not fit into the context.
            SchemaError: the format cannot be followed.
        """
        read = [question.system, question.prompt, *(text for _, text in question.history)]
        prompt, prompt_tokens = question.prompt, max(1, sum(map(count_tokens, read)))
        if prompt_tokens > question.num_ctx:
            raise PromptTooLongError(prompt_tokens, question.num_ctx)
        level = self._thinking_level(question)
        digest = question.digest(self.seed, level)
        role = self._role(question, prompt)
        text = self._words(role, question, prompt, digest)
        tokens = self.reply_length(share_of(digest, "length"))
        if role == "mutator" and question.history and count_tokens(text) <= question.num_predict:
            tokens = min(tokens, question.num_predict)  # the words fit: no draw cuts them
        reply = Reply(prompt_tokens=prompt_tokens, text=text, text_tokens=tokens)
        if level is not None:
            length = self.reply_length(share_of(digest, "thinking length")) * THINKING[level]
            thoughts = self.world.thoughts(query_of(prompt), digest)
            reply = replace(reply, thinking=thoughts, thought_tokens=max(1, round(length)))
        return _ended(question, reply)

    def _thinking_level(self, question: Question) -> str | None:
        """How hard the model thinks; one that can does so unless the request says not to."""
        if question.think is False or not self.models[question.model].thinks:
            return None
        return question.think if isinstance(question.think, str) else "medium"

    def _role(self, question: Question, prompt: str) -> str:
        """What the model plays."""
        role = self.models[question.model].role
        if role != "all":
            return role
        if question.format is not None and judge.is_asked(prompt):
            return "judge"
        task = task_of(prompt, question.system)
        asked = mutator.find_operator(self.world, task.instruction) or solver.edits(task)
        return "mutator" if task.is_tagged and asked else "target"

    def _words(self, role: str, question: Question, prompt: str, digest: bytes) -> str:
        """What the model says."""
        world, rules = self.world, self.world.file.solver
        if role == "judge":
            judged = judge.judgement(world, question.format, prompt, digest)
            return _as_json(question.format, judged, "")
        if role == "mutator":
            task = task_of(prompt, question.system)
            edited = solver.edit_instructions(rules, task, digest)
            text = mutator.reword(world, task, digest) if edited is None else edited
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
    most = question.num_predict if question.num_predict > 0 else math.inf
    if reply.thought_tokens + count <= most:
        return replace(reply, text=text, text_tokens=count)
    thoughts = min(reply.thought_tokens, int(most))
    words = int(most) - thoughts
    return replace(
        reply,
        thinking="".join(_divided(reply.thinking, reply.thought_tokens)[:thoughts]),
        thought_tokens=thoughts,
        text="".join(_divided(text, count)[:words]),
        text_tokens=words,
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
        number = wish if isinstance(wish, (int, float)) else 0
        least, most = schema.get("minimum", number), schema.get("maximum", number)
        simple = {"boolean": wish is True, "null": None, "integer": min(max(number, least), most)}
        kinds = schema.get("type", "string")
        match kinds[0] if isinstance(kinds, list) else kinds:
            case "object":
                fields = schema.get("properties", {})
                return {key: value(each, key, depth + 1) for key, each in fields.items()}
            case "array":
                one = depth < _DEEPEST
                return [value(schema.get("items", {}), name, depth + 1)] if one else []
            case kind:
                return simple.get("integer" if kind == "number" else kind, wish)

    try:
        return json.dumps(value(shape, ""))
    except (TypeError, KeyError, AttributeError, IndexError, RecursionError):
        raise SchemaError(f"{shape!r:.100}") from None
