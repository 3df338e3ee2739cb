"""Candidate replies to one query, one for each of several system prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ollama_utils.parallel import ParallelError, map_parallel
from ollama_utils.types import Call
from scorers.judge import Model
from search.chance import seed_of

T = TypeVar("T")
R = TypeVar("R")

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


def candidate_calls(like: Call, system_prompts: Sequence[str], seed: int) -> list[Call]:
    """One call for each system prompt, in order.

    Equal prompts have seeds of their own, by how many equal ones stand before: a prompt's reply is
    the same wherever it stands. At temperature 0 nothing is drawn, and equal prompts are one call.
    """
    calls = []
    for place, prompt in enumerate(system_prompts):
        own = seed_of(seed, "candidate", system_prompts[:place].count(prompt))
        drawn = {**like.options, "seed": own if like.options["temperature"] else seed}
        calls.append(replace(like, system=prompt, options=drawn))
    return calls


def in_parallel(fn: Callable[[T], R], items: Iterable[T], max_workers: int | None) -> list[R]:
    """`map_parallel`, but what the first failed item raised is raised as it is."""
    try:
        return map_parallel(fn, items, max_workers)
    except ParallelError as error:
        raise error.failures[min(error.failures)] from None
