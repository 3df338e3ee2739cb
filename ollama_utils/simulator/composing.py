"""What a model says to a request: the persona's words, counted, cut where they must end, in pieces."""

from __future__ import annotations

import json
import zlib
from functools import partial

from ollama_utils.simulator import wire
from ollama_utils.simulator.asks import Ask
from ollama_utils.simulator.catalogue import CONTEXT_TOKENS
from ollama_utils.simulator.chance import digest_of, share_of
from ollama_utils.simulator.logprobs import logprob
from ollama_utils.simulator.personas.json_schema import SchemaError
from ollama_utils.simulator.speech import Endpoint, Speech
from ollama_utils.simulator.state import State
from ollama_utils.simulator.tokens import Ending, Token, end, split
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
    prompt_tokens = count_prompt(body, ask)
    level = _thinking_level(state, ask)
    digest = digest_of(state.settings.seed, *ask.identity(), *([level] if level else []))
    try:
        tokens, call = _generate(state, ask, level, digest)
    except SchemaError as error:
        raise wire.ApiError(500, f"invalid JSON schema in format: {error}") from None
    ending = end(tokens, _limit(body, ask, prompt_tokens), ask.sampling.stop)
    whole = ending.tokens == tuple(tokens)
    return Speech(
        endpoint=endpoint,
        named=body["model"],
        prompt_tokens=prompt_tokens,
        tokens=ending.count,
        done_reason=ending.reason,
        shown=ending.tokens,
        call=call if whole else None,
        logprob=partial(logprob, digest, body.get("top_logprobs") or 0) if body.get("logprobs") else None,
        context=() if endpoint == "chat" else _context(body, ending),
    )


def count_prompt(body: wire.Body, ask: Ask) -> int:
    """Tokens of the prompt, cut at the context's length unless the request forbids it.

    Raises:
        ApiError: 400, it is longer and must not be cut.
    """
    count = wire.count_tokens(ask.system + ask.history + ask.prompt) + _IMAGE_TOKENS * ask.images
    context = _context_tokens(ask)
    if count > context and body.get("truncate") is False:
        raise wire.ApiError(400, "the input length exceeds the context length")
    return max(1, min(count, context))


def _generate(
    state: State, ask: Ask, level: str | None, digest: bytes
) -> tuple[list[Token], wire.Body | None]:
    """All tokens that the model would generate, and the call of a tool that they are, if they are one."""
    call = tool_call(ask)
    said = state.persona.reply(state.catalogue.role(ask.model), ask, digest)
    state.counters.unrecognised_instructions += not said.recognised
    count = state.reply_length(share_of(digest, "length"))
    tokens = split(json.dumps(call), count, "call") if call else split(said.text, count, "word")
    if level is None:
        return tokens, call
    thoughts = round(state.reply_length(share_of(digest, "thinking length")) * _THINKING[level])
    return [*split(state.persona.thoughts(ask, digest), max(1, thoughts), "thought"), *tokens], call


def _thinking_level(state: State, ask: Ask) -> str | None:
    """How hard the model thinks; one that can does so unless it is told not to."""
    if "thinking" not in state.catalogue.capabilities(ask.model) or ask.think is False:
        return None
    return ask.think if isinstance(ask.think, str) else "medium"


def _context_tokens(ask: Ask) -> int:
    return min(ask.sampling.num_ctx, CONTEXT_TOKENS) if ask.sampling.num_ctx > 0 else CONTEXT_TOKENS


def _limit(body: wire.Body, ask: Ask, prompt_tokens: int) -> int | None:
    """The most tokens of the reply; without `shift` those that the context has room for."""
    limits = [ask.sampling.num_predict] if ask.sampling.num_predict > 0 else []
    if body.get("shift") is False:
        limits.append(max(1, _context_tokens(ask) - prompt_tokens))
    return min(limits, default=None)


def _context(body: wire.Body, ending: Ending) -> tuple[int, ...]:
    """Token ids for prompt and reply after those of the request; none for a raw request."""
    if body.get("raw"):
        return ()
    text = "".join(token.text for token in ending.tokens)
    words = f"{body.get('prompt')} {text}".split()
    ids = (zlib.crc32(word.encode("utf-8", "replace")) % _VOCABULARY for word in words)
    return (*(body.get("context") or ()), *ids)
