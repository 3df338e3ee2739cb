"""Actors: which prompts of a population a query is tried with.

An actor is asked for a choice and told what it brought; several choices may be asked for before any is told.
`search/optimizing/policy_actor.py` has the one that learns; those here learn nothing, for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Prompts chosen for a query, and how."""

    query: str
    prompts: tuple[str, ...]
    """All that there were to choose from."""
    places: tuple[int, ...]
    """Those chosen, by their place in `prompts`, in the order drawn."""
    probabilities: tuple[float, ...]
    """Of each of `prompts` under the policy, without what was added to explore."""
    inclusion: tuple[float, ...]
    """Of each chosen one: the chance that it is among the chosen, given how high the others came."""

    @property
    def chosen(self) -> tuple[str, ...]:
        """The prompts chosen, in the order drawn."""
        return tuple(self.prompts[place] for place in self.places)


class Actor(Protocol):
    """Chooses prompts, and may learn from what they brought. Used on one thread."""

    def choose(self, query: str, prompts: Sequence[str], count: int, step: int) -> Choice:
        """Choose `count` prompts (all, where there are fewer) for a query.

        Args:
            query: what is asked.
            prompts: at least one.
            count: at least 1.
            step: keys the chance: the same step with the same policy makes the same choice.
        """
        ...

    def learn(self, choice: Choice, rewards: Sequence[float | None]) -> None:
        """Learn what each chosen prompt brought; None: it brought no reward, which teaches nothing."""
        ...


class RandomActor:
    """Draws evenly, without replacement.

    Args:
        seed: of all its chance.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def choose(self, query: str, prompts: Sequence[str], count: int, step: int) -> Choice:
        """Prompts drawn evenly (`Actor.choose`)."""
        check_choice(prompts, count)
        places = np.random.default_rng((self._seed, step)).permutation(len(prompts))[:count].tolist()
        return Choice(
            query=query,
            prompts=tuple(prompts),
            places=tuple(places),
            probabilities=(1 / len(prompts),) * len(prompts),
            inclusion=(len(places) / len(prompts),) * len(places),
        )

    def learn(self, choice: Choice, rewards: Sequence[float | None]) -> None:
        """Nothing is learned."""


class FixedActor:
    """Always one prompt, whatever the population holds; as many candidates are drawn from that one.

    Args:
        prompt: the prompt; None: the population's first.
    """

    def __init__(self, prompt: str | None = None) -> None:
        self._prompt = prompt

    def choose(self, query: str, prompts: Sequence[str], count: int, step: int) -> Choice:  # noqa: ARG002 - no chance
        """The one prompt, `count` times (`Actor.choose`)."""
        check_choice(prompts, count)
        prompt = prompts[0] if self._prompt is None else self._prompt
        return Choice(
            query=query,
            prompts=(prompt,),
            places=(0,) * count,
            probabilities=(1.0,),
            inclusion=(1.0,) * count,
        )

    def learn(self, choice: Choice, rewards: Sequence[float | None]) -> None:
        """Nothing is learned."""


def check_choice(prompts: Sequence[str], count: int) -> None:
    """Check that there is something to choose.

    Raises:
        ValueError: no prompt is there, or none is asked for.
    """
    if not prompts:
        raise ValueError("an actor needs at least one prompt to choose from, got none")
    if count < 1:
        raise ValueError(f"an actor chooses at least 1 prompt, got a count of {count!r}")
