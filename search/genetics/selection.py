"""Who becomes a parent: tournament, rank and roulette, each a draw of one index by fitness."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from random import Random

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
        raise ValueError("no candidates; expected at least one fitness")
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
