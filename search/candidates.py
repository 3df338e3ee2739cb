"""Candidate replies to one query, one for each of several system prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ollama_utils.parallel import in_parallel
from ollama_utils.types import Call
from scorers.judge import Model
from search.chance import seed_of

MAX_TOKENS = 512
TEMPERATURE = 0.7


def generate_candidates(
    llm: Model,
    query: str,
    system_prompts: Sequence[str],
    max_tokens: int = MAX_TOKENS,
    temperature: float = TEMPERATURE,
    **more: Any,  # noqa: ANN401 - the other arguments of the parallel one
) -> list[str | None]:
    """`generate_candidates_parallel`, one call after another."""
    limits = (max_tokens, temperature, 1)
    return generate_candidates_parallel(llm, query, system_prompts, *limits, **more)


def generate_candidates_parallel(  # noqa: PLR0913 - the original's arguments, and what names a model
    llm: Model,
    query: str,
    system_prompts: Sequence[str],
    max_tokens: int = MAX_TOKENS,
    temperature: float = TEMPERATURE,
    max_workers: int | None = None,
    *,
    model: str,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> list[str | None]:
    """K replies to a query, one for each system prompt.

    Args:
        llm: answers the calls, on any thread: a dispatcher.
        query: the user's turn.
        system_prompts: K of them.
        max_tokens: the most tokens of a reply.
        temperature: at 0 equal prompts get equal replies.
        max_workers: the most calls at once; None: all K, as far as the dispatcher lets them.
        model: as the server lists it.
        seed: equal arguments get equal replies from a server that heeds seeds.
        options: more of Ollama's options.

    Returns:
        The replies in order; None for one that failed.
    """
    own = {**(options or {}), "num_predict": max_tokens, "temperature": temperature}
    calls = candidate_calls(Call(model=model, prompt=query, options=own), system_prompts, seed)
    replies = in_parallel(llm.generate, calls, max_workers)
    return [None if reply.error else reply.text for reply in replies]


def candidate_calls(template: Call, system_prompts: Sequence[str], seed: int) -> list[Call]:
    """One call for each system prompt, in order.

    Equal prompts have seeds of their own, by how many equal ones stand before: a prompt's reply is
    the same wherever it stands. At temperature 0 nothing is drawn, and equal prompts are one call.
    """
    calls = []
    for index, prompt in enumerate(system_prompts):
        own = seed_of(seed, "candidate", system_prompts[:index].count(prompt))
        drawn = {**template.options, "seed": own if template.options["temperature"] else seed}
        calls.append(replace(template, system=prompt, options=drawn))
    return calls
