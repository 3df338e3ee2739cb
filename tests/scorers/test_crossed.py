"""Intervals and tests over seeds and queries: hand-worked parts, laws, and how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.comparison import Comparison, compare, compare_seeds
from scorers.statistics import (
    clustered_intervals,
    crossed_mean_interval,
    crossed_rate_interval,
    seed_part,
    student_intervals,
)

GRID = st.tuples(st.integers(2, 4), st.integers(2, 6)).flatmap(
    lambda shape: st.lists(
        st.lists(st.integers(0, 1), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)
"""For each seed, whether it succeeded at each query."""


def test_the_seeds_part_is_that_of_the_analysis_of_variance() -> None:
    """Two seeds, three queries: the mean square of the seeds is 6, of what is left 1.5."""
    values = np.array([[1.0, 2.0, 6.0], [2.0, 5.0, 8.0]])
    part = seed_part(values)
    by_seed = 3 * ((3 - 4) ** 2 + (5 - 4) ** 2) / 1
    left = sum(x**2 for x in (0.5, -0.5, 0.0, -0.5, 0.5, 0.0)) / 2
    assert part.variance == pytest.approx((by_seed - left) / 6)
    assert part.freedom == 1
    assert part.doubt == pytest.approx((by_seed / 6) ** 2 / 1 + (left / 6) ** 2 / 2)


def test_seeds_that_differ_by_no_more_than_chance_add_nothing_but_doubt() -> None:
    part = seed_part(np.array([[1.0, 0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0, 0.0]]))
    assert part.variance == 0
    assert part.doubt > 0


def width(interval: Comparison) -> float:
    return interval.high - interval.low


@given(GRID)
def test_an_interval_holds_its_own_rate_and_stays_in_bounds(grid: list[list[int]]) -> None:
    rate = np.mean(grid)
    low, high = crossed_rate_interval([[(x, 1) for x in row] for row in grid])
    assert 0 <= low <= rate + 1e-9
    assert rate - 1e-9 <= high <= 1
    mean, least, most = crossed_mean_interval([[[float(x)] for x in row] for row in grid])
    assert mean == pytest.approx(rate)
    assert least < mean < most


@given(GRID, st.data())
def test_neither_the_order_of_seeds_nor_that_of_queries_matters(
    grid: list[list[int]], data: st.DataObject
) -> None:
    seeds = data.draw(st.permutations(range(len(grid))))
    queries = data.draw(st.permutations(range(len(grid[0]))))
    other = [[grid[s][q] for q in queries] for s in seeds]
    one, two = (crossed_rate_interval([[(x, 1) for x in row] for row in each]) for each in (grid, other))
    assert one == pytest.approx(two)
    none = [[[0.0] for _ in grid[0]]]
    first, second = (compare_seeds([[[float(x)] for x in row] for row in g], none) for g in (grid, other))
    assert (first.low, first.high, first.p_value) == pytest.approx((second.low, second.high, second.p_value))


def test_a_seed_or_a_query_without_trials_counts_for_nothing() -> None:
    cells = [[(1, 2), (2, 2), (0, 2)], [(0, 2), (2, 2), (1, 2)]]
    more = [[*row, (0, 0)] for row in cells] + [[(0, 0)] * 4]
    assert crossed_rate_interval(more) == crossed_rate_interval(cells)
    values: list[list[list[float]]] = [[[1.0], [2.0], []], [[2.0], [4.0], []], [[], [], []]]
    assert crossed_mean_interval(values) == crossed_mean_interval([row[:2] for row in values[:2]])


def test_of_one_seed_or_query_nothing_is_known() -> None:
    assert crossed_rate_interval([[(1, 2), (2, 2)]]) == (0.0, 1.0)
    assert crossed_rate_interval([[], []]) == (0.0, 1.0)
    mean, low, high = crossed_mean_interval([[[1.0]], [[2.0]]])
    assert (mean, low, high) == (1.5, -math.inf, math.inf)
    assert math.isnan(crossed_mean_interval([[], []]).mean)


def test_a_difference_holds_what_the_seeds_of_either_side_leave_open() -> None:
    stream = np.random.default_rng(0)
    queries = stream.normal(size=40)

    def side(seeds: int, spread: float) -> list[list[list[float]]]:
        rows = queries + spread * stream.normal(size=(seeds, 1)) + 0.1 * stream.normal(size=(seeds, 40))
        return [[[float(x)] for x in row] for row in rows]

    one, sure, unsure = side(1, 0.0), side(3, 0.0), side(3, 1.0)
    widths = [width(compare_seeds(a, b)) for a, b in ((sure, one), (unsure, one), (unsure, side(3, 1.0)))]
    assert widths[0] < 0.5 < widths[1]
    assert widths[2] > 0.5
    flipped = compare_seeds(one, unsure)
    assert flipped.difference == pytest.approx(-compare_seeds(unsure, one).difference)


@given(GRID)
def test_the_test_and_the_interval_of_a_difference_agree(grid: list[list[int]]) -> None:
    found = compare_seeds([[[float(x)] for x in row] for row in grid], [[[0.5] for _ in grid[0]]])
    assert (found.p_value < 0.05) == (not found.low <= 0 <= found.high)
    pooled = compare([[*map(float, column)] for column in zip(*grid, strict=True)], [[0.5]] * len(grid[0]))
    assert (found.difference, found.wins, found.losses) == (pooled.difference, pooled.wins, pooled.losses)


def test_a_seed_without_a_trial_tells_nothing_of_how_seeds_differ() -> None:
    """Filled in with what the others did, it would make the interval narrower than two seeds can."""
    stream = np.random.default_rng(1)
    one: list[list[list[float]]] = [[[0.0] for _ in range(20)]]
    two = [[[float(x)] for x in shift + stream.normal(size=20)] for shift in (0.0, 1.0)]
    nothing: list[list[float]] = [[] for _ in range(20)]
    assert compare_seeds([*two, nothing], one) == compare_seeds(two, one)
    left = compare_seeds([two[0], nothing], one)
    assert (left.low, left.high, left.p_value) == (-math.inf, math.inf, 1.0)
    assert left.difference == pytest.approx(compare([*two[0]], one[0]).difference)


def test_queries_without_a_trial_on_one_side_are_left_out() -> None:
    a = [[[1.0], [], [0.0], [1.0]], [[1.0], [], [], [0.0]]]
    found = compare_seeds(a, [[[0.0], [1.0], [0.0], [0.0]]])
    assert (found.queries, found.left_out) == (3, 1)
    with pytest.raises(ValueError, match="same queries"):
        compare_seeds(a, [[[0.0]]])


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_intervals_hold_the_truth_about_as_often_as_they_say(seeds: int, spread: float) -> None:
    """Values from queries, seeds and chance; docs/statistics.md has the whole table, by more experiments."""
    stream, shape = np.random.default_rng([seeds, round(10 * spread)]), (2000, seeds, 60)
    by_query = stream.normal(size=(2000, 1, 60))
    by_seed = spread * stream.normal(size=(2000, seeds, 1))
    values = by_query + by_seed + stream.normal(size=shape)
    low, high = student_intervals(values.mean(1), np.float64(8), seeds=[seed_part(values)])
    assert 0.93 <= ((low <= 0) & (high >= 0)).mean() <= 0.98
    successes = (values > 0).astype(np.float64)
    rates = successes.mean((1, 2))
    low, high = clustered_intervals(
        successes.sum(1), np.full((2000, 60), float(seeds)), seeds=seed_part(successes)
    )
    assert 0.92 <= ((low <= 0.5) & (high >= 0.5)).mean() <= 0.985
    assert (low <= rates).all()
    without, _ = clustered_intervals(successes.sum(1), np.full((2000, 60), float(seeds)))
    assert (low <= without + 1e-12).mean() > 0.99
