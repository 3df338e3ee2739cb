"""What a model says to a request: the persona's words, counted, cut where they must end, in pieces.

Log probabilities of a reply's tokens: drawn, since there is no model; well-formed and repeatable.

Calls of tools: a simulated model calls the first function that the question speaks of.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from simulator import wire
from simulator.chance import digest_of, share_of
from simulator.models import context_tokens, count_tokens, read_part
from simulator.personas.json_schema import SchemaError, conform_text
from simulator.replies import Ending, Endpoint, Part, Speech, end
from simulator.requests import Ask
from simulator.state import State
from simulator.wire import Body

_LEAST_CHANCE = 0.4
"""Of the token that is chosen: an assumption, as is that each other one has half of what is left."""
_WORDS = "the a and of to in is that it for with as on this be are or by an not you"
_OTHERS = tuple(f" {word}" for word in _WORDS.split())


def logprob(digest: bytes, top: int, text: str, place: int) -> dict[str, Any]:
    """The entry of a token.

    Args:
        digest: stands for the reply.
        top: how many of the likeliest tokens are listed beside it; the token itself is the first.
        text: the token's.
        place: the token's, counted from 0.
    """
    chance = _LEAST_CHANCE + (1 - _LEAST_CHANCE) * share_of(digest, f"logprob {place}")
    entry = _entry(text, chance)
    if top:
        entry["top_logprobs"] = [_entry(text, chance), *_runners_up(text, chance, top - 1)]
    return entry


def _runners_up(text: str, chance: float, count: int) -> Sequence[dict[str, Any]]:
    """Other tokens: each has half of what the likelier ones left over, and less than the chosen one."""
    others = [other for other in _OTHERS if other != text][:count]
    rest = min(1 - chance, chance)
    return [_entry(other, rest * 0.5 ** (place + 1)) for place, other in enumerate(others)]


def _entry(text: str, chance: float) -> dict[str, Any]:
    codes = {"bytes": list(text.encode("utf-8", "replace"))} if text else {}
    return {"token": text, "logprob": math.log(chance), **codes}


_WORD = re.compile(r"[^\W_]+")
_WORTH_A_LOOK = 4


def tool_call(ask: Ask) -> dict[str, Any] | None:
    """The call that a model makes: of the first tool with a word of four letters or more in the question.

    The arguments stand under the tool's schema; the question's last word is the first free text among them.

    Raises:
        SchemaError: no arguments were found that stand under it.
    """
    asked = _words(ask.prompt) if ask.tools else set()
    for tool in ask.tools:
        if asked & _words(f"{tool.get('name', '')} {tool.get('description') or ''}"):
            function = {"index": 0, "name": tool.get("name", ""), "arguments": _arguments(tool, ask.prompt)}
            return {"id": f"call_{digest_of(*ask.identity()).hex()[:8]}", "function": function}
    return None


def _arguments(tool: Body, question: str) -> object:
    schema = tool.get("parameters")
    if not isinstance(schema, dict):
        return {}
    return conform_text((_WORD.findall(question) or [""])[-1], {"type": "object"} | schema)


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text) if len(word) >= _WORTH_A_LOOK}


_VOCABULARY = 32_000
_IMAGE_TOKENS = 768
"""What Ollama counts for a picture."""
_THINKING = {"low": 0.5, "medium": 1.0, "high": 2.0}
"""How long a model thinks, in lengths of a reply: assumptions."""


def prepare(state: State, endpoint: Endpoint, body: wire.Body, ask: Ask) -> Speech:
    """The reply to a question: a pure function of the request and the server's seed.

    Raises:
        ApiError: 400, the prompt is longer than the context and must not be cut; 500, nothing can be written
            in the shape that is asked for.
    """
    prompt_tokens = _count_prompt(body, ask)
    level = _thinking_level(state, ask)
    digest = digest_of(state.settings.seed, *ask.identity(), *([level] if level else []))
    try:
        parts, call = _generate(state, replace(ask, prompt=read_part(ask.prompt)), level, digest)
    except SchemaError as error:
        raise wire.ApiError(500, f"invalid JSON schema in format: {error}") from None
    ending = end(parts, _limit(body, ask, prompt_tokens), ask.sampling.stop)
    whole = ending.shown == sum(part.count for part in parts)
    return Speech(
        endpoint=endpoint,
        named=body["model"],
        prompt_tokens=prompt_tokens,
        ending=ending,
        call=call if whole else None,
        logprob=partial(logprob, digest, body.get("top_logprobs") or 0) if body.get("logprobs") else None,
        context=() if endpoint == "chat" else _context(body, ending),
    )


def _count_prompt(body: wire.Body, ask: Ask) -> int:
    return max(
        1,
        count_tokens(
            ask.system + ask.history + ask.prompt,
            ask.sampling.num_ctx,
            more=_IMAGE_TOKENS * ask.images,
            truncate=body.get("truncate") is not False,
        ),
    )


def _generate(
    state: State, ask: Ask, level: str | None, digest: bytes
) -> tuple[list[Part], wire.Body | None]:
    """All that the model would generate, and the call of a tool that they are, if they are one."""
    call = tool_call(ask)
    said = state.persona.reply(state.catalogue.role(ask.model), ask, digest)
    state.counters.unrecognised_instructions += not said.recognised
    count = state.reply_length(share_of(digest, "length"))
    reply = Part(json.dumps(call), "call", count) if call else Part(said.text, "word", count)
    if level is None:
        return [reply], call
    thoughts = round(state.reply_length(share_of(digest, "thinking length")) * _THINKING[level])
    return [Part(state.persona.thoughts(ask, digest), "thought", max(1, thoughts)), reply], call


def _thinking_level(state: State, ask: Ask) -> str | None:
    """How hard the model thinks; one that can does so unless it is told not to."""
    if "thinking" not in state.catalogue.capabilities(ask.model) or ask.think is False:
        return None
    return ask.think if isinstance(ask.think, str) else "medium"


def _limit(body: wire.Body, ask: Ask, prompt_tokens: int) -> int | None:
    """The most tokens of the reply; without `shift` those that the context has room for."""
    limits = [ask.sampling.num_predict] if ask.sampling.num_predict > 0 else []
    if body.get("shift") is False:
        limits.append(max(1, context_tokens(ask.sampling.num_ctx) - prompt_tokens))
    return min(limits, default=None)


def _context(body: wire.Body, ending: Ending) -> tuple[int, ...]:
    """Token ids for prompt and reply after those of the request; none for a raw request."""
    if body.get("raw"):
        return ()
    words = f"{body.get('prompt')} {ending.text('thought', 'word', 'call')}".encode(
        "utf-8", "replace"
    ).split()
    return (*(body.get("context") or ()), *[zlib.crc32(word) % _VOCABULARY for word in words])
