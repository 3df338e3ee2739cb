"""Two policies on the same queries: how far apart they are, and whether that can be chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from scorers.statistics import Floats, span_of, student_intervals

_SAME = 1e-12
_GRID = 2**16
"""Steps into which the sum of all differences is cut, to count the ways in which signs can fall."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What became of one policy, less what became of another, query by query."""

    difference: float
    """The mean over the queries of the mean of a's trials less that of b's; nan without queries."""
    low: float
    """The lower end of the interval of the difference; without two queries all is possible."""
    high: float
    """The upper end."""
    p_value: float
    """How often chance alone brings a difference as large, where a and b are equal in every query."""
    test: str
    """Which test that is of."""
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
    well be the other way round, and the p-value is the share of all such flips with a sum as far from 0
    (Fisher 1935). With one success or failure each, that is McNemar's exact test.

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
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if len(x) and len(y)]
    trials = [trial for pair in pairs for trial in pair]
    binary = all(value in {0, 1} for values in trials for value in values)
    # Sorted, for a sum of floats depends on their order.
    differences = np.sort([fmean(x) - fmean(y) for x, y in pairs])
    bound = 1.0 if binary else math.inf
    low, high = -bound, bound
    if len(pairs) > 1:
        ends = student_intervals(differences, np.float64(span_of(trials)), confidence)
        low, high = (min(bound, max(-bound, float(end))) for end in ends)
    mcnemar = binary and all(len(values) == 1 for values in trials)
    wins, losses = int((differences > _SAME).sum()), int((differences < -_SAME).sum())
    return Comparison(
        difference=float(differences.mean()) if pairs else math.nan,
        low=low,
        high=high,
        p_value=_mcnemar(wins, losses) if mcnemar else _sign_flips(differences),
        test="exact McNemar" if mcnemar else "exact sign flips by query",
        queries=len(pairs),
        left_out=len(a) - len(pairs),
        wins=wins,
        losses=losses,
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


def _mcnemar(wins: int, losses: int) -> float:
    """McNemar's exact test (McNemar 1947): a fair coin for each query that came out differently."""
    from scipy.stats import binomtest  # type: ignore[import-untyped]

    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def _sign_flips(differences: Floats) -> float:
    """The share of all flips of the signs whose sum is as far from 0 as the one found, or farther.

    The sums of the differences that stay positive are counted by adding one difference after another to a
    grid (Pagano and Tritchler 1983), so that no flips need be drawn; sums that differ by no more than the
    rounding to the grid count as equal.
    """
    differing = differences[np.abs(differences) > _SAME]
    if not len(differing):
        return 1.0
    sizes = np.abs(differing)
    steps = np.rint(sizes / sizes.sum() * _GRID).astype(int)
    total = int(steps.sum())
    chance = np.zeros(total + 1)
    chance[0] = 1.0
    for step in steps:
        moved = np.zeros_like(chance)
        moved[step:] = chance[: total + 1 - step]
        chance = (chance + moved) / 2
    sums = np.abs(2 * np.arange(total + 1) - total)
    found = abs(2 * int(steps[differing > 0].sum()) - total)
    return min(1.0, float(chance[sums >= found - 2 * math.sqrt(len(steps))].sum()))
