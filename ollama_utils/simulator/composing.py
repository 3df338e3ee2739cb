"""What a model says to a request: the persona's words, counted, cut where they must end, in pieces."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from functools import partial

from ollama_utils.simulator import wire
from ollama_utils.simulator.asks import Ask
from ollama_utils.simulator.chance import digest_of, share_of
from ollama_utils.simulator.context import context_tokens, count_tokens, read_part
from ollama_utils.simulator.logprobs import logprob
from ollama_utils.simulator.personas.json_schema import SchemaError
from ollama_utils.simulator.speech import Endpoint, Speech
from ollama_utils.simulator.state import State
from ollama_utils.simulator.tokens import Ending, Part, end
from ollama_utils.simulator.tools import tool_call

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
