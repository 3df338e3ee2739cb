"""How many queries a comparison needs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t  # type: ignore[import-untyped]

from scorers.power import detectable_difference, queries_needed

DIFFERENCES = st.floats(0.02, 2)
SPREADS = st.floats(0.05, 1)


def test_the_textbooks_example_needs_as_many_as_it_says() -> None:
    """Half a standard deviation at 80 % needs 34 pairs (Cohen 1988)."""
    assert queries_needed(0.5, sd_of_differences=1) == 34


def test_a_simulated_t_test_finds_the_difference_as_often_as_asked() -> None:
    needed = queries_needed(0.15, sd_of_differences=0.4)
    values = np.random.default_rng(0).normal(0.15, 0.4, (4000, needed))
    ratio = values.mean(1) / (values.std(1, ddof=1) / math.sqrt(needed))
    assert np.mean(ratio > t.isf(0.025, needed - 1)) == pytest.approx(0.8, abs=0.02)


@given(DIFFERENCES, SPREADS)
def test_the_fewest_queries_find_the_difference_and_one_less_does_not(difference: float, sd: float) -> None:
    needed = queries_needed(difference, sd_of_differences=sd)
    assert detectable_difference(needed, sd_of_differences=sd) <= difference + 1e-9
    if needed > 2:
        assert detectable_difference(needed - 1, sd_of_differences=sd) > difference - 1e-9


@given(DIFFERENCES, SPREADS)
def test_a_loss_needs_as_many_as_a_gain(difference: float, sd: float) -> None:
    there, back = (queries_needed(sign * difference, sd_of_differences=sd) for sign in (1, -1))
    assert there == back


@given(st.integers(2, 2000), SPREADS)
def test_what_can_be_seen_grows_with_the_spread(queries: int, sd: float) -> None:
    once, twice = (detectable_difference(queries, sd_of_differences=k * sd) for k in (1, 2))
    assert twice == pytest.approx(2 * once)


def test_a_difference_that_is_always_the_same_needs_no_more_than_two() -> None:
    assert queries_needed(0.1, sd_of_differences=0) == 2
    assert detectable_difference(2, sd_of_differences=0) == 0


@pytest.mark.parametrize(
    ("difference", "sd", "power", "said"),
    [
        (0, 1, 0.8, "a difference other than 0, got 0"),
        (math.nan, 1, 0.8, "a difference other than 0, got nan"),
        (0.1, -1, 0.8, "standard deviation of at least 0, got -1"),
        (0.1, 1, 1, "power=1"),
        (0.1, 1, 0.01, "alpha=0.05 and power=0.01"),
    ],
)
def test_a_question_without_an_answer_is_an_error(
    difference: float, sd: float, power: float, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        queries_needed(difference, sd_of_differences=sd, power=power)


def test_one_query_sees_nothing() -> None:
    with pytest.raises(ValueError, match="at least 2 queries, got 1"):
        detectable_difference(1, sd_of_differences=1)
