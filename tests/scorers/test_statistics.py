"""Intervals for rates."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.statistics import wilson_interval

COUNTS = st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def test_an_interval_is_wilsons() -> None:
    p, n, z = 0.3, 10, 1.959963984540054
    middle = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    assert wilson_interval(3, 10) == pytest.approx((middle - half, middle + half))


@given(COUNTS, st.floats(0.5, 0.99))
def test_an_interval_holds_the_rate_and_stays_in_bounds(counts: tuple[int, int], confidence: float) -> None:
    successes, n = counts
    low, high = wilson_interval(successes, n, confidence)
    assert 0 <= low <= successes / n + 1e-12
    assert successes / n - 1e-12 <= high <= 1


@given(COUNTS)
def test_failures_mirror_successes(counts: tuple[int, int]) -> None:
    successes, n = counts
    low, high = wilson_interval(successes, n)
    assert wilson_interval(n - successes, n) == pytest.approx((1 - high, 1 - low))


@given(COUNTS)
def test_more_of_the_same_makes_an_interval_narrower(counts: tuple[int, int]) -> None:
    successes, n = counts
    low, high = wilson_interval(successes, n)
    narrow_low, narrow_high = wilson_interval(4 * successes, 4 * n)
    assert narrow_high - narrow_low < high - low


def test_without_trials_nothing_is_known() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "n"), [(-1, 3), (4, 3), (0, -1)])
def test_impossible_counts_are_an_error(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match=f"got successes={successes} and n={n}"):
        wilson_interval(successes, n)


@pytest.mark.parametrize("confidence", [0, 1, 95, -0.5, math.nan])
def test_an_impossible_confidence_is_an_error(confidence: float) -> None:
    with pytest.raises(ValueError, match="expected a confidence above 0 and below 1"):
        wilson_interval(1, 2, confidence)
