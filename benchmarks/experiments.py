"""Simulated evaluations whose truth is known, and the conditions under which they are drawn.

Arrays are of shape (experiments, queries). A query has its own chance of success; how the chances of the
queries vary makes trials of one query alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args

import numpy as np
from scipy.special import betaln  # type: ignore[import-untyped]

from benchmarks.tables import Check, at_least, at_most
from scorers.statistics import Floats

Ends = tuple[Floats, Floats]
Alike = Literal["no", "0.2", "0.6", "60 % certain", "90 % certain"]
"""The correlation of two trials of one query; `certain`: so many queries succeed always or never."""
Effect = Literal["none", "0.05", "0.3", "mixed", "few"]
QUERIES, TRIALS = (20, 50, 180), (1, 4, 10)
LOWEST, HIGHEST = 0.94, 0.965
_CERTAIN = {"60 % certain": 0.6, "90 % certain": 0.9}
_MOVED, _FEW = 0.3, 0.05
_STEPS, _STEP_COST = 5, 0.1
RETURN_SPAN = 1 + (_STEPS - 1) * _STEP_COST
"""How far two returns can lie apart: success at once, and none in all steps."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What an evaluation is like."""

    queries: int
    """How many queries there are."""
    trials: int
    """How many trials a query has; where some are missing, at most."""
    alike: Alike
    """How alike the trials of a query are."""

    def row(self) -> dict[str, Any]:
        """The cells that name it."""
        return {"queries": self.queries, "trials": self.trials, "alike": self.alike}

    def chances(self, stream: np.random.Generator, rate: Floats) -> Floats:
        """The chance of each query, (experiments, queries), of which `rate` (experiments, 1) is the mean."""
        shape = (len(rate), self.queries)
        if self.alike == "no":
            return np.broadcast_to(rate, shape)
        if self.alike in _CERTAIN:
            always = (stream.random(shape) < rate).astype(float)
            return np.where(stream.random(shape) < _CERTAIN[self.alike], always, rate)
        a, b = self._beta(rate)
        return stream.beta(a, b, shape)

    def mean_return(self, rate: Floats) -> Floats:
        """The mean of `returns` over all queries and episodes, (experiments,)."""
        steps = sum(self._mean_power(rate, k) for k in range(_STEPS))
        return np.asarray(1 - self._mean_power(rate, _STEPS) - _STEP_COST * steps)[:, 0]

    def _mean_power(self, rate: Floats, power: int) -> Floats:
        """The mean over queries of (1 - chance) ** power, for each experiment's rate."""
        alone = np.asarray((1 - rate) ** power)
        if self.alike == "no":
            return alone
        if self.alike in _CERTAIN:
            certain = _CERTAIN[self.alike]
            return certain * (1 - rate) ** min(power, 1) + (1 - certain) * alone
        a, b = self._beta(rate)
        return np.asarray(np.exp(betaln(a, b + power) - betaln(a, b)))

    def _beta(self, rate: Floats) -> Ends:
        """The parameters of the beta distribution with this mean and correlation."""
        total = 1 / float(self.alike) - 1
        return rate * total, (1 - rate) * total


def conditions() -> Iterator[Condition]:
    """All that are shown."""
    for queries, trials, alike in product(QUERIES, TRIALS, get_args(Alike)):
        yield Condition(queries=queries, trials=trials, alike=alike)


def drawn_rates(stream: np.random.Generator, experiments: int) -> Floats:
    """The true rate of each experiment, (experiments, 1)."""
    return stream.uniform(0.1, 0.9, (experiments, 1))


def lifted(stream: np.random.Generator, chances: Floats, rate: Floats, effect: Effect) -> Ends:
    """The chances of a policy that differs from one with `chances`, and the true difference, (experiments,).

    A number is the share of its failures that the other turns into successes in every query. `mixed`: 0.3 of
    them in half of the queries, and 0.3 of the successes into failures in the others. `few`: one query in 20
    always succeeds.
    """
    failing = 1 - rate[:, 0]
    if effect == "none":
        return chances, np.zeros(len(rate))
    if effect == "mixed":
        gains = stream.random(chances.shape) < 1 / 2
        return chances + _MOVED * (gains - chances), _MOVED * (failing - 1 / 2)
    if effect == "few":
        solved = stream.random(chances.shape) < _FEW
        return np.where(solved, 1.0, chances), _FEW * failing
    return chances + float(effect) * (1 - chances), float(effect) * failing


def returns(stream: np.random.Generator, chances: Floats, trials: int) -> Floats:
    """Each query's mean return: at most 5 steps that cost 0.1 each; a success pays 1 and ends the episode."""
    steps = stream.geometric(np.clip(chances, 1e-9, 1)[..., None], (*chances.shape, trials))
    return np.asarray(((steps <= _STEPS) - _STEP_COST * np.minimum(steps, _STEPS)).mean(-1))


def held(ends: Ends, truth: Floats) -> float:
    """The share of intervals, which may be of the first experiments alone, that hold the truth."""
    low, high = ends
    truth = truth[: len(low)]
    return float(np.mean((low <= truth + 1e-12) & (truth - 1e-12 <= high)))


def checks(what: str, shares: Sequence[float]) -> list[Check]:
    """All conditions together, and the worst on either side."""
    overall = sum(shares) / len(shares)
    inside = sum(LOWEST <= share <= HIGHEST for share in shares)
    worst = f"{what}: the worst of {len(shares)} cells, of which {inside} are within"
    return [
        at_least(f"{what}: all cells together", LOWEST, overall),
        at_most(f"{what}: all cells together", HIGHEST, overall),
        at_least(worst, LOWEST, min(shares)),
        at_most(worst, HIGHEST, max(shares)),
    ]
