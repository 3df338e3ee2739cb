"""Evidence and intervals that hold at any time: stop when you like, the error rate stays."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.betting import interval, is_better, log_evidence

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=30)
RUNS = 400


@pytest.mark.parametrize("population", [None, 60])
def test_a_true_claim_is_rejected_as_seldom_as_delta_says_whenever_one_stops(
    population: int | None,
) -> None:
    chance = np.random.default_rng(0)
    values = (chance.random((RUNS, 60)) < 0.3).astype(float)
    bound = values.mean(1) if population else 0.3
    # The evidence is the largest on the way, so whenever one stopped it was no larger.
    assert (log_evidence(values, bound, population) >= -math.log(0.05)).mean() <= 0.05


def test_over_all_orders_of_a_population_the_capital_is_at_most_one_on_the_mean() -> None:
    population = [0.0, 0.1, 0.4, 0.9, 1.0]
    for seen in range(1, 5):
        rows = np.array(list(permutations(population, seen)))
        logs = log_evidence(rows, float(np.mean(population)), len(population))
        rejected = (logs >= -math.log(0.5)).mean()
        assert rejected <= 0.5


@given(SCORES, SCORES)
def test_rows_side_by_side_are_as_those_alone(a: list[float], b: list[float]) -> None:
    n = min(len(a), len(b))
    rows = np.array([a[:n], b[:n]])
    assert log_evidence(rows, 0.4).tolist() == [float(log_evidence(row, 0.4)) for row in rows]
    lows, highs = interval(rows)
    alone = [interval(row) for row in rows]
    assert lows.tolist() == [float(low) for low, _ in alone]
    assert highs.tolist() == [float(high) for _, high in alone]


def test_one_that_does_better_on_the_same_datapoints_is_found_and_a_margin_asks_for_more() -> None:
    chance = np.random.default_rng(0)
    b = chance.random(200) * 0.5
    a = b + 0.3
    assert is_better(a, b, 0.05)
    assert not is_better(b, a, 0.05)
    assert not is_better(a, b, 0.05, margin=0.4)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_with_the_whole_population_the_answer_is_certain(values: list[float]) -> None:
    scores, size = np.array(values), len(values)
    mean = float(scores.mean())
    assert [float(end) for end in interval(scores, population=size)] == [mean, mean]
    if mean > 0.01:
        assert log_evidence(scores, mean - 0.01, size) == math.inf


@given(SCORES, st.floats(0.01, 0.5))
def test_an_interval_holds_the_mean_and_lies_in_0_to_1(values: list[float], delta: float) -> None:
    low, high = interval(np.array(values), delta)
    assert 0 <= low <= np.mean(values) <= high <= 1


@pytest.mark.parametrize("population", [None, 120])
def test_no_interval_on_the_way_misses_more_often_than_delta_says(population: int | None) -> None:
    chance = np.random.default_rng(1)
    values = (chance.random((RUNS, 120)) < 0.97).astype(float)
    truth = values.mean(1) if population else np.full(RUNS, 0.97)
    missed = np.zeros(RUNS, bool)
    for seen in range(1, 120, 7):
        low, high = interval(values[:, :seen], 0.05, population)
        missed |= (low > truth + 1e-9) | (high < truth - 1e-9)
    assert missed.mean() <= 0.05


def test_no_score_tells_nothing() -> None:
    assert [float(end) for end in interval(np.zeros(0))] == [0, 1]
    assert log_evidence(np.zeros(0), 0.5) == 0


def test_what_is_out_of_range_is_one_clear_line() -> None:
    with pytest.raises(ValueError, match="expected values from 0 to 1"):
        log_evidence(np.array([1.5]), 0.5)
    with pytest.raises(ValueError, match="expected at most 1 values"):
        log_evidence(np.array([0.5, 0.5]), 0.5, 1)
