"""Intervals for rates and means that hold for any number of queries, also where outcomes are rare.

The query is the unit: trials of one query are alike. Of a policy that was trained with several
seeds, which all met the same queries, the seeds are a second sample.

Each end takes one more query into the sample, with the worst outcome that there can be, weighs the
queries by chance (a flat Dirichlet distribution, as in Rubin's Bayesian bootstrap of 1981), and is
a quantile of the weighted mean (Gaffke 2005; Learned-Miller and Thomas 2019, arXiv 1905.06208).
With one success or failure a query it is Clopper and Pearson's exact interval (1934). For other
values no sample is known that it holds less often; that it always holds is proved for two values
alone. `benchmarks/coverage.py` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Sums = Sequence[tuple[float, int]]
"""For each query the sum of the values of its trials, and their number."""
Ends = Floats | tuple[float, float]
"""A value for the low end of an interval, and one for the high end."""
TAIL = 0.025
"""How often the truth may be beyond either end: intervals are of 95 %."""
DRAWS = 19_999
"""Sets of weights, always the same ones for a sample: an end's level is `TAIL` +- .001."""
FEWEST_SEEDS = 5
"""With fewer the seeds' own values say all there is to say."""
MERGED = 4
"""Where there are so many times as many rows as different ones, equal rows share one weight."""
_AT_ONCE = 24_000_000
"""Weights that are in memory together: 190 MB."""


class Interval(NamedTuple):
    """An estimate and the ends of its interval."""

    mean: float
    low: float
    high: float


def known(value: float) -> float | None:
    """None for what is not finite, which JSON has no number for."""
    return value if math.isfinite(value) else None


def share(part: float, whole: float) -> float | None:
    """None where there is nothing to take a share of."""
    return part / whole if whole else None


def rate_interval(counts: Iterable[tuple[int, int]], *, size: int | None = None) -> Interval:
    """The share of trials that succeeded, in [0, 1]; nan in (0, 1) without trials.

    Args:
        counts: (successes, trials) of each query.
        size: the most trials that a query can have; None: as many as one of these has.

    Raises:
        ValueError: a count is out of range.
    """
    return ratio_interval([list(counts)], size=size)


def difference_interval(first: Interval, *others: Interval) -> Interval:
    """A mean less others, of which each is of queries of its own.

    How far the ends of each move it is joined as the sides of a right triangle are (Zou and Donner
    2008).
    """
    mean = first.mean - sum(each.mean for each in others)
    down = math.hypot(first.mean - first.low, *(each.high - each.mean for each in others))
    up = math.hypot(first.high - first.mean, *(each.mean - each.low for each in others))
    return Interval(mean, mean - down, mean + up)


def mean_interval(values: Iterable[Sequence[float]], *, least: float, most: float) -> Interval:
    """The mean of all values, which lie from `least` to `most`; see `rate_interval`."""
    sums = [(math.fsum(each), len(each)) for each in values]
    return ratio_interval([sums], least=least, most=most)


def ratio_interval(
    seeds: Sequence[Sums], *, least: float = 0.0, most: float = 1.0, size: int | None = None
) -> Interval:
    """The mean of all values, of one policy or of the seeds of one training; see `rate_interval`.

    Args:
        seeds: one, or several, with the queries in one order.
        least: what no value is below.
        most: what no value is above.
        size: as for `rate_interval`.

    Returns:
        The mean and its interval; with two to four seeds the ends are nan: so few tell nothing of
        others.
    """
    table = _table(seeds)
    table = table[:, table[..., 1].any(0)]
    sums, sizes = table[..., 0], table[..., 1]
    slack = 1e-9 * (most - least) * np.maximum(sizes, 1)
    if not ((sums >= least * sizes - slack) & (sums <= most * sizes + slack)).all():
        raise ValueError(
            f"expected values from {least} to {most}, got {sums.min()} to {sums.max()}"
        )
    if not table.size:
        return Interval(math.nan, least, most)
    mean = math.fsum(sums.flat) / math.fsum(sizes.flat)
    if len(seeds) > 1 and len(table) < FEWEST_SEEDS:
        return Interval(mean, math.nan, math.nan)
    most_trials = sizes.max() if size is None else max(size, sizes.max())
    worst = np.array([least, most]) * most_trials
    totals, counts = draw_means([(sums, worst), (sizes, (most_trials, most_trials))])
    low, high = interval_ends(totals / counts)
    return Interval(mean, max(least, min(low, mean)), min(most, max(high, mean)))


def _table(seeds: Sequence[Sums]) -> Floats:
    """(seeds, queries, 2), the seeds that have any value, in one order however they were given."""
    table = np.array(seeds, np.float64).reshape(len(seeds), -1, 2)
    table = table[table[..., 1].any(1)]
    return table[np.lexsort(table.reshape(len(table), -1).T)] if len(table) > 1 else table


def draw_means(sides: Sequence[tuple[Floats, Ends]]) -> list[Floats]:
    """Means (2, DRAWS) of each side under random weights of the queries, the same for all sides.

    Args:
        sides: a value for each seed and query (seeds, queries), the queries in one order; and the
            two values of the query, and of the seed, that is added for the low and the high end.
    """
    values = np.concatenate([side for side, _ in sides]).T
    worst = np.concatenate([np.repeat([ends], len(side), axis=0) for side, ends in sides]).T
    values, counts = np.unique(values, axis=0, return_counts=True)
    are_merged = MERGED * len(values) <= counts.sum()
    if not are_merged:
        values = np.repeat(values, counts, axis=0)
    ends = np.hstack([np.vstack([values, each]) for each in worst])
    factors = np.hstack([ends, np.ones((len(ends), 1))])
    chance, at_once = np.random.default_rng(0), max(1, _AT_ONCE // len(ends))
    means = []
    for first in range(0, DRAWS, at_once):
        size = min(at_once, DRAWS - first), len(ends)
        if are_merged:
            weights = chance.standard_gamma([*counts, 1.0], size)
        else:
            weights = chance.standard_exponential(size)
        sums = weights @ factors
        means.append(sums[:, :-1] / sums[:, -1:])
    drawn = np.stack(np.split(np.concatenate(means), 2, axis=1))
    by_side = np.split(drawn, np.cumsum([len(side) for side, _ in sides])[:-1], axis=-1)
    return [_over_seeds(each, ends) for each, (_, ends) in zip(by_side, sides, strict=True)]


def _over_seeds(drawn: Floats, worst: Ends) -> Floats:
    """(2, DRAWS), means over the seeds of (2, DRAWS, seeds); one policy alone stands for itself."""
    seeds = drawn.shape[-1]
    if seeds == 1:
        return drawn[..., 0]
    weights = np.random.default_rng(1).standard_gamma(1.0, (DRAWS, seeds + 1))
    weights /= weights.sum(1, keepdims=True)
    return np.asarray((weights[:, :-1] * drawn).sum(-1) + np.outer(worst, weights[:, -1]))


def interval_ends(drawn: Floats) -> tuple[float, float]:
    """The low end, a quantile of the first row of draws (2, DRAWS); the high end, of the second."""
    place = round(TAIL * (DRAWS + 1))
    low = np.partition(drawn[0], place - 1)[place - 1]
    high = np.partition(drawn[1], DRAWS - place)[DRAWS - place]
    return float(low), float(high)


def query_means(seeds: Sequence[Sums]) -> Floats:
    """(seeds, queries), means of what `ratio_interval` takes.

    A seed without a value of a query has the mean of the others, and a query that nobody has a
    value of is nan.
    """
    table = _table(seeds)
    pooled, sizes = table.sum(0), table[..., 1]
    with np.errstate(invalid="ignore"):
        return np.where(sizes > 0, table[..., 0] / sizes, pooled[:, 0] / pooled[:, 1])


def student_interval(sides: Sequence[Floats]) -> tuple[float, float]:
    """Student's interval for a mean, or for the mean of the differences of two, query by query.

    It holds where no query, and no seed, lies far out. The variances over queries and over seeds
    add up (Satterthwaite 1946); queries and seeds of a training are two crossed samples.

    Args:
        sides: one, or two at the same queries, each (seeds, queries), at least two queries.
    """
    # Here, because scipy takes longer to import than a command's help may; it ships no types.
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    by_query = sides[0].mean(0) - (sides[1].mean(0) if len(sides) > 1 else 0.0)
    samples = [by_query, *(side.mean(1) for side in sides if len(side) > 1)]
    parts = [sample.var(ddof=1) / len(sample) for sample in samples]
    variance = sum(parts)
    doubt = sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, samples, strict=True))
    freedom = variance**2 / doubt if doubt else len(by_query) - 1
    half = stdtrit(freedom, 1 - TAIL) * math.sqrt(variance)
    return float(by_query.mean() - half), float(by_query.mean() + half)


def exact_interval(successes: int, n: int) -> tuple[float, float]:
    """The exact interval (Clopper and Pearson 1934) for a rate of n trials; (0, 1) for none.

    Each of its ends, taken as a bound alone, is on the wrong side of the true rate with a chance of
    at most `TAIL`, whatever n and the rate are.
    """
    from scipy.special import betaincinv

    low = float(betaincinv(successes, n - successes + 1, TAIL)) if successes else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - TAIL)) if successes < n else 1.0
    return low, high


def trials_without_success(bound: float) -> int:
    """The fewest trials whose `exact_interval`, without a success, ends at most at `bound`.

    Args:
        bound: above 0, below 1.
    """
    return math.ceil(math.log(TAIL) / math.log1p(-bound))
