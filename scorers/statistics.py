"""Intervals for rates, so that a small sample does not look like a large one."""

from __future__ import annotations

import math
from collections.abc import Iterable

_ENOUGH_CLUSTERS = 8


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
    # Here, because scipy takes longer to import than a command's help may; it ships no types.
    from scipy.special import ndtri  # type: ignore[import-untyped]

    return _wilson(successes / n, n, float(ndtri((1 + confidence) / 2)))


def clustered_interval(clusters: Iterable[tuple[int, int]], confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval for a rate over trials that come in clusters, such as several trials of one query.

    Trials of one cluster tell less than as many independent ones, so n becomes the effective n: as many
    independent trials as would vary like the cluster totals do (Korn and Graubard 1998), at most n; and the
    normal quantile becomes Student's with one degree of freedom less than there are clusters. Where the rarer
    outcome came up in fewer than 8 clusters, too little tells how alike the trials of a cluster are, and a
    cluster counts as one trial at most.

    Args:
        clusters: (successes, n) of each cluster; those without trials are left out.
        confidence: As for `wilson_interval`.

    Returns:
        Its lower and upper end, both in [0, 1]; (0, 1) with fewer than two clusters.

    Raises:
        ValueError: A count or the confidence is out of range.
    """
    filled = [(successes, n) for successes, n in clusters if n]
    total, n = sum(s for s, _ in filled), sum(n for _, n in filled)
    for cluster in filled or [(0, 0)]:
        _check(*cluster, confidence)
    if len(filled) < 2:  # noqa: PLR2004 - one cluster tells nothing of how clusters differ
        return 0.0, 1.0
    from scipy.special import stdtrit

    rate, count = total / n, len(filled)
    between = count / (count - 1) * sum((s - rate * m) ** 2 for s, m in filled)
    rarer = min(sum(s > 0 for s, _ in filled), sum(s < m for s, m in filled))
    most = n if rarer >= _ENOUGH_CLUSTERS else count
    effective = min(most, n**2 * rate * (1 - rate) / between) if between else most
    return _wilson(rate, effective, float(stdtrit(count - 1, (1 + confidence) / 2)))


def _wilson(rate: float, n: float, quantile: float) -> tuple[float, float]:
    """Wilson's formula for `rate` seen in n trials, which need not be a whole number."""
    shrink = 1 + quantile**2 / n
    centre = (rate + quantile**2 / (2 * n)) / shrink
    half = quantile / shrink * math.sqrt(rate * (1 - rate) / n + quantile**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def _check(successes: int, n: int, confidence: float) -> None:
    if not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n, got successes={successes!r} and n={n!r}")
    if not 0 < confidence < 1:
        raise ValueError(f"expected a confidence above 0 and below 1, got {confidence!r}")
