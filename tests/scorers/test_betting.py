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
RUNS = 200


def test_over_all_orders_of_a_population_the_capital_is_at_most_one_on_the_mean() -> None:
    population = [0.0, 0.1, 0.4, 0.9, 1.0]
    for seen in range(1, 5):
        rows = np.array(list(permutations(population, seen)))
        logs = log_evidence(rows, float(np.mean(population)), len(population))
        rejected = (logs >= -math.log(0.5)).mean()
        assert rejected <= 0.5


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


@pytest.mark.parametrize("population", [None, 120])
def test_no_interval_on_the_way_misses_more_often_than_delta_says(population: int | None) -> None:
    chance = np.random.default_rng(1)
    values = (chance.random((RUNS, 120)) < 0.97).astype(float)
    truth = values.mean(1) if population else np.full(RUNS, 0.97)
    missed = np.zeros(RUNS, bool)
    for seen in range(1, 120, 17):
        low, high = interval(values[:, :seen], 0.05, population)
        missed |= (low > truth + 1e-9) | (high < truth - 1e-9)
    assert missed.mean() <= 0.05
