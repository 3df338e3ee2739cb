"""Intervals for rates and means, so that a small sample does not look like a large one.

Trials come in clusters: those of one query are alike, and tell less than as many of different queries.
`clustered_interval` is for rates, `mean_interval` for anything else; `clustered_intervals` and
`student_intervals` are the same for arrays of samples. `exact_interval` is for rates of independent trials
of which a bound is claimed. Where a policy was trained with several seeds, which all met the same queries,
the seeds are a second sample, crossed with the first: `crossed_rate_interval` and `crossed_mean_interval`.
docs/statistics.md says how well they hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_ENOUGH_CLUSTERS = 8
_SAME = 1e-9
"""Values that differ by less, as a share of how far they can lie apart, differ by rounding alone."""
_SLIGHT = 1e-6
"""A skewness that moves nothing."""
_TINY = 1e-30
"""In place of a variance of 0, to divide by."""


class Interval(NamedTuple):
    """An estimate and the ends of its interval."""

    mean: float
    low: float
    high: float


class SeedPart(NamedTuple):
    """What seeds add to the variance of a mean over queries and seeds."""

    variance: Floats
    """(...), what they add; 0 where the seeds differ by no more than each query's seeds do by chance."""
    doubt: Floats
    """(...), how little is known of it, even where it is 0: the squares of the two variances whose difference
    it is, each over its degrees of freedom."""
    freedom: int
    """One less than there are seeds."""


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval (Wilson 1927) for a rate of `successes` in `n` independent trials.

    Args:
        successes: How many succeeded, 0 to n.
        n: How many there were. With none, nothing is known: (0, 1).
        confidence: How often such an interval holds the true rate, above 0 and below 1.

    Returns:
        Its lower and upper end, both in [0, 1].

    Raises:
        ValueError: A count or the confidence is out of range.
    """
    _check(successes, n, confidence)
    if n == 0:
        return 0.0, 1.0
    low, high = _wilson(np.array(successes / n), np.array(float(n)), _normal_quantile(confidence))
    return float(low), float(high)


def exact_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval (Clopper and Pearson 1934) for a rate of `successes` in `n` independent trials.

    Each of its ends, taken as a bound alone, is on the wrong side of the true rate with a chance of at most
    half of what `confidence` leaves, whatever n and the rate are. So it is for claims, and wider than
    Wilson's interval, which holds the rate that often on the mean.

    Args:
        successes: As for `wilson_interval`.
        n: As for `wilson_interval`.
        confidence: As for `wilson_interval`.

    Returns:
        Its lower and upper end, both in [0, 1].

    Raises:
        ValueError: A count or the confidence is out of range.
    """
    from scipy.special import betaincinv  # type: ignore[import-untyped]

    _check(successes, n, confidence)
    tail = (1 - confidence) / 2
    low = float(betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
    return low, high


def trials_without_success(bound: float, confidence: float = 0.95) -> int:
    """The fewest trials whose `exact_interval`, without a success among them, ends at most at `bound`.

    Args:
        bound: A rate, above 0 and below 1.
        confidence: As for `wilson_interval`.

    Raises:
        ValueError: The bound or the confidence is out of range.
    """
    _check(0, 0, confidence)
    if not 0 < bound < 1:
        raise ValueError(f"expected a bound above 0 and below 1, got {bound!r}")
    return math.ceil(math.log((1 - confidence) / 2) / math.log1p(-bound))


def clustered_interval(
    clusters: Iterable[tuple[int, int]], confidence: float = 0.95, *, cautious: bool = False
) -> tuple[float, float]:
    """Wilson's interval for a rate over trials that come in clusters, such as several trials of one query.

    Args:
        clusters: (successes, n) of each cluster; those without trials are left out.
        confidence: As for `wilson_interval`.
        cautious: As for `clustered_intervals`.

    Returns:
        Its lower and upper end, both in [0, 1]; (0, 1) with fewer than two clusters.

    Raises:
        ValueError: A count or the confidence is out of range.
    """
    filled = [(successes, n) for successes, n in clusters if n]
    for cluster in filled or [(0, 0)]:
        _check(*cluster, confidence)
    if len(filled) < 2:  # noqa: PLR2004 - one cluster tells nothing of how clusters differ
        return 0.0, 1.0
    successes, trials = np.array(filled, dtype=np.float64).T
    low, high = clustered_intervals(successes, trials, confidence, cautious=cautious)
    return float(low), float(high)


def clustered_intervals(
    successes: Floats,
    trials: Floats,
    confidence: float = 0.95,
    seeds: SeedPart | None = None,
    *,
    cautious: bool = False,
) -> tuple[Floats, Floats]:
    """The interval of `clustered_interval` for each of many samples.

    The number of trials becomes the effective one: as many independent trials as would vary like the
    cluster totals do, lessened for the degrees of freedom of that variance (Korn and Graubard 1998), and at
    most the trials there are. Where the rarer outcome came up in fewer than 8 clusters, too little tells how
    alike the trials of a cluster are, and a cluster counts as one trial at most.

    Args:
        successes: (..., clusters), the successes of each cluster.
        trials: (..., clusters), the trials of each cluster, at least one.
        confidence: As for `wilson_interval`.
        seeds: What seeds add to the variance, where the trials of a cluster are of several.
        cautious: Whether a cluster counts as one trial at most however many have the rarer outcome: for
            decisions by an end. Where clusters have equally many trials, no end then falls as successes rise.

    Returns:
        The lower and the upper ends, (...).
    """
    count, n = trials.shape[-1], trials.sum(-1)
    rate = successes.sum(-1) / n
    rarer = np.minimum((successes > 0).sum(-1), (successes < trials).sum(-1))
    away = successes - rate[..., None] * trials
    variance = count / (count - 1) * (away**2).sum(-1) / n**2
    freedom = _degrees_of_freedom(rate, away, n)
    if seeds:
        variance, freedom = _joined(variance, freedom, [seeds])
    # The variance of one trial is rate * (1 - rate) plus what that falls short of on the mean: `variance`.
    effective = np.where(variance > _TINY, rate * (1 - rate) / np.maximum(variance, _TINY) + 1, np.inf)
    quantile = _normal_quantile(confidence)
    student = _student_quantile(freedom, confidence)
    most = np.where((rarer >= _ENOUGH_CLUSTERS) & (not cautious), n, count)
    return _wilson(rate, np.minimum(most, effective * (quantile / student) ** 2), quantile)


def crossed_rate_interval(
    cells: Sequence[Sequence[tuple[int, int]]], confidence: float = 0.95, *, cautious: bool = False
) -> tuple[float, float]:
    """`clustered_interval` for a rate over seeds that all met the same queries; it holds the seeds' part.

    Args:
        cells: For each seed (successes, n) of each query, the queries in one order; n may be 0.
        confidence: As for `wilson_interval`.
        cautious: As for `clustered_intervals`.

    Returns:
        Its lower and upper end, both in [0, 1]; (0, 1) with fewer than two queries or two seeds that have
        trials.

    Raises:
        ValueError: A count or the confidence is out of range, or seeds have different numbers of queries.
    """
    for cell in (cell for row in cells for cell in row):
        _check(*cell, confidence)
    counts = _filled(cells)
    if min(counts.shape[:2]) < 2:  # noqa: PLR2004 - one tells nothing of how they differ
        return 0.0, 1.0
    successes, trials = counts[..., 0], counts[..., 1]
    rate = successes.sum() / trials.sum()
    part = seed_part(rate + (successes - rate * trials) / trials.mean())
    low, high = clustered_intervals(successes.sum(0), trials.sum(0), confidence, part, cautious=cautious)
    return float(low), float(high)


def crossed_mean_interval(cells: Sequence[Sequence[Sequence[float]]], confidence: float = 0.95) -> Interval:
    """`mean_interval` for a mean over seeds that all met the same queries; it holds the seeds' part.

    Args:
        cells: For each seed the values of each query, the queries in one order; a query may have none.
        confidence: As for `wilson_interval`.

    Returns:
        The mean of all values and its interval: infinite with fewer than two queries or two seeds that have
        values, and nan for a mean of nothing.

    Raises:
        ValueError: The confidence is out of range, or seeds have different numbers of queries.
    """
    _check(0, 0, confidence)
    counts = _filled([[(math.fsum(cell), len(cell)) for cell in row] for row in cells])
    if not counts.size:
        return Interval(math.nan, -math.inf, math.inf)
    sums, sizes = counts[..., 0], counts[..., 1]
    mean = math.fsum(sums.flat) / sizes.sum()
    if min(counts.shape[:2]) < 2:  # noqa: PLR2004 - one tells nothing of how they differ
        return Interval(float(mean), -math.inf, math.inf)
    values = mean + (sums - mean * sizes) / sizes.mean()
    span = np.float64(span_of([cell for row in cells for cell in row]))
    low, high = student_intervals(values.mean(0), span, confidence, skewed=True, seeds=[seed_part(values)])
    return Interval(float(mean), float(low), float(high))


def seed_part(values: Floats) -> SeedPart:
    """What seeds add to the variance of a mean over queries and seeds, both drawn from many.

    The variance of the seeds' means is made up of how seeds differ in all queries alike, and of how a query
    comes out by chance or for one seed alone. The second has its share in the queries' variance already, so
    it is taken off, as it is found in the values less the effects of their query and seed (the analysis of
    variance of two crossed random factors: Scheffe 1959, chapter 7; such data are the pigeonhole model of
    Owen 2007, whose bootstrap does not take it off).

    Args:
        values: (..., seeds, queries), at least two of each.
    """
    seeds, queries = values.shape[-2:]
    by_seed, by_query = values.mean(-1, keepdims=True), values.mean(-2, keepdims=True)
    left = values - by_seed - by_query + by_seed.mean(-2, keepdims=True)
    found = by_seed[..., 0].var(-1, ddof=1) / seeds
    by_chance = (left**2).sum((-2, -1)) / ((seeds - 1) * (queries - 1)) / (seeds * queries)
    doubt = found**2 / (seeds - 1) + by_chance**2 / ((seeds - 1) * (queries - 1))
    return SeedPart(np.maximum(found - by_chance, 0.0), doubt, seeds - 1)


def _filled(cells: Sequence[Sequence[tuple[float, int]]]) -> Floats:
    """(seeds, queries, 2) counts less the queries and the seeds that have no trial at all."""
    counts = np.array([list(row) for row in cells], dtype=np.float64).reshape(len(cells), -1, 2)
    has_seed, has_query = counts[..., 1].any(1), counts[..., 1].any(0)
    return np.asarray(counts[has_seed][:, has_query])


def _joined(variance: Floats, freedom: Floats, parts: Sequence[SeedPart]) -> tuple[Floats, Floats]:
    """A variance with what seeds add to it, and its degrees of freedom (Satterthwaite 1946).

    These are no fewer than those of the part that is known least.
    """
    total = variance + sum(part.variance for part in parts)
    doubt = variance**2 / freedom + sum(part.doubt for part in parts)
    fewest = np.minimum(freedom, min((part.freedom for part in parts), default=math.inf))
    joined = np.maximum(fewest, total**2 / np.maximum(doubt, _TINY))
    return np.asarray(total), np.asarray(joined)


def mean_interval(clusters: Sequence[Sequence[float]], confidence: float = 0.95) -> Interval:
    """The mean of values that come in clusters, and its interval (`student_intervals`, for skewed values).

    The mean is of all values, so that a cluster weighs as many as it has. What varies is each cluster's sum
    less what it would be at the mean (the ratio estimator: Cochran 1977, section 6.3).

    Args:
        clusters: The values of each cluster; those without any are left out.
        confidence: As for `wilson_interval`.

    Returns:
        The mean and its interval: infinite with fewer than two clusters, and nan for a mean of nothing.

    Raises:
        ValueError: The confidence is out of range.
    """
    _check(0, 0, confidence)
    filled = [cluster for cluster in clusters if len(cluster)]
    if not filled:
        return Interval(math.nan, -math.inf, math.inf)
    sums, sizes = (np.array([f(c) for c in filled], dtype=np.float64) for f in (math.fsum, len))
    mean = math.fsum(sums) / sizes.sum()
    if len(filled) < 2:  # noqa: PLR2004 - one cluster tells nothing of how clusters differ
        return Interval(float(mean), -math.inf, math.inf)
    values = mean + (sums - mean * sizes) / sizes.mean()
    low, high = student_intervals(values, np.float64(span_of(filled)), confidence, skewed=True)
    return Interval(float(mean), float(low), float(high))


def student_intervals(
    values: Floats,
    span: Floats | np.float64,
    confidence: float = 0.95,
    *,
    skewed: bool = False,
    seeds: Sequence[SeedPart] = (),
) -> tuple[Floats, Floats]:
    """Student's interval for the mean of each of many samples, honest where few values differ.

    The degrees of freedom are those of the variance that was found (Satterthwaite 1946): one less than there
    are values where they lie as normal ones do, and fewer where a few values make up the variance. Where all
    values are the same, the interval is as wide as if one of them lay `span` away.

    Args:
        values: (..., values), at least two.
        span: (...), how far two values can lie apart.
        confidence: As for `wilson_interval`.
        skewed: Whether the ends are moved for the skewness of the values (Hall 1992), as it is right where
            the far values all lie on one side; not where they come on both sides, as differences do.
        seeds: What seeds add to the variance of the mean; of a difference, those of either side.

    Returns:
        The lower and the upper ends, (...).
    """
    count = values.shape[-1]
    mean = values.mean(-1)
    away, same = _away(values, span)
    second, third = ((away**k).mean(-1) for k in (2, 3))
    freedom = _student_freedom(away)
    student = _student_quantile(freedom, confidence)
    skewness = np.where(skewed & ~same, third / second**1.5, 0.0)
    deviation = np.sqrt(second * count / (count - 1))
    half = student / math.sqrt(count)
    low, high = (deviation * _unskewed(end, skewness, count) for end in (half, -half))
    if seeds:
        quantile = _student_quantile(_joined(second / (count - 1), freedom, seeds)[1], confidence)
        added = quantile * np.sqrt(sum(part.variance for part in seeds))
        low, high = np.hypot(low * quantile / student, added), -np.hypot(high * quantile / student, added)
    return mean - low, mean - high


def student_p_value(values: Floats, span: np.float64, seeds: Sequence[SeedPart]) -> float:
    """How often chance brings a mean as far from 0 as that of (values,): Student's test with the seeds' part.

    It is below 0.05 just where the interval of `student_intervals` leaves 0 out.
    """
    from scipy.special import stdtr

    away, _ = _away(values, span)
    variance, freedom = _joined((away**2).mean() / (len(values) - 1), _student_freedom(away), seeds)
    return float(2 * stdtr(freedom, -abs(values.mean()) / math.sqrt(variance)))


def _student_freedom(away: Floats) -> Floats:
    """How well the variance of values is known, by how far each lies from their mean, (...)."""
    count = away.shape[-1]
    tailed = np.maximum(0, (away**4).mean(-1) / (away**2).mean(-1) ** 2 - 3)
    return np.asarray(2 / (2 / (count - 1) + tailed / count))


def standard_deviations(values: Floats, span: Floats | np.float64) -> Floats:
    """The standard deviation of each of many samples, as `student_intervals` takes it, (...).

    Where all values are the same, it is that of as many of which one lies `span` away.

    Args:
        values: (..., values), at least two.
        span: (...), how far two values can lie apart.
    """
    away, _ = _away(values, span)
    return np.asarray(np.sqrt((away**2).sum(-1) / (values.shape[-1] - 1)))


def _away(values: Floats, span: Floats | np.float64) -> tuple[Floats, NDArray[np.bool_]]:
    """How far each value lies from the mean, as if one lay `span` away where all are the same; and where."""
    count = values.shape[-1]
    away, widest = values - values.mean(-1, keepdims=True), np.asarray(span, dtype=np.float64)[..., None]
    lone = widest * ((np.arange(count) == 0) - 1 / count)
    same = np.abs(away).max(-1, keepdims=True) <= _SAME * widest
    return np.where(same, lone, away), same[..., 0]


def _unskewed(ratio: Floats, skewness: Floats, count: int) -> Floats:
    """The distance of a mean, over the deviation, that Hall's (1992) transformation takes to `ratio`."""
    some = np.where(np.abs(skewness) > _SLIGHT, skewness, 1.0)
    moved = 3 / some * (np.cbrt(1 + some * (ratio - some / (6 * count))) - 1)
    return np.where(np.abs(skewness) > _SLIGHT, moved, ratio)


def known(value: float) -> float | None:
    """None for what is not finite, which JSON has no number for."""
    return value if math.isfinite(value) else None


def span_of(clusters: Sequence[Sequence[float]]) -> float:
    """How far the values lie apart at most; 1, as for rates, where they are all the same."""
    values = [value for cluster in clusters for value in cluster]
    return max(values) - min(values) or 1.0


def _degrees_of_freedom(rate: Floats, away: Floats, n: Floats) -> Floats:
    """How well the ratio of the clusters' variance to that of independent trials is known, (...).

    It is twice the clusters over the variance of the ratio's influence values (Satterthwaite 1946, by
    linearisation). With one trial a cluster the ratio is 1 whatever comes, and the degrees are boundless.
    """
    count = away.shape[-1]
    squares = away**2 / np.maximum((away**2).mean(-1), _TINY)[..., None] - 1
    # What the cluster adds to the rate moves the variance that independent trials would have.
    slope = (1 - 2 * rate) / np.maximum(rate * (1 - rate), _TINY) * count / n
    known = ((squares - slope[..., None] * away) ** 2).mean(-1)
    return np.asarray(2 * (count - 1) / np.maximum(known, _SAME))


def _wilson(rate: Floats, n: Floats, quantile: float) -> tuple[Floats, Floats]:
    """Wilson's formula for `rate` seen in n trials, which need not be a whole number."""
    shrink = 1 + quantile**2 / n
    centre = (rate + quantile**2 / (2 * n)) / shrink
    half = quantile / shrink * np.sqrt(rate * (1 - rate) / n + quantile**2 / (4 * n**2))
    # Rounding must not put an end on the other side of the rate itself.
    return np.clip(centre - half, 0.0, rate), np.clip(centre + half, rate, 1.0)


def _normal_quantile(confidence: float) -> float:
    # Here, because scipy takes longer to import than a command's help may; it ships no types.
    from scipy.special import ndtri

    return float(ndtri((1 + confidence) / 2))


def _student_quantile(freedom: Floats, confidence: float) -> Floats:
    from scipy.special import stdtrit

    return np.asarray(stdtrit(freedom, (1 + confidence) / 2))


def _check(successes: int, n: int, confidence: float) -> None:
    if not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n, got successes={successes!r} and n={n!r}")
    if not 0 < confidence < 1:
        raise ValueError(f"expected a confidence above 0 and below 1, got {confidence!r}")
