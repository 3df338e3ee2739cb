"""Two policies on the same queries: how far apart they are, and whether that can be chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from scorers.sign_flips import SignFlips, sign_flips
from scorers.statistics import Floats, span_of, standard_deviations, student_intervals

_SAME = 1e-12
"""Means that differ by no more are equal, but for the rounding of floats."""


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
    values = {value for trials in (*a, *b) for value in trials}
    bound = 1.0 if values and values <= {0, 1} else math.inf
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


def _mcnemar(differing: Floats) -> SignFlips:
    """McNemar's exact test (McNemar 1947): a fair coin for each query that came out differently."""
    from scipy.stats import binomtest  # type: ignore[import-untyped]

    wins, queries = int((differing > 0).sum()), len(differing)
    return SignFlips(float(binomtest(wins, queries).pvalue) if queries else 1.0, "exact McNemar")
