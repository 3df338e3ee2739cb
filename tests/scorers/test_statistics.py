"""Intervals for rates and means: what they hold, how often, and what they agree with."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest  # type: ignore[import-untyped]
from scipy.stats import t as student

from scorers.statistics import (
    Floats,
    Interval,
    exact_interval,
    mean_interval,
    rate_interval,
    ratio_interval,
    student_interval,
    trials_without_success,
)

LEAST, MOST = -0.25, 0.95
"""What a return of five steps can be at the default cost."""
FEWER = settings(max_examples=15)
CLUSTERS = st.lists(
    st.integers(1, 4).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    min_size=1,
    max_size=40,
)
VALUES = st.lists(st.lists(st.floats(LEAST, MOST), min_size=1, max_size=3), min_size=1, max_size=20)
Clusters = list[tuple[int, int]]


@pytest.mark.parametrize(("successes", "n"), [(0, 12), (1, 12), (11, 12), (97, 100), (90, 180)])
def test_of_single_trials_it_is_scipys_exact_interval(successes: int, n: int) -> None:
    found = rate_interval([(1, 1)] * successes + [(0, 1)] * (n - successes))
    expected = binomtest(successes, n).proportion_ci(method="exact")
    assert found.mean == pytest.approx(successes / n)
    assert found[1:] == pytest.approx((expected.low, expected.high), abs=0.005)
    assert exact_interval(successes, n) == pytest.approx((expected.low, expected.high))


@FEWER
@given(CLUSTERS, st.randoms(use_true_random=False))
def test_an_interval_holds_the_rate_in_any_order_and_failures_mirror_successes(
    clusters: Clusters, random: Random
) -> None:
    found = rate_interval(clusters)
    assert 0 <= found.low <= found.mean <= found.high <= 1
    mirrored = rate_interval([(n - successes, n) for successes, n in clusters])
    assert mirrored == pytest.approx((1 - found.mean, 1 - found.high, 1 - found.low), abs=0.03)
    random.shuffle(clusters)
    assert rate_interval(clusters) == found


@FEWER
@given(CLUSTERS, st.integers(2, 5))
def test_repeating_the_trials_of_each_query_tells_nothing_new(
    clusters: Clusters, times: int
) -> None:
    repeated = rate_interval([(times * successes, times * n) for successes, n in clusters])
    assert repeated == pytest.approx(rate_interval(clusters), abs=0.02)


Draw = Callable[[np.random.Generator], Interval]


def rare_return(queries: int) -> Draw:
    """+.05 in most queries and -1.2 in 4 %."""

    def draw(chance: np.random.Generator) -> Interval:
        values = np.where(chance.random(queries) < 0.04, -1.2, 0.05)
        return mean_interval([[value] for value in values.tolist()], least=-1.25, most=0.95)

    return draw


def refusals_of_lost_queries(share: float) -> Draw:
    """Most queries are answered at once; few are lost for good and refused in five steps each."""

    def draw(chance: np.random.Generator) -> Interval:
        lost = chance.random(30) < share
        return rate_interval([(5, 5) if each else (0, 1) for each in lost.tolist()], size=5)

    return draw


def certain_queries(chance: np.random.Generator) -> Interval:
    """Nine of ten queries are always answered or never, four trials each."""
    rates = np.where(chance.random(30) < 0.9, chance.random(30) < 0.9, 0.9)
    return rate_interval([(int(k), 4) for k in chance.binomial(4, rates)])


def one_of_five_seeds_fails(chance: np.random.Generator) -> Interval:
    rates = np.where(chance.random(5) < 0.2, 0.1, 0.9)
    answered = chance.random((5, 60)) < rates[:, None]
    return ratio_interval([[(int(each), 1) for each in seed] for seed in answered.tolist()])


@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (rare_return(30), 0.96 * 0.05 - 0.04 * 1.2),
        (refusals_of_lost_queries(0.05), 0.25 / 1.2),
        (certain_queries, 0.9),
        (one_of_five_seeds_fails, 0.2 * 0.1 + 0.8 * 0.9),
    ],
)
def test_an_interval_holds_the_truth_where_outcomes_are_rare(draw: Draw, truth: float) -> None:
    chance = np.random.default_rng(0)
    found = [draw(chance) for _ in range(150)]
    assert sum(each.low <= truth <= each.high for each in found) / len(found) >= 0.93


def test_under_five_seeds_there_is_no_interval() -> None:
    seed = [(1, 1), (0, 1), (1, 1)]
    for seeds in (2, 4):
        found = ratio_interval([seed] * seeds)
        assert found.mean == pytest.approx(2 / 3)
        assert math.isnan(found.low)
        assert math.isnan(found.high)
    assert 0 < ratio_interval([seed] * 5).low < ratio_interval([seed] * 50).low


def test_a_seed_or_a_query_without_trials_counts_for_nothing() -> None:
    nothing = (0, 0)
    seed = [(1, 2), (1, 1), nothing]
    assert ratio_interval([*[seed] * 5, [nothing] * 3]) == ratio_interval([seed[:2]] * 5)
    assert math.isnan(ratio_interval([seed, [nothing] * 3]).low)  # of two seeds, no one policy
    assert rate_interval([(3, 4), nothing]) == rate_interval([(3, 4)])
    mean, low, high = mean_interval([[], []], least=LEAST, most=MOST)
    assert math.isnan(mean)
    assert (low, high) == (LEAST, MOST)


def test_students_interval_is_scipys_and_adds_what_seeds_differ_by() -> None:
    values: Floats = np.random.default_rng(0).random(30)
    expected = student.interval(0.95, 29, values.mean(), values.std(ddof=1) / math.sqrt(30))
    assert student_interval([values[None]]) == pytest.approx(expected)
    assert student_interval([values[None], np.zeros((1, 30))]) == pytest.approx(expected)
    seeds = values[None] + np.array([[-0.1], [0.0], [0.1]])
    low, high = student_interval([seeds])
    assert high - low > expected[1] - expected[0]


@given(st.floats(0.001, 0.9))
def test_so_many_trials_without_success_show_a_bound_and_fewer_do_not(bound: float) -> None:
    n = trials_without_success(bound)
    assert exact_interval(0, n)[1] <= bound + 1e-12
    assert n == 1 or exact_interval(0, n - 1)[1] > bound - 1e-12
    assert trials_without_success(0.05) == 72
