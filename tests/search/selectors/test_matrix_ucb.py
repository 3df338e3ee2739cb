"""UCB over a table of scores, with and without a low-rank model of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.selectors.combination import Combination
from search.selectors.matrix_ucb import MatrixUCBSelector
from tests.search.selectors.tables import Table, bernoulli, evaluated, grid, lookup

MEANS = [0.8, 0.6, 0.5, 0.4, 0.3]


def matrix_ucb(table: Table, **options: Any) -> MatrixUCBSelector:  # noqa: ANN401 - whatever settings
    choices = grid(len(table))
    return MatrixUCBSelector(choices, range(table.shape[1]), lookup(table, choices), **options)


@settings(max_examples=25)
@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 40),
    budget=st.floats(0.01, 1),
    rank=st.integers(0, 2),
    seed=st.integers(0, 9),
)
def test_the_budget_is_met_and_datapoints_come_in_their_order(
    rows: int, columns: int, budget: float, rank: int, seed: int
) -> None:
    selector = matrix_ucb(
        bernoulli([0.5] * rows, columns, seed), budget=budget, rank=rank, batch_size=7, max_errors=1.0
    )
    evaluated(selector)
    assert selector.cells.seen.sum() == max(math.ceil(budget * rows * columns - 1e-9), rows)
    for row, count in enumerate(selector.cells.seen.tolist()):
        assert np.isfinite(selector.cells.scores[row, :count]).all()


@pytest.mark.parametrize("rank", [0, 1, pytest.param(2, marks=pytest.mark.soak)])
def test_the_best_gets_the_most_evaluations_and_is_named(rank: int) -> None:
    named = []
    for seed in range(10):
        selector = matrix_ucb(bernoulli(MEANS, 200, seed), rank=rank, seed=seed)
        evaluated(selector)
        named.append(selector.named() == 0 == int(selector.cells.seen.argmax()))
    assert sum(named) >= 9


def test_the_model_knows_what_a_datapoint_does_to_those_that_have_not_seen_it() -> None:
    easy = np.random.default_rng(0).random(200) < 0.5
    table = np.where(easy, 0.9, 0.1) * np.linspace(1, 0.9, 6)[:, None]
    selector = matrix_ucb(table, budget=0.3)
    evaluated(selector)
    scores, truth = selector.cells.scores, table[:, np.array(selector.datapoints)]
    known = np.isfinite(scores)
    assert selector._ensemble is not None
    filled = selector._ensemble.complete(scores, known).mean(0)
    elsewhere = ~known & known.any(0)
    naive = np.broadcast_to(selector.cells.means()[:, None], truth.shape)
    assert np.abs(filled - truth)[elsewhere].mean() < 0.6 * np.abs(naive - truth)[elsewhere].mean()


@pytest.mark.parametrize("rank", [0, 1])
def test_equal_seeds_ask_for_the_same_whatever_the_cap(rank: int) -> None:
    table = bernoulli(MEANS, 60, seed=1)
    one, other = matrix_ucb(table, rank=rank, seed=3), matrix_ucb(table, rank=rank, seed=3)
    assert one.select_best().to_dict() == other.select_best(parallel=True, max_concurrent=7).to_dict()


def test_one_that_can_never_be_named_gets_no_more_evaluations() -> None:
    def evaluate(combination: Combination, datapoint: int) -> float:
        if combination["a"] == 0 and datapoint % 2:
            raise RuntimeError("down")
        return 0.9 if combination["a"] == 0 else 0.3

    selector = MatrixUCBSelector(grid(2), range(100), evaluate, budget=1.0, rank=0, batch_size=1)
    assert selector.select_best().best.index == 1
    assert selector.cells.errors[0] == 11


@pytest.mark.parametrize(("datapoints", "asked"), [(50, 40), (20_000, 100)])
def test_a_round_is_40_cells_or_a_thousandth_of_all_if_that_is_more(datapoints: int, asked: int) -> None:
    selector = MatrixUCBSelector(grid(5), range(datapoints), lambda _c, _d: 0.5, rank=0)
    for _ in range(2):
        requests = selector.ask()
        selector.tell([[0.5] * len(places) for _, places in requests])
    assert sum(len(places) for _, places in requests) == asked
