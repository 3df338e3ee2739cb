"""How many queries a comparison of two policies needs, and what it can see with those it has.

Both are of the paired t-test over queries, whose interval `scorers.comparison` gives; the statistic of
which the standard deviation is asked is one query's difference. Formulas: Cohen 1988, chapter 2; a
difference found on the wrong side does not count as found.
"""

from __future__ import annotations

import math

_FEWEST = 2


def queries_needed(
    difference: float, *, sd_of_differences: float, power: float = 0.8, alpha: float = 0.05
) -> int:
    """The fewest queries with which a true difference is found with probability `power`.

    Args:
        difference: The mean difference that is to be found, not 0.
        sd_of_differences: The standard deviation of the queries' differences, at least 0.
        power: How often it is to be found, above alpha and below 1.
        alpha: How often a difference may be found where there is none, above 0 and below 1.

    Raises:
        ValueError: A number is out of range.
    """
    _check(sd_of_differences, power, alpha)
    if not math.isfinite(difference) or difference == 0:
        raise ValueError(f"expected a difference other than 0, got {difference!r}")
    if sd_of_differences == 0:
        return _FEWEST
    effect = abs(difference) / sd_of_differences
    fewest, enough = 1, _FEWEST
    while _power(effect, enough, alpha) < power:
        fewest, enough = enough, 2 * enough
    while enough - fewest > 1:
        middle = (fewest + enough) // 2
        fewest, enough = (fewest, middle) if _power(effect, middle, alpha) >= power else (middle, enough)
    return enough


def detectable_difference(
    queries: int, *, sd_of_differences: float, power: float = 0.8, alpha: float = 0.05
) -> float:
    """The smallest true difference that so many queries find with probability `power`.

    Args:
        queries: How many there are, at least 2.
        sd_of_differences: As for `queries_needed`.
        power: As for `queries_needed`.
        alpha: As for `queries_needed`.

    Raises:
        ValueError: A number is out of range.
    """
    _check(sd_of_differences, power, alpha)
    if queries < _FEWEST:
        raise ValueError(f"expected at least {_FEWEST} queries, got {queries!r}")
    # Here, because scipy takes longer to import than a command's help may; it ships no types.
    from scipy.optimize import brentq  # type: ignore[import-untyped]

    most = 1.0
    while _power(most, queries, alpha) < power:
        most *= 2
    effect = brentq(lambda x: _power(x, queries, alpha) - power, 0, most)
    return float(effect) * sd_of_differences


def _power(effect: float, queries: int, alpha: float) -> float:
    """How often the two-sided paired t-test finds an effect (difference over deviation) on its right side."""
    # Not statsmodels' TTestPower, which is nan far from 0.
    from scipy.stats import nct, t  # type: ignore[import-untyped]

    return float(nct.sf(t.isf(alpha / 2, queries - 1), queries - 1, effect * math.sqrt(queries)))


def _check(sd_of_differences: float, power: float, alpha: float) -> None:
    if not 0 <= sd_of_differences < math.inf:
        raise ValueError(f"expected a standard deviation of at least 0, got {sd_of_differences!r}")
    if not 0 < alpha < power < 1:
        raise ValueError(f"expected 0 < alpha < power < 1, got alpha={alpha!r} and power={power!r}")
