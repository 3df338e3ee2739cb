"""Bayesian optimisation over combinations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.selectors.bayesian import BayesianSelector
from search.selectors.combination import places_of
from tests.search.selectors.tables import Table, evaluated, grid, lookup


def additive(shape: tuple[int, ...], datapoints: int = 3) -> Table:
    """Scores to which each choice adds its part; the best is in the middle of each name's choices."""
    scores = [
        sum(1 - abs(2 * at / (size - 1) - 1) for at, size in zip(places, shape, strict=True)) / len(shape)
        for places in places_of(shape)
    ]
    return np.repeat(np.array(scores)[:, None], datapoints, axis=1)


def bayesian(shape: tuple[int, ...], **options: Any) -> BayesianSelector:  # noqa: ANN401 - whatever settings
    choices, table = grid(*shape), additive(shape)
    return BayesianSelector(choices, range(table.shape[1]), lookup(table, choices), **options)


@settings(max_examples=10)
@given(shape=st.lists(st.integers(2, 4), min_size=1, max_size=3), budget=st.floats(0.01, 1))
def test_the_budget_is_met_and_each_combination_is_evaluated_whole(shape: list[int], budget: float) -> None:
    selector = bayesian(tuple(shape), budget=budget, batch_size=6)
    assert len(evaluated(selector)) == math.ceil(budget * math.prod(shape) - 1e-9)
    assert set(selector.cells.seen.tolist()) <= {0, 3}


def test_it_begins_at_random_and_then_asks_in_batches() -> None:
    selector = bayesian((6, 6), budget=0.5, batch_size=5)
    evaluated(selector)
    assert [each.combinations for each in selector.rounds] == [6, 5, 5, 2]


@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_it_finds_the_best_of_a_score_with_structure_with_a_quarter_of_the_combinations(seeds: int) -> None:
    named = [bayesian((7, 7), seed=seed, batch_size=1) for seed in range(seeds)]
    for selector in named:
        evaluated(selector)
    # In the middle of 7 times 7; chance would find it 1 time in 4.
    assert [selector.named() for selector in named] == [24] * seeds


def test_equal_seeds_ask_for_the_same_whatever_the_cap() -> None:
    one, other = bayesian((5, 5), seed=3), bayesian((5, 5), seed=3)
    assert one.select_best().to_dict() == other.select_best(parallel=True, max_concurrent=7).to_dict()
