"""What came of each combination at each datapoint, and what a selection found: a row for each combination."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_utils.types import Completion, Usage, short_name
from records.user_file import score_of
from scorers.betting import interval
from search.selectors.combination import Combination

Floats = NDArray[np.float64]
_COSTS = ("latency_s", "prompt_tokens", "completion_tokens", "price")
_PER_TOKENS = 1_000_000

Prices = Mapping[str, tuple[float, float]]
"""By model, what a million prompt tokens and a million completion tokens cost, in any currency."""


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

    @classmethod
    def of_calls(cls, score: float, calls: Iterable[tuple[str, Completion]], prices: Prices) -> Evaluation:
        """A score, with what the calls took that it needed.

        Args:
            score: in [0, 1].
            calls: the model of each, as the server lists it, and the reply.
            prices: a model that is not among them costs nothing.
        """
        price_of = {short_name(model): price for model, price in prices.items()}
        taken = [(short_name(model), reply.usage or Usage()) for model, reply in calls]
        price = 0.0
        for model, usage in taken:
            read, written = price_of.get(model, (0.0, 0.0))
            price += (usage.prompt_tokens * read + usage.completion_tokens * written) / _PER_TOKENS
        return cls(
            score,
            latency_s=sum(usage.total_s for _, usage in taken),
            prompt_tokens=sum(usage.prompt_tokens for _, usage in taken),
            completion_tokens=sum(usage.completion_tokens for _, usage in taken),
            price=price,
        )


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
        self._asked: NDArray[np.bool_] = np.zeros((combinations, datapoints), dtype=np.bool_)
        self._filled: NDArray[np.bool_] = np.zeros((combinations, datapoints), dtype=np.bool_)
        self.failed: NDArray[np.bool_] = np.zeros((combinations, datapoints), dtype=np.bool_)
        """(combinations, datapoints), where the evaluation failed."""
        self.asked: NDArray[np.int64] = np.zeros(combinations, dtype=np.int64)
        """(combinations,), how many datapoints each was asked for at, those not told yet included."""
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
        self._ends_found: dict[tuple[float, int | None], tuple[Floats, NDArray[np.int64]]] = {}

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
        seen = self.seen[combination]
        return float(np.round(self.sums[combination] / seen, 12)) if seen else math.nan

    def means(self) -> Floats:
        """(combinations,), the mean scores, an error counting as 0; nan without datapoints.

        Rounded to twelve digits: what is equal but for the rounding of floats is equal.
        """
        means: Floats = np.full(len(self.seen), np.nan)
        np.divide(self.sums, self.seen, out=means, where=self.seen > 0)
        np.round(means, 12, out=means)
        return means

    def ends_found(self, delta: float, population: int | None) -> tuple[Floats, NDArray[np.int64]]:
        """Where to keep the intervals of these settings, for cells that are filled stay as they are.

        Returns:
            (2, combinations), the low and high ends; and (combinations,), how many datapoints they are of.
        """
        unknown = np.repeat([[0.0], [1.0]], len(self.seen), axis=1), np.zeros_like(self.seen)
        return self._ends_found.setdefault((delta, population), unknown)

    def ask_for(self, combination: int, places: Sequence[int]) -> list[int]:
        """Those of these places that were not asked for before, in their order; from now on they are."""
        new = [place for place in dict.fromkeys(places) if not self._asked[combination, place]]
        self._asked[combination, new] = True
        self.asked[combination] += len(new)
        return new


class NoWinnerError(Exception):
    """No combination can be named: each failed too often, or was never evaluated.

    Args:
        message: why, in one line.
        results: what was found all the same.
    """

    def __init__(self, message: str, results: SelectionResults) -> None:
        super().__init__(message)
        self.results = results


@dataclass(frozen=True, kw_only=True)
class CombinationResult:
    """What one combination did."""

    index: int
    """Its number among all combinations."""
    combination: Combination
    """What was chosen."""
    score: float
    """The mean score over its datapoints, an error counting as 0; nan without datapoints."""
    low: float
    """The lower end of the interval of its score over all datapoints that there might be, errors as 0."""
    high: float
    """The upper end, errors as 1."""
    latency_s: float
    """Seconds a datapoint, over those without error."""
    prompt_tokens: float
    """Tokens read a datapoint, over those without error."""
    completion_tokens: float
    """Tokens written a datapoint, over those without error."""
    price: float
    """Price a datapoint, over those without error."""
    datapoints: int
    """How many datapoints it was evaluated on, those in error included."""
    errors: int
    """How many of them failed."""
    is_best: bool
    """Whether it is the one that is named."""
    verdict: str
    """What the selector says of it."""
    first_error: str | None
    """What the first of its errors says."""

    @property
    def tokens(self) -> float:
        """Tokens a datapoint, read and written."""
        return self.prompt_tokens + self.completion_tokens

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it: the choices as their labels say, nan as None."""
        score = None if math.isnan(self.score) else self.score
        return {**vars(self), "combination": self.combination.labels, "score": score}


@dataclass(frozen=True, kw_only=True)
class Round:
    """What was asked at once, and what that left."""

    number: int
    """From 1."""
    combinations: int
    """How many combinations were evaluated."""
    batch_size: int
    """The most datapoints that one of them was evaluated on."""
    evaluations: int
    """How many evaluations there were."""
    errors: int
    """How many of them failed."""
    evaluations_so_far: int
    """Those of this round and all before it."""
    survivors: tuple[int, ...]
    """The numbers of the combinations that may still be named."""
    plan: tuple[int, int] | None = field(default=None, compare=False)
    """`plan_concurrency` of the cap and the batch; None under another driver. No result depends on it."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it, without the plan: equal whatever the cap was."""
        table = {**vars(self), "survivors": list(self.survivors)}
        del table["plan"]
        return table


@dataclass(frozen=True, kw_only=True)
class SelectionResults:
    """All combinations, the one that is named first, then by their lower bound over the dataset."""

    rows: tuple[CombinationResult, ...]
    """One for each combination, also where it was never evaluated."""
    rounds: tuple[Round, ...]
    """How it went."""
    dataset_size: int
    """How many distinct datapoints there are."""
    claim: str
    """How sure the selector is of what it says."""

    @property
    def best(self) -> CombinationResult:
        """The combination that is named.

        Raises:
            ValueError: none is.
        """
        if not self.rows[0].is_best:
            raise ValueError("no combination is named")
        return self.rows[0]

    @property
    def evaluations(self) -> int:
        """How many evaluations were asked for."""
        return sum(row.datapoints for row in self.rows)

    @property
    def errors(self) -> int:
        """How many of them failed."""
        return sum(row.errors for row in self.rows)

    @property
    def savings(self) -> float:
        """The share of brute force's evaluations that was not needed."""
        return 1 - self.evaluations / (len(self.rows) * self.dataset_size)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; nothing in it depends on the cap, or on what was finished when."""
        return {
            "best": self.rows[0].index if self.rows[0].is_best else None,
            "evaluations": self.evaluations,
            "errors": self.errors,
            "savings": self.savings,
            "dataset_size": self.dataset_size,
            "claim": self.claim,
            "combinations": [row.to_dict() for row in self.rows],
            "rounds": [each.to_dict() for each in self.rounds],
        }


_AT_ONCE = 40_000
"""Scores whose intervals are found together: what is computed of them then stays in a processor's cache."""


def _intervals(
    cells: Cells, delta: float, numbers: Sequence[int], population: int | None = None
) -> tuple[Floats, Floats]:
    """The `interval` of each of these combinations, errors as 0 in its low and as 1 in its high end.

    Returns:
        (numbers,) lows and highs.
    """
    chosen = np.array(numbers, dtype=np.int64)
    ends, counts = cells.ends_found(delta, population)
    stale = chosen[counts[chosen] != cells.seen[chosen]]
    for count in np.unique(cells.seen[stale]).tolist():
        same = stale[cells.seen[stale] == count]
        for some in np.array_split(same, 1 + len(same) * count // _AT_ONCE):
            values, at_best = (np.array([cells.values(n, as_) for n in some.tolist()]) for as_ in (0.0, 1.0))
            ends[:, some] = interval(values, delta, population=population, at_best=at_best)
    counts[stale] = cells.seen[stale]
    return ends[0, chosen], ends[1, chosen]


def interval_trail(cells: Cells, delta: float, number: int) -> list[list[float]]:
    """How the interval of a combination narrowed: [datapoints, mean, low, high] after 1, 2, 4, ... and all.

    The ends are those of `CombinationResult` at that time: none of them misses, at any time, with probability
    1 - delta. Datapoints are taken in their order.
    """
    values, at_best = (cells.values(number, failed_as) for failed_as in (0.0, 1.0))
    counts = sorted({*(2**k for k in range(len(values).bit_length())), len(values)} - {0})
    ends = (interval(values[:n], delta, at_best=at_best[:n]) for n in counts)
    return [
        [n, float(values[:n].mean()), float(low), float(high)]
        for n, (low, high) in zip(counts, ends, strict=True)
    ]


def dataset_lows(cells: Cells, delta: float, numbers: Sequence[int]) -> list[float]:
    """Lower bounds of these combinations' means over the dataset, an error as 0; with all seen, the mean.

    It holds at any time with probability 1 - delta, where the datapoints were asked for in their order.
    """
    lows, _ = _intervals(cells, delta, numbers, cells.datapoints)
    size, seen = cells.datapoints, cells.seen
    return [
        cells.mean(number) if seen[number] == size else float(low)
        for number, low in zip(numbers, lows, strict=True)
    ]


def results_of(
    combinations: tuple[Combination, ...],
    cells: Cells,
    rounds: tuple[Round, ...],
    delta: float,
    best: int | None,
    verdicts: Sequence[str],
    claim: str,
) -> SelectionResults:
    """A row for each combination, sorted.

    Args:
        combinations: in the order of their numbers.
        cells: what came of them.
        rounds: how it went.
        delta: how often an interval may ever miss.
        best: the number of the one that is named, if any.
        verdicts: what is said of each, in the order of their numbers.
        claim: how sure that is.
    """
    lows = dataset_lows(cells, delta, range(len(combinations)))
    order = sorted(range(len(combinations)), key=lambda i: (i != best, not cells.seen[i], -lows[i], i))
    ends, highs = _intervals(cells, delta, range(len(combinations)))
    rows = tuple(
        _row(i, combinations[i], cells, (ends[i], highs[i]), verdicts[i], is_best=i == best) for i in order
    )
    return SelectionResults(rows=rows, rounds=rounds, dataset_size=cells.datapoints, claim=claim)


def _row(
    number: int,
    combination: Combination,
    cells: Cells,
    ends: tuple[float, float],
    verdict: str,
    *,
    is_best: bool,
) -> CombinationResult:
    answered = int(cells.seen[number] - cells.errors[number])
    latency_s, prompt_tokens, completion_tokens, price = cells.costs[number] / np.maximum(answered, 1)
    error = cells.first_error.get(number)
    return CombinationResult(
        index=number,
        combination=combination,
        score=cells.mean(number) if cells.seen[number] else math.nan,
        low=float(ends[0]),
        high=float(ends[1]),
        latency_s=float(latency_s),
        prompt_tokens=float(prompt_tokens),
        completion_tokens=float(completion_tokens),
        price=float(price),
        datapoints=int(cells.seen[number]),
        errors=int(cells.errors[number]),
        is_best=is_best,
        verdict=verdict,
        first_error=None if error is None else " ".join(f"{type(error).__name__}: {error}".split()),
    )
