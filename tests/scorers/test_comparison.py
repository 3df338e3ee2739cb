"""Two policies on the same queries: the difference, its interval and its test."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest  # type: ignore[import-untyped]

from scorers.comparison import (
    Comparison,
    compare,
    compare_ratios,
    compare_seeds,
    holm,
    queries_needed,
)

FEWER = settings(max_examples=15)
TRIALS = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=3)
PAIRS = st.lists(st.tuples(TRIALS, TRIALS), min_size=1, max_size=30)
Pairs = list[tuple[list[float], list[float]]]


def compared(pairs: Pairs) -> Comparison:
    return compare([a for a, _ in pairs], [b for _, b in pairs])


@FEWER
@given(PAIRS, st.randoms(use_true_random=False))
def test_it_is_of_the_mean_difference_by_query_in_any_order(pairs: Pairs, random: Random) -> None:
    found = compared(pairs)
    assert found.difference == pytest.approx(fmean(fmean(a) - fmean(b) for a, b in pairs))
    assert -1 <= found.low <= found.difference <= found.high <= 1
    assert (found.p_value <= 0.05) == (not found.low <= 0 <= found.high)
    random.shuffle(pairs)
    again = compared(pairs)
    assert (again.low, again.high, again.p_value) == (found.low, found.high, found.p_value)


@FEWER
@given(PAIRS)
def test_swapping_the_policies_turns_everything_round(pairs: Pairs) -> None:
    found, swapped = compared(pairs), compared([(b, a) for a, b in pairs])
    assert (swapped.wins, swapped.losses) == (found.losses, found.wins)
    ends = (-found.high, -found.low, found.p_value)
    assert (swapped.low, swapped.high, swapped.p_value) == pytest.approx(ends, abs=0.05)


@pytest.mark.parametrize(
    ("wins", "losses", "same"), [(6, 0, 174), (5, 0, 3), (20, 8, 32), (3, 1, 8)]
)
def test_with_one_success_or_failure_each_the_test_is_mcnemars(
    wins: int, losses: int, same: int
) -> None:
    pairs = [([1.0], [0.0])] * wins + [([0.0], [1.0])] * losses + [([1.0], [1.0])] * same
    expected = binomtest(wins, wins + losses).pvalue
    assert compared(pairs).p_value == pytest.approx(expected, abs=0.01)


def test_rare_and_large_differences_are_not_taken_for_none() -> None:
    """+.05 in most and -1.2 in 4 %: no difference on the mean, and often none of these is seen."""
    chance, alarms, held = np.random.default_rng(0), 0, 0
    for _ in range(200):
        differences = np.where(chance.random(20) < 0.04, -1.2, 0.05).tolist()
        sides = [[(d, 1) for d in differences]], [[(0.0, 1)] * 20]
        found = compare_seeds(*sides, least=-1.25, most=0.95)
        alarms += found.p_value <= 0.05
        held += found.low <= 0 <= found.high
    assert alarms <= 14
    assert held >= 186


def test_a_query_without_trials_on_either_side_is_left_out_and_counted() -> None:
    found = compare([[1], [], [1, 0]], [[0], [1], []])
    assert (found.queries, found.left_out, found.difference) == (1, 2, 1)
    nothing = compare([[]], [[1]])
    assert (nothing.queries, nothing.low, nothing.high, nothing.p_value) == (0, -1, 1, 1)
    assert math.isnan(nothing.difference)


def test_under_five_seeds_there_is_a_difference_and_neither_interval_nor_test() -> None:
    won, lost = [(1, 1)] * 12, [(0, 1)] * 12
    few = compare_seeds([won, won], [lost])
    assert few.difference == 1
    assert math.isnan(few.low)
    assert math.isnan(few.p_value)
    some, many = (compare_seeds([won] * seeds, [lost]) for seeds in (5, 30))
    assert some.low < many.low
    assert many.p_value < 0.05


def test_the_calls_an_answer_takes_are_compared_by_their_totals() -> None:
    a, b = [[(2, 1), (4, 1), (10, 0)]], [[(3, 1), (4, 1), (5, 1)]]
    found = compare_ratios(a, b)
    assert found is not None
    assert found.mean == pytest.approx(16 / 2 - 12 / 3)
    assert found.low < found.mean < found.high
    assert compare_ratios([[(2, 0)]], [[(2, 1)]]) is None


@given(st.lists(st.floats(0, 1), max_size=20))
def test_corrected_p_values_are_no_smaller_and_keep_their_order(p_values: list[float]) -> None:
    corrected = holm(p_values)
    assert all(p <= after <= 1 for p, after in zip(p_values, corrected, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(np.array(corrected)[order]) >= 0).all()


def test_so_many_queries_find_a_difference_about_as_often_as_asked() -> None:
    n = queries_needed(0.15, deviation=0.5, differing=0.3)
    chance, found = np.random.default_rng(0), 0
    for _ in range(200):
        differences = chance.choice([1, -1, 0], p=[0.2, 0.05, 0.75], size=n)
        pairs = [([float(d > 0)], [float(d < 0)]) for d in differences]
        found += compared(pairs).p_value <= 0.05
    assert 0.7 <= found / 200 <= 0.95
