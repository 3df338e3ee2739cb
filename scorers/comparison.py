"""Two policies on the same queries: how far apart they are, and whether that can be chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scorers.statistics import (
    DRAWS,
    FEWEST_SEEDS,
    TAIL,
    Interval,
    Sums,
    draw_means,
    interval_ends,
    query_means,
)

_SAME = 1e-12
"""Means that differ by no more are equal."""
FEWEST_DIFFERING = 6
"""With fewer queries that differ no p-value is below .05."""
POWER = 0.8
"""How often a true difference is to be found, where the queries for it are counted."""
Trials = Sequence[Sequence[float]]
"""For each query the values of its trials."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What became of one policy, a, less what became of another, b, query by query.

    Without a query that both have trials of the difference is nan; with 2 to 4 seeds on a side the
    ends and the p-value are.
    """

    difference: float = math.nan
    """The mean over the queries of the mean of a's trials less that of b's."""
    low: float
    high: float
    p_value: float = 1.0
    """How often chance alone brings as much where the means do not differ."""
    deviation: float = math.nan
    """The standard deviation of the queries' differences; nan without two queries."""
    queries: int = 0
    """How many queries both have trials of."""
    left_out: int
    """How many queries only one of them has trials of, or neither."""
    wins: int = 0
    """Queries in which a did better."""
    losses: int = 0


def compare(a: Trials, b: Trials) -> Comparison:
    """Compare two policies paired by query; every query counts as one, however many trials it has.

    The interval is that of `scorers.statistics` for the differences. The test is its inverse: the
    p-value is at most .05 exactly if the interval leaves 0 out. With one success or failure each it
    is McNemar's exact test (McNemar 1947).

    Args:
        a: for each query the values, from 0 to 1, of its trials under one policy.
        b: those under the other, for the same queries in the same order.

    Raises:
        ValueError: they are not of equally many queries.
    """
    return compare_seeds(*([[(math.fsum(each), len(each)) for each in side]] for side in (a, b)))


def compare_seeds(
    a: Sequence[Sums], b: Sequence[Sums], *, least: float = 0.0, most: float = 1.0
) -> Comparison:
    """`compare` for values from `least` to `most`, and for policies trained with several seeds.

    `a` and `b` have the sums of each seed, all at the same queries. The seeds are a sample, too:
    interval and test hold for other seeds.
    """
    if len({len(each) for each in (*a, *b)}) > 1:
        raise ValueError(
            f"expected the trials of the same queries, got {len(a[0])} and {len(b[0])}"
        )
    pairs = zip(zip(*a, strict=True), zip(*b, strict=True), strict=True)
    kept = [
        place for place, pair in enumerate(pairs) if all(any(n for _, n in side) for side in pair)
    ]
    left_out, span = len(a[0]) - len(kept), most - least
    if not kept:
        return Comparison(low=-span, high=span, left_out=left_out)
    means = [query_means([[seed[k] for k in kept] for seed in side]) for side in (a, b)]
    differences = means[0].mean(0) - means[1].mean(0)
    difference = math.fsum(differences) / len(kept)
    low, high, p_value = math.nan, math.nan, math.nan
    sides = zip((a, b), means, strict=True)
    if all(len(side) == 1 or len(each) >= FEWEST_SEEDS for side, each in sides):
        # Moved to 0 and above, so that what is added at the worst is 0 or the span.
        if len(a) == len(b) == 1:  # queries with one difference are one row, and drawn quickly
            (drawn,) = draw_means([(np.round(means[0] - means[1], 12), (-span, span))])
        else:
            of_a, of_b = draw_means([(means[0] - least, (0, span)), (means[1] - least, (span, 0))])
            drawn = of_a - of_b
        low, high = interval_ends(drawn)
        low, high = max(-span, min(low, difference)), min(span, max(high, difference))
        below, above = (drawn[0] <= _SAME).sum(), (drawn[1] >= -_SAME).sum()
        p_value = min(1.0, 2 * (1 + int(min(below, above))) / (1 + DRAWS))
    return Comparison(
        difference=difference,
        low=low,
        high=high,
        p_value=p_value,
        deviation=float(np.sort(differences).std(ddof=1)) if len(kept) > 1 else math.nan,
        queries=len(kept),
        left_out=left_out,
        wins=int((differences > _SAME).sum()),
        losses=int((differences < -_SAME).sum()),
    )


def compare_ratios(a: Sequence[Sums], b: Sequence[Sums]) -> Interval | None:
    """The ratio of one policy less that of another, paired by query, as calls per answered query.

    A ratio is that of the totals. The interval is that of `scorers.statistics`, but nothing bounds
    what is spent. So in the query that is added at the worst, one side spends as much as was ever
    spent on a query and makes nothing, and the other spends as little as was ever spent and makes
    as much as was ever made.

    Args:
        a: for each seed, and for each query, (what was spent, what was made) under one policy.
        b: those under the other, for the same queries in the same order.

    Returns:
        The difference and its interval, nan where a side has 2 to 4 seeds; None where one side made
        nothing.
    """
    sides = [np.array(side, float).reshape(len(side), -1, 2) for side in (a, b)]
    if not all(side[..., 1].any() for side in sides):
        return None
    ratios = [float(side[..., 0].sum() / side[..., 1].sum()) for side in sides]
    difference = ratios[0] - ratios[1]
    if any(1 < len(side) < FEWEST_SEEDS for side in sides):
        return Interval(difference, math.nan, math.nan)
    spent = np.concatenate([side[..., 0].ravel() for side in sides])
    made = max(side[..., 1].max() for side in sides)
    dear, cheap = (spent.max(), 0.0), (spent.min(), made)
    a_spent, a_made, b_spent, b_made = draw_means(
        [
            (side[..., column], (low_end[column], high_end[column]))
            for side, low_end, high_end in zip(sides, (cheap, dear), (dear, cheap), strict=True)
            for column in (0, 1)
        ]
    )
    low, high = interval_ends(a_spent / a_made - b_spent / b_made)
    return Interval(difference, min(low, difference), max(high, difference))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for how many there are (Holm 1979), in the order given."""
    order = np.argsort(p_values, kind="stable")
    stepped = np.maximum.accumulate(np.sort(p_values) * np.arange(len(order), 0, -1))
    return [float(p) for p in np.minimum(1.0, stepped)[np.argsort(order, kind="stable")]]


def queries_needed(difference: float, *, deviation: float, differing: float) -> int:
    """The queries with which a true difference is found with probability `POWER`.

    By the normal approximation of the paired t-test (Cohen 1988, chapter 2), and enough that so
    often six of them differ: with fewer no p-value is below .05.

    Args:
        difference: the mean difference that is to be found, not 0.
        deviation: the standard deviation of the queries' differences, at least 0.
        differing: the share of queries that differ at all, above 0 and at most 1.
    """
    from scipy.stats import nbinom, norm  # type: ignore[import-untyped]

    quantiles = float(norm.ppf(1 - TAIL) + norm.ppf(POWER))
    by_deviation = math.ceil((quantiles * deviation / difference) ** 2 + 2)
    by_differing = FEWEST_DIFFERING + int(nbinom.ppf(POWER, FEWEST_DIFFERING, differing))
    return max(by_deviation, by_differing)
