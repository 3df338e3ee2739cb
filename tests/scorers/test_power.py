"""How many queries a comparison needs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, nct, t  # type: ignore[import-untyped]

from scorers.comparison import queries_needed

DIFFERENCES = st.floats(0.02, 2)
SPREADS = st.floats(0.05, 1)


def found_share(difference: float, sd: float, queries: int) -> float:
    """How often a t-test at .05 finds the difference on its right side."""
    threshold = t.isf(0.025, queries - 1)
    return float(nct.sf(threshold, queries - 1, difference / sd * math.sqrt(queries)))


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
    assert found_share(difference, sd, needed) >= 0.8 - 1e-9
    if needed > 6:
        assert found_share(difference, sd, needed - 1) < 0.8 + 1e-9


@given(DIFFERENCES, SPREADS)
def test_a_loss_needs_as_many_as_a_gain(difference: float, sd: float) -> None:
    there, back = (queries_needed(sign * difference, sd_of_differences=sd) for sign in (1, -1))
    assert there == back


@pytest.mark.parametrize(("alpha", "fewest"), [(0.05, 6), (0.01, 8), (0.001, 11), (0.0625, 6), (0.2, 4)])
def test_however_alike_the_differences_the_sign_flips_need_enough_that_differ(
    alpha: float, fewest: int
) -> None:
    """With one fewer, all on one side, the test does not get below alpha."""
    assert queries_needed(0.3, sd_of_differences=0, alpha=alpha) == fewest
    assert binomtest(fewest, fewest).pvalue < alpha <= binomtest(fewest - 1, fewest - 1).pvalue


@pytest.mark.parametrize("sd", [1e-4, 1e-9, 1e-15])
def test_a_spread_next_to_none_is_as_none(sd: float) -> None:
    assert queries_needed(0.5, sd_of_differences=sd) == 6
    assert queries_needed(0.5, sd_of_differences=sd, differing=1e-3) == queries_needed(
        0.5, sd_of_differences=0, differing=1e-3
    )


@given(st.floats(0.01, 1))
def test_where_few_queries_differ_six_that_do_take_many(differing: float) -> None:
    needed = queries_needed(0.3, sd_of_differences=0, differing=differing)
    assert binom.sf(5, needed, differing) >= 0.8 - 1e-9
    assert needed == 6 or binom.sf(5, needed - 1, differing) < 0.8 + 1e-9


@pytest.mark.parametrize(
    ("difference", "sd", "power", "differing", "said"),
    [
        (0, 1, 0.8, 1, "a difference other than 0, got 0"),
        (math.nan, 1, 0.8, 1, "a difference other than 0, got nan"),
        (0.1, -1, 0.8, 1, "standard deviation of at least 0, got -1"),
        (0.1, 1, 1, 1, "power=1"),
        (0.1, 1, 0.01, 1, "alpha=0.05 and power=0.01"),
        (0.1, 1, 0.8, 0, "share of differing queries above 0 and at most 1, got 0"),
        (0.1, 1, 0.8, 1.1, "share of differing queries above 0 and at most 1, got 1.1"),
    ],
)
def test_a_question_without_an_answer_is_an_error(
    difference: float, sd: float, power: float, differing: float, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        queries_needed(difference, sd_of_differences=sd, power=power, differing=differing)
