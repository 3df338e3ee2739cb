"""What came of each combination at each datapoint: asked once, counted once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from search.scores import score_of

Floats = NDArray[np.float64]
_COSTS = ("latency_s", "prompt_tokens", "completion_tokens", "price")


@dataclass(frozen=True)
class Evaluation:
    """What one combination did at one datapoint."""

    score: float
    """In [0, 1]; more is better."""
    latency_s: float = 0.0
    """Seconds, as the server reported them."""
    prompt_tokens: int = 0
    """Tokens that were read."""
    completion_tokens: int = 0
    """Tokens that were written."""
    price: float = 0.0
    """In whatever currency the prices were given."""


class BadScoreError(ValueError):
    """What an evaluation returned is no score in [0, 1], or its costs are no numbers."""


def checked(outcome: object) -> Evaluation | Exception:
    """An evaluation for a score in [0, 1], or for an evaluation with one and with numbers for its costs.

    What it was instead, as an exception, for anything else.
    """
    if isinstance(outcome, Exception):
        return outcome
    evaluation = outcome if isinstance(outcome, Evaluation) else None
    value = evaluation.score if evaluation else outcome
    score = score_of(value)
    if score is None:
        return BadScoreError(f"expected a score from 0 to 1, got {value!r}")
    if evaluation is None:
        return Evaluation(score)
    for name in _COSTS:
        cost = getattr(evaluation, name)
        if not isinstance(cost, Real) or not math.isfinite(cost):
            return BadScoreError(f"expected a finite number as {name}, got {cost!r}")
    return replace(evaluation, score=score)


class Cells:
    """A table of combinations and datapoints, of which some cells are filled.

    Args:
        combinations: how many rows there are.
        datapoints: how many columns there are, in the order in which they are asked for.
    """

    def __init__(self, combinations: int, datapoints: int) -> None:
        self.scores: Floats = np.full((combinations, datapoints), np.nan)
        """(combinations, datapoints): 0 where the evaluation failed, nan where there was none."""
        self._filled: NDArray[np.bool_] = np.zeros((combinations, datapoints), dtype=np.bool_)
        self.failed: NDArray[np.bool_] = np.zeros((combinations, datapoints), dtype=np.bool_)
        """(combinations, datapoints), where the evaluation failed."""
        self.seen: NDArray[np.int64] = np.zeros(combinations, dtype=np.int64)
        """(combinations,), how many datapoints each was evaluated on, those in error included."""
        self.errors: NDArray[np.int64] = np.zeros(combinations, dtype=np.int64)
        """(combinations,), at how many of them the evaluation failed."""
        self.sums: Floats = np.zeros(combinations)
        """(combinations,), the sums of the scores."""
        self.costs: Floats = np.zeros((combinations, len(_COSTS)))
        """(combinations, 4): sums of latency_s, prompt_tokens, completion_tokens and price."""
        self.first_error: dict[int, Exception] = {}
        """The first error of each combination that had one, in the order of the datapoints asked for."""

    @property
    def datapoints(self) -> int:
        """How many datapoints there are."""
        return int(self.scores.shape[1])

    def has(self, combination: int, place: int) -> bool:
        """Whether this cell is filled."""
        return bool(self._filled[combination, place])

    def fill(self, combination: int, place: int, outcome: Evaluation | Exception) -> None:
        """Write down what came of one cell.

        Raises:
            ValueError: it is filled already.
        """
        if self.has(combination, place):
            raise ValueError(f"combination {combination} was evaluated at datapoint {place} before")
        self._filled[combination, place] = True
        self.seen[combination] += 1
        if isinstance(outcome, Exception):
            self.scores[combination, place] = 0.0
            self.failed[combination, place] = True
            self.errors[combination] += 1
            self.first_error.setdefault(combination, outcome)
            return
        self.scores[combination, place] = outcome.score
        self.sums[combination] += outcome.score
        self.costs[combination] += [getattr(outcome, name) for name in _COSTS]

    def values(self, combination: int, failed_as: float = 0.0) -> Floats:
        """(seen,), the scores of a combination in the order of the datapoints.

        Args:
            combination: its number.
            failed_as: stands where the evaluation failed.
        """
        scores = np.where(self.failed[combination], failed_as, self.scores[combination])
        values: Floats = scores[self._filled[combination]]
        return values

    def mean(self, combination: int) -> float:
        """The mean score, as of `means`."""
        return float(self.means()[combination])

    def means(self) -> Floats:
        """(combinations,), the mean scores, an error counting as 0; nan without datapoints.

        Rounded to twelve digits: what is equal but for the rounding of floats is equal.
        """
        means: Floats = np.full(len(self.seen), np.nan)
        np.divide(self.sums, self.seen, out=means, where=self.seen > 0)
        np.round(means, 12, out=means)
        return means

    def missing(self, combination: int, places: Sequence[int]) -> tuple[int, ...]:
        """Those of these places, each once and in their order, that are not filled."""
        return tuple(place for place in dict.fromkeys(places) if not self.has(combination, place))
