"""Two policies on the same queries: how far apart they are, and whether that can be chance.

`compare` gives the mean difference by query, its interval and the p-value of a test that flips signs
(`sign_flips`); `holm` corrects the p-values of several comparisons. `queries_needed` plans one: the queries
that a paired t-test over them needs (Cohen 1988, chapter 2; a difference found on the wrong side does not
count as found), and enough for the test by flips of signs, whose p-value is at least 2 / 2^m where m queries
differ. `compare_ratios` is for what is no mean, as calls per answered query.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scorers.statistics import (
    Floats,
    Interval,
    SeedPart,
    seed_part,
    span_of,
    standard_deviations,
    student_intervals,
    student_p_value,
)

_SAME = 1e-12
"""Means that differ by no more are equal; so are sums, as a share of all differences together."""
_DRAWN = 99_999
_FEW = 20
"""So many signs are flipped in every way, a million of them."""
_FINEST = 100_000
"""The smallest step, as a part of the largest difference, that is looked for."""
_MOST_WORK = 400_000_000
"""Additions that a count in steps may take: about a second."""
_ROUNDED = 1e-11
"""A ratio that is this near to a fraction is one, but for the rounding of floats."""
_BITS = 8
_FEWEST = 2
_CERTAIN = 1e4
"""A noncentrality with which the difference is always found; scipy gives nan for larger ones."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What became of one policy, less what became of another, query by query."""

    difference: float
    """The mean over the queries of the mean of a's trials less that of b's; nan without queries."""
    low: float
    """The lower end of the interval of the difference; without two queries all is possible."""
    high: float
    """The upper end."""
    deviation: float
    """The standard deviation of the queries' differences (`standard_deviations`); nan without two queries."""
    p_value: float
    """How often chance alone brings a difference as large, where a and b are equal in every query."""
    test: str
    """Which test that is of, and whether it is exact."""
    queries: int
    """How many queries both have trials of."""
    left_out: int
    """How many queries only one of them has trials of, or neither."""
    wins: int
    """Queries in which a did better."""
    losses: int
    """Queries in which b did better."""


class PairedTestResult(NamedTuple):
    """A test of no difference."""

    p_value: float
    """The share of what chance alone may bring that is as far from 0 as what was found, or farther."""
    test: str
    """Which test it is, and whether it is exact."""


def compare(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], *, confidence: float = 0.95
) -> Comparison:
    """Compare two policies paired by query: the difference, its interval, and a test of no difference.

    Query by query the means of the trials are subtracted, so that what the policies share in a query drops
    out, and every query counts as one. The interval is Student's (`student_intervals`); that of a success
    stays in [-1, 1]. The test flips signs: were the policies equal in every query, each difference might as
    well be the other way round, and the p-value is the share of such flips with a sum as far from 0
    (`sign_flips`). With one success or failure each, that is McNemar's exact test.

    Args:
        a: For each query the values (1 or 0 for success, or returns) of its trials under one policy.
        b: Those under the other, for the same queries in the same order.
        confidence: How often such an interval holds the true difference, above 0 and below 1.

    Raises:
        ValueError: They are not of equally many queries, or the confidence is out of range.
    """
    if len(a) != len(b):
        raise ValueError(f"expected the trials of the same queries, got {len(a)} and {len(b)} queries")
    if not 0 < confidence < 1:
        raise ValueError(f"expected a confidence above 0 and below 1, got {confidence!r}")
    bound = _bound([*a, *b])
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if len(x) and len(y)]
    trials = [trial for pair in pairs for trial in pair]
    # Sorted, for a sum of floats depends on their order.
    differences = np.sort([fmean(x) - fmean(y) for x, y in pairs])
    low, high, deviation = -bound, bound, math.nan
    if len(pairs) > 1:
        span = np.float64(span_of(trials))
        ends = student_intervals(differences, span, confidence)
        low, high = (min(bound, max(-bound, float(end))) for end in ends)
        deviation = float(standard_deviations(differences, span))
    single = bound == 1 and bool(pairs) and all(len(each) == 1 for each in trials)
    differing = differences[np.abs(differences) > _SAME]
    test = _mcnemar(differing) if single else sign_flips(differing)
    return Comparison(
        difference=float(differences.mean()) if pairs else math.nan,
        low=low,
        high=high,
        deviation=deviation,
        p_value=test.p_value,
        test=test.test,
        queries=len(pairs),
        left_out=len(a) - len(pairs),
        wins=int((differing > 0).sum()),
        losses=int((differing < 0).sum()),
    )


def compare_seeds(
    a: Sequence[Sequence[Sequence[float]]],
    b: Sequence[Sequence[Sequence[float]]],
    *,
    confidence: float = 0.95,
) -> Comparison:
    """`compare` for policies of which one at least was trained with several seeds, all on the same queries.

    The seeds are a sample, too, and not only the queries: interval and test hold what both leave open. The
    test is Student's (`student_p_value`), since flips of signs by query would take the seeds for the only
    ones there are. A query counts where each side has a trial of it, by whatever seed, and a seed where it
    has a trial of such a query. Where one of several is left, nothing is known of how seeds differ: all is
    possible.

    Args:
        a: For each seed, and for each query, the values of its trials under one policy; one seed, or more.
        b: Those under the other.
        confidence: How often such an interval holds the true difference, above 0 and below 1.

    Raises:
        ValueError: They are not of equally many queries, or the confidence is out of range.
    """
    pooled = [
        [[value for cell in query for value in cell] for query in zip(*side, strict=True)] for side in (a, b)
    ]
    both = compare(*pooled, confidence=confidence)
    kept = [k for k, pair in enumerate(zip(*pooled, strict=True)) if all(pair)]
    if len(kept) < _FEWEST:
        return both
    trials = [side[k] for side in pooled for k in kept]
    differences, span = np.array([fmean(pooled[0][k]) - fmean(pooled[1][k]) for k in kept]), span_of(trials)
    bound = _bound(trials)
    parts = []
    for side, query_trials in zip((a, b), pooled, strict=True):
        with_trials = [seed for seed in side if any(seed[k] for k in kept)]
        if len(side) > 1 and len(with_trials) == 1:
            return replace(both, low=-bound, high=bound, p_value=1.0, test="none: only one seed has trials")
        if len(side) > 1:
            parts.append(_seed_part(with_trials, query_trials, kept))
    ends = student_intervals(differences, np.float64(span), confidence, seeds=parts)
    low, high = (min(bound, max(-bound, float(end))) for end in ends)
    p_value = student_p_value(differences, np.float64(span), parts)
    return replace(both, low=low, high=high, p_value=p_value, test="Student's t over queries and seeds")


def _seed_part(
    side: Sequence[Sequence[Sequence[float]]], pooled: Sequence[Sequence[float]], kept: Sequence[int]
) -> SeedPart:
    """What the seeds of one side add; one without a trial of a query is taken to do there as the others."""
    return seed_part(np.array([[fmean(seed[k] or pooled[k]) for k in kept] for seed in side]))


def compare_ratios(
    a: Sequence[Sequence[tuple[float, float]]],
    b: Sequence[Sequence[tuple[float, float]]],
    *,
    confidence: float = 0.95,
) -> Interval | None:
    """The ratio of one policy less that of another, such as calls per answered query, paired by query.

    A ratio is that of the totals. What varies is each query's residual: what it spent less what it would have
    spent at the ratio, over the mean of what came of a query (the ratio estimator, linearised: Cochran 1977,
    section 6.3). The interval is Student's (`student_intervals`) over the queries' differences of these, and
    holds the seeds' part where a side has several.

    Coverage, in 1,000 simulated evaluations of each of 96 conditions (1 or 4 trials of up to 5 steps, a
    chance of .1 to .9 a step that is alike by .2 or .6 within a query, one policy at twice the calls of the
    other): 95.1 % on the mean at 180 queries (93.1 to 96.9), 95.0 % at 50 (90.9 to 99.1) and 93.8 % at 20,
    where it falls to 80 % if nearly all queries are answered at once and a few take all the calls.

    Args:
        a: For each seed, and for each query, (what was spent, what came of it) under one policy.
        b: Those under the other, for the same queries in the same order.
        confidence: How often such an interval holds the true difference, above 0 and below 1.

    Returns:
        The difference and its interval, infinite with fewer than two queries; None where nothing came of
        what one side spent.
    """
    ratios, residuals = [], []
    for side in (a, b):
        spent, made = np.array(side, float).reshape(len(side), -1, 2).transpose(2, 0, 1)
        if not made.any():
            return None
        ratios.append(float(spent.sum() / made.sum()))
        residuals.append((spent - ratios[-1] * made) / made.mean())
    difference = ratios[0] - ratios[1]
    values = difference + residuals[0].mean(0) - residuals[1].mean(0)
    if len(values) < _FEWEST:
        return Interval(difference, -math.inf, math.inf)
    span = np.float64(max(np.ptp(each) for each in residuals) or 1.0)
    parts = [seed_part(each) for each in residuals if len(each) > 1]
    low, high = student_intervals(values, span, confidence, seeds=parts)
    return Interval(difference, float(low), float(high))


def sign_flips(differences: Floats) -> PairedTestResult:
    """Test differences, of which each might as well have the other sign (Fisher 1935).

    The share of flips is exact where all differences are multiples of one step, as those of successes are
    and of returns with a cost a step: then the sums are counted in whole steps (Pagano and Tritchler 1983).
    It is exact for up to 20 differences of any size, too. Otherwise 99,999 flips are drawn, always the same
    ones, and the one found counts among them (Phipson and Smyth 2010): the p-value is valid, and its standard
    error is sqrt(p (1 - p) / 100,000), .0007 at .05.

    Args:
        differences: (differences,), none of them 0; without any the p-value is 1.
    """
    ordered = differences[np.argsort(np.abs(differences))]
    sizes = np.abs(ordered)
    if (steps := _whole_steps(sizes)) is not None:
        found = abs(int(np.where(ordered > 0, steps, -steps).sum()))
        return PairedTestResult(_counted(steps, found), "exact sign flips by query")
    far = abs(math.fsum(ordered)) - _SAME * float(sizes.sum())
    if len(sizes) <= _FEW:
        return PairedTestResult(float((_all_sums(sizes) >= far).mean()), "exact sign flips by query")
    hits = int((_drawn_sums(sizes) >= far).sum())
    return PairedTestResult((1 + hits) / (1 + _DRAWN), f"sign flips by query, {_DRAWN:,} drawn")


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for how many there are (Holm 1979), in the order given.

    Raises:
        ValueError: One is not in [0, 1].
    """
    for p in p_values:
        if not 0 <= p <= 1:
            raise ValueError(f"expected p-values from 0 to 1, got {p!r}")
    raw = np.array(p_values, float)
    order = np.argsort(raw, kind="stable")
    stepped = np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1))
    corrected = np.empty_like(raw)
    corrected[order] = np.minimum(1.0, stepped)
    return [float(p) for p in corrected]


def queries_needed(
    difference: float,
    *,
    sd_of_differences: float,
    differing: float = 1.0,
    power: float = 0.8,
    alpha: float = 0.05,
) -> int:
    """The fewest queries with which a true difference is found with probability `power`.

    Args:
        difference: The mean difference that is to be found, not 0.
        sd_of_differences: The standard deviation of the queries' differences, at least 0.
        differing: The share of queries that differ at all, above 0 and at most 1.
        power: How often it is to be found, above alpha and below 1.
        alpha: How often a difference may be found where there is none, above 0 and below 1.

    Raises:
        ValueError: A number is out of range.
    """
    _check(sd_of_differences, differing, power, alpha)
    if not math.isfinite(difference) or difference == 0:
        raise ValueError(f"expected a difference other than 0, got {difference!r}")
    effect = abs(difference) / sd_of_differences if sd_of_differences else math.inf

    def is_enough(queries: int) -> bool:
        return _enough_differ(differing, queries, alpha) >= power and _power(effect, queries, alpha) >= power

    fewest, enough = 1, _FEWEST
    while not is_enough(enough):
        fewest, enough = enough, 2 * enough
    while enough - fewest > 1:
        middle = (fewest + enough) // 2
        fewest, enough = (fewest, middle) if is_enough(middle) else (middle, enough)
    return enough


def _bound(trials: Sequence[Sequence[float]]) -> float:
    """How far apart two means can lie at most: 1 where the trials are successes."""
    values = {value for each in trials for value in each}
    return 1.0 if values and values <= {0, 1} else math.inf


def _mcnemar(differing: Floats) -> PairedTestResult:
    """McNemar's exact test (McNemar 1947): a fair coin for each query that came out differently."""
    from scipy.stats import binomtest  # type: ignore[import-untyped]

    wins, queries = int((differing > 0).sum()), len(differing)
    return PairedTestResult(float(binomtest(wins, queries).pvalue) if queries else 1.0, "exact McNemar")


def _whole_steps(sizes: Floats) -> NDArray[np.int64] | None:
    """The ascending sizes in multiples of their largest common step; None where it is too small to count."""
    shares: list[Fraction] = []
    finest = 1
    for ratio in (sizes / sizes[-1:]).tolist():
        shares.append(Fraction(ratio).limit_denominator(_FINEST))
        finest = math.lcm(finest, shares[-1].denominator)
        if finest > _FINEST or abs(shares[-1] - ratio) > _ROUNDED:
            return None
    steps = np.array([int(share * finest) for share in shares], np.int64)
    return steps if len(steps) * int(steps.sum()) <= _MOST_WORK else None


def _counted(steps: NDArray[np.int64], found: int) -> float:
    """The share of flips at least `found` steps from 0: the chance of each sum of the positive steps."""
    chance = np.ones(1)
    for step in steps:
        more = np.zeros(len(chance) + step)
        more[: len(chance)] = chance
        more[step:] += chance
        chance = more / 2
    total = len(chance) - 1
    return min(1.0, float(chance[np.abs(2 * np.arange(total + 1) - total) >= found].sum()))


def _all_sums(sizes: Floats) -> Floats:
    """(2 ** sizes,), how far from 0 the sum is under each flip."""
    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate([sums + size, sums - size])
    return np.abs(sums)


def _drawn_sums(sizes: Floats) -> Floats:
    """(drawn,), how far from 0 the sum is under flips that are drawn: a byte flips eight signs at once."""
    chance = np.random.default_rng(0)
    signs = 1.0 - 2 * (np.arange(2**_BITS)[:, None] >> np.arange(_BITS) & 1)
    sums = np.zeros(_DRAWN)
    for start in range(0, len(sizes), _BITS):
        part = sizes[start : start + _BITS]
        sums += (signs[:, : len(part)] @ part)[chance.integers(2**_BITS, size=_DRAWN, dtype=np.uint8)]
    return np.abs(sums)


def _power(effect: float, queries: int, alpha: float) -> float:
    """How often the two-sided paired t-test finds an effect (difference over deviation) on its right side."""
    # Here, because scipy takes longer to import than a command's help may; it ships no types.
    # Not statsmodels' TTestPower, which is nan far from 0.
    from scipy.special import stdtrit  # type: ignore[import-untyped]
    from scipy.stats import nct

    noncentrality = min(effect * math.sqrt(queries), _CERTAIN)
    return float(nct.sf(-stdtrit(queries - 1, alpha / 2), queries - 1, noncentrality))


def _enough_differ(differing: float, queries: int, alpha: float) -> float:
    """How often enough queries differ for flips of their signs to get below alpha, were all on one side."""
    from scipy.special import bdtrc

    enough = math.floor(math.log2(2 / alpha)) + 1
    return float(bdtrc(enough - 1, queries, differing)) if queries >= enough else 0.0


def _check(sd_of_differences: float, differing: float, power: float, alpha: float) -> None:
    if not 0 <= sd_of_differences < math.inf:
        raise ValueError(f"expected a standard deviation of at least 0, got {sd_of_differences!r}")
    if not 0 < differing <= 1:
        raise ValueError(f"expected a share of differing queries above 0 and at most 1, got {differing!r}")
    if not 0 < alpha < power < 1:
        raise ValueError(f"expected 0 < alpha < power < 1, got alpha={alpha!r} and power={power!r}")
