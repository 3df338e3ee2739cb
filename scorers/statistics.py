"""Intervals for rates, so that a small sample does not look like a large one."""

from __future__ import annotations


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
    if not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n, got successes={successes!r} and n={n!r}")
    if not 0 < confidence < 1:
        raise ValueError(f"expected a confidence above 0 and below 1, got {confidence!r}")
    if n == 0:
        return 0.0, 1.0
    # Here, because it takes longer to import than a command's help may; scipy ships no types.
    from scipy.stats import binomtest  # type: ignore[import-untyped]

    interval = binomtest(successes, n).proportion_ci(confidence_level=confidence, method="wilson")
    return float(interval.low), float(interval.high)
