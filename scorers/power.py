"""How many queries a comparison of two policies needs.

They are those of the paired t-test over queries, whose interval `scorers.comparison` gives (Cohen 1988,
chapter 2; a difference found on the wrong side does not count as found), and enough for its test by flips of
signs, which knows no p-value below 2 / 2^m where m queries differ.
"""

from __future__ import annotations

import math

_FEWEST = 2
_CERTAIN = 1e4
"""A noncentrality with which the difference is always found; scipy gives nan for larger ones."""


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
        return min(_found(effect, queries, alpha), _can_tell(differing, queries, alpha)) >= power

    fewest, enough = 1, _FEWEST
    while not is_enough(enough):
        fewest, enough = enough, 2 * enough
    while enough - fewest > 1:
        middle = (fewest + enough) // 2
        fewest, enough = (fewest, middle) if is_enough(middle) else (middle, enough)
    return enough


def _found(effect: float, queries: int, alpha: float) -> float:
    """How often the two-sided paired t-test finds an effect (difference over deviation) on its right side."""
    # Here, because scipy takes longer to import than a command's help may; it ships no types.
    # Not statsmodels' TTestPower, which is nan far from 0.
    from scipy.stats import nct, t  # type: ignore[import-untyped]

    noncentrality = min(effect * math.sqrt(queries), _CERTAIN)
    return float(nct.sf(t.isf(alpha / 2, queries - 1), queries - 1, noncentrality))


def _can_tell(differing: float, queries: int, alpha: float) -> float:
    """How often enough queries differ for flips of their signs to get below alpha, were all on one side."""
    from scipy.stats import binom

    enough = math.floor(math.log2(2 / alpha)) + 1
    return float(binom.sf(enough - 1, queries, differing))


def _check(sd_of_differences: float, differing: float, power: float, alpha: float) -> None:
    if not 0 <= sd_of_differences < math.inf:
        raise ValueError(f"expected a standard deviation of at least 0, got {sd_of_differences!r}")
    if not 0 < differing <= 1:
        raise ValueError(f"expected a share of differing queries above 0 and at most 1, got {differing!r}")
    if not 0 < alpha < power < 1:
        raise ValueError(f"expected 0 < alpha < power < 1, got alpha={alpha!r} and power={power!r}")
