"""Composes a reply: the persona's words, counted as tokens, and cut where they must end."""

from __future__ import annotations

import zlib
from dataclasses import replace

from simulator import wire
from simulator.chance import digest_of, share_of
from simulator.models import check_system, count_tokens, read_part
from simulator.personas.json_schema import SchemaError
from simulator.replies import Ending, Endpoint, Part, Reply, end
from simulator.requests import Question
from simulator.state import State

_VOCABULARY = 32_000
_THINKING = {"low": 0.5, "medium": 1.0, "high": 2.0}
"""How long a model thinks, in lengths of a reply: assumptions."""


def compose(state: State, endpoint: Endpoint, body: wire.Body, question: Question) -> Reply:
    """The reply to a question: a pure function of the request and the server's seed.

    Raises:
        ApiError: 500, nothing can be written in the shape that is asked for; 400, the system prompt is as
            long as the context.
    """
    check_system(question.system)
    level = _thinking_level(state, question)
    digest = digest_of(state.settings.seed, *question.identity(), *([level] if level else []))
    try:
        parts = _parts(state, replace(question, prompt=read_part(question.prompt)), level, digest)
    except SchemaError as error:
        raise wire.ApiError(500, f"invalid JSON schema in format: {error}") from None
    most = question.sampling.num_predict
    ending = end(parts, most if most > 0 else None, question.sampling.stop)
    prompt = question.system + question.history + question.prompt
    return Reply(
        endpoint=endpoint,
        named=body["model"],
        prompt_tokens=max(1, count_tokens(prompt, question.sampling.num_ctx)),
        ending=ending,
        context=_context(body, ending) if endpoint == "generate" else (),
    )


def _parts(state: State, question: Question, level: str | None, digest: bytes) -> list[Part]:
    """What the model thinks and says, before it is cut."""
    words = state.persona.reply(state.catalogue.role(question.model), question, digest)
    state.counters.unrecognised_instructions += not words.recognised
    count = state.reply_length(share_of(digest, "length"))
    most = question.sampling.num_predict
    if words.is_rewording and count_tokens(words.text, 0) <= most:
        count = min(count, most)  # one sentence: no limit that its words keep to cuts it
    reply = Part(words.text, "word", count)
    if level is None:
        return [reply]
    count = round(state.reply_length(share_of(digest, "thinking length")) * _THINKING[level])
    return [Part(state.persona.thoughts(question, digest), "thought", max(1, count)), reply]


def _thinking_level(state: State, question: Question) -> str | None:
    """How hard the model thinks; one that can does so unless the request says not to."""
    if "thinking" not in state.catalogue.capabilities(question.model) or question.think is False:
        return None
    return question.think if isinstance(question.think, str) else "medium"


def _context(body: wire.Body, ending: Ending) -> tuple[int, ...]:
    """Token ids for prompt and reply after those of the request; none for a raw request."""
    if body.get("raw"):
        return ()
    text = f"{body.get('prompt')} {ending.text('thought')}{ending.text('word')}"
    words = text.encode("utf-8", "replace").split()
    return (*(body.get("context") or ()), *[zlib.crc32(word) % _VOCABULARY for word in words])
