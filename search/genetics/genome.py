"""What evolves, a system prompt with its worked examples; who becomes a parent; and keyed chance.

All chance depends on the seed and on what it decides, never on what was decided before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import combinations
from random import Random
from statistics import fmean
from typing import Any, NamedTuple, Self


class Example(NamedTuple):
    """A worked example of a task."""

    question: str
    answer: str


@dataclass(frozen=True)
class Genome:
    """One system prompt; equal ones are one genome.

    Raises:
        ValueError: the instructions are blank.
    """

    instructions: str
    """What the model is told to do."""
    examples: tuple[Example, ...] = ()
    """What follows the instructions, in this order."""

    def __post_init__(self) -> None:
        if not self.instructions.strip():
            raise ValueError(f"instructions are {self.instructions!r}; expected a text that is not blank")

    @cached_property
    def prompt(self) -> str:
        """The whole system prompt."""
        shown = (f"Question: {example.question}\nAnswer: {example.answer}" for example in self.examples)
        return "\n\n".join((self.instructions, *shown))

    @cached_property
    def words(self) -> frozenset[str]:
        """The different words of the prompt, without capitals."""
        return frozenset(self.prompt.casefold().split())

    def to_json(self) -> dict[str, Any]:
        """The genome as plain data."""
        return {
            "instructions": self.instructions,
            "examples": [example._asdict() for example in self.examples],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The genome that `to_json` gave."""
        return cls(data["instructions"], tuple(Example(**example) for example in data["examples"]))


SELECTIONS = ("tournament", "rank", "roulette")
"""The names that `select` knows."""


def select(kind: str, fitnesses: Sequence[float], rng: Random, *, tournament_size: int = 3) -> int:
    """The index of one candidate, drawn so that the fitter come up more often.

    Args:
        kind: `tournament`: the fittest of `tournament_size` drawn with replacement. `rank`: with a chance
            that rises evenly from the worst to the best (Baker 1985, twice the mean for the best); equals
            share theirs. `roulette`: with a chance in proportion to the fitness; a fair draw where all are 0.
        fitnesses: of the candidates, each at least 0.
        rng: the only source of chance.
        tournament_size: how many meet, at least 1; the other kinds leave it alone.

    Raises:
        ValueError: no candidate, or no such kind.
    """
    if not fitnesses:
        raise ValueError("nobody to select from; expected at least one fitness")
    if kind == "tournament":
        return fittest([rng.randrange(len(fitnesses)) for _ in range(tournament_size)], fitnesses)
    if kind not in SELECTIONS:
        raise ValueError(f"selection is {kind!r}; expected one of {', '.join(SELECTIONS)}")
    return _weighted(_ranks(fitnesses) if kind == "rank" else list(fitnesses), rng)


def fittest(entrants: Iterable[int], fitnesses: Sequence[float]) -> int:
    """The winner of a tournament: the entrant, by its index, of the highest fitness; of equals the first."""
    return max(entrants, key=lambda index: (fitnesses[index], -index))


def _ranks(fitnesses: Sequence[float]) -> list[float]:
    """How many are worse, and half of those that are equal: 0.5 for the worst, if it is alone."""
    ordered = sorted(fitnesses)
    return [(bisect_left(ordered, each) + bisect_right(ordered, each)) / 2 for each in fitnesses]


def _weighted(weights: list[float], rng: Random) -> int:
    if sum(weights) <= 0:
        return rng.randrange(len(weights))
    return rng.choices(range(len(weights)), weights)[0]


def distance(a: Genome, b: Genome) -> float:
    """The share of the words of either prompt that the other lacks (Jaccard 1912): 0 to 1."""
    union = len(a.words | b.words)
    return len(a.words ^ b.words) / union if union else 0.0


def diversity(genomes: Sequence[Genome]) -> float:
    """The mean distance between two of them, 0 to 1; 0 for fewer than two."""
    pairs = [distance(a, b) for a, b in combinations(genomes, 2)]
    return fmean(pairs) if pairs else 0.0


_MOST = 2**31
"""Servers read a seed as a signed 32-bit number."""


def seed_of(seed: int, *what: int | str) -> int:
    """A seed from 0 to 2^31 - 1 of its own for `what`."""
    digest = blake2b(repr((seed, *what)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _MOST


def chance(seed: int, *what: int | str) -> Random:
    """A stream of chance of its own for `what`."""
    return Random(seed_of(seed, *what))
