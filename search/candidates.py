"""Candidate replies to one query, one for each of several system prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ollama_utils.errors import CallCancelledError
from ollama_utils.parallel import ParallelError, map_parallel
from ollama_utils.types import Call, Completion, Think
from scorers.json_replies import Model
from search.chance import seed_of

T = TypeVar("T")
R = TypeVar("R")

MAX_TOKENS = 512
TEMPERATURE = 0.7


@dataclass(frozen=True, kw_only=True)
class CandidateSettings:
    """How candidates are asked for, whatever the query."""

    model: str
    """As the server lists it."""
    max_tokens: int = MAX_TOKENS
    """A reply is cut after so many."""
    temperature: float = TEMPERATURE
    options: Mapping[str, Any] = field(default_factory=dict)
    """More of Ollama's options (`num_ctx`)."""
    think: Think | None = None
    """Whether a thinking model thinks; None leaves it to the server."""

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("candidates need a model: give its name as the server lists it, model='...'")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens!r}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be finite and not negative, got {self.temperature!r}")

    def calls(self, query: str, system_prompts: Sequence[str], seed: int) -> list[Call]:
        """One call a system prompt, in order.

        A call's seed depends on `seed` and on how many equal prompts came before, so that equal prompts draw
        replies of their own, and a prompt's reply is the same wherever it stands. At temperature 0 there is
        nothing to draw, and equal prompts are one call.
        """
        calls, counts = [], dict.fromkeys(system_prompts, 0)
        for prompt in system_prompts:
            own = {
                **self.options,
                "temperature": self.temperature,
                "num_predict": self.max_tokens,
                "seed": seed_of(seed, "candidate", counts[prompt]) if self.temperature else seed,
            }
            calls.append(Call(model=self.model, prompt=query, system=prompt, options=own, think=self.think))
            counts[prompt] += 1
        return calls


def generate_candidates(  # noqa: PLR0913 - what a reader of the original expects, and what a call says
    llm: Model,
    query: str,
    system_prompts: Sequence[str],
    max_tokens: int = MAX_TOKENS,
    temperature: float = TEMPERATURE,
    *,
    model: str,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    think: Think | None = None,
) -> list[str | None]:
    """K replies to a query, one a system prompt, asked for one after another.

    Args:
        llm: answers the calls.
        query: the user's turn.
        system_prompts: K of them.
        max_tokens: a reply is cut after so many.
        temperature: at 0 equal system prompts get equal replies.
        model: as the server lists it.
        seed: of the replies: the same arguments get the same replies from a server that heeds seeds.
        options: more of Ollama's options.
        think: whether a thinking model thinks; None leaves it to the server.

    Returns:
        The replies in the order of `system_prompts`; None in the place of one that failed.

    Raises:
        ValueError: no model, or a number out of range.
    """
    return generate_candidates_parallel(
        llm,
        query,
        system_prompts,
        max_tokens,
        temperature,
        max_workers=1,
        model=model,
        seed=seed,
        options=options,
        think=think,
    )


def generate_candidates_parallel(  # noqa: PLR0913 - likewise
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
    think: Think | None = None,
) -> list[str | None]:
    """`generate_candidates`, but many at once: it gets the same replies.

    `max_workers` is the most calls at once; None: all K, as far as the dispatcher's gate admits them.
    """
    asking = CandidateSettings(
        model=model, max_tokens=max_tokens, temperature=temperature, options=options or {}, think=think
    )
    completions = do_all(llm.generate, asking.calls(query, system_prompts, seed), max_workers)
    return [None if completion.error else completion.text for completion in completions]


def raise_if_cancelled(completion: Completion) -> Completion:
    """The completion, unless it failed because the run was stopped: that is no failure to go on with.

    Raises:
        CallCancelledError: that is why there is none.
    """
    if isinstance(completion.error, CallCancelledError):
        # A new one: others may raise the one that came, at the same time.
        raise CallCancelledError(str(completion.error))
    return completion


def do_all(fn: Callable[[T], R], items: Iterable[T], max_workers: int | None) -> list[R]:
    """`map_parallel` for a function that raises only what nothing can go on after: it is raised as it came.

    Raises:
        Exception: what `fn` raised for the first item that failed.
    """
    try:
        return map_parallel(fn, items, max_workers)
    except ParallelError as error:
        raise error.failures[min(error.failures)] from None
