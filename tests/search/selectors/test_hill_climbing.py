"""Hill climbing over combinations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from search.selectors.combination import Combination, places_of
from search.selectors.hill_climbing import HillClimbingSelector
from tests.search.selectors.tables import Table, bernoulli, evaluated, grid, lookup


def climb(table: Table, shape: tuple[int, ...], **settings: Any) -> HillClimbingSelector:  # noqa: ANN401
    choices = grid(*shape)
    return HillClimbingSelector(
        choices, range(table.shape[1]), lookup(table, choices), max_errors=1.0, **settings
    )


def slope(shape: tuple[int, ...]) -> Table:
    """The higher the choices, the higher the score, wherever one stands."""
    scores = [sum(places) / (sum(shape) - len(shape)) for places in places_of(shape)]
    return np.repeat(np.array(scores)[:, None], 4, axis=1)


@pytest.mark.parametrize("seed", range(5))
def test_the_top_of_a_slope_is_found_from_anywhere(seed: int) -> None:
    selector = climb(slope((4, 4, 4)), (4, 4, 4), seed=seed, restarts=1, patience=20)
    evaluated(selector)
    assert selector.named() == 63


def test_each_step_is_a_neighbour_of_the_best_so_far() -> None:
    shape = (4, 4)
    table = bernoulli([0.5] * 16, 20, seed=1)
    selector = climb(table, shape, restarts=1, seed=3)
    places, means = places_of(shape), table.mean(1)
    best: int | None = None
    while requests := selector.ask():
        for number, at in requests:
            assert len(at) == 20
            if best is not None:
                assert sum(a != b for a, b in zip(places[number], places[best], strict=True)) == 1
        evaluate = lookup(table, grid(*shape))
        selector.tell(
            [
                [evaluate(selector.combinations[number], selector.datapoints[i]) for i in at]
                for number, at in requests
            ]
        )
        numbers = [number for number, _ in requests]
        best = max((numbers if best is None else [best, *numbers]), key=lambda number: means[number])


def test_every_climb_begins_at_a_combination_that_was_not_evaluated() -> None:
    flat = np.full((30, 3), 0.5)
    selector = climb(flat, (5, 6), restarts=3, patience=2, batch_size=2)
    # Nothing is ever better: a climb is its beginning and two batches of two.
    assert len(evaluated(selector)) == 3 * 5


def test_a_climb_ends_after_its_iterations() -> None:
    selector = climb(slope((30,)), (30,), restarts=1, iterations=3, batch_size=2)
    assert len(evaluated(selector)) == 1 + 3 * 2


def test_no_combination_is_evaluated_twice_and_a_small_space_is_searched_whole() -> None:
    table = bernoulli([0.2, 0.4, 0.6, 0.5], 10, seed=0)
    selector = climb(table, (2, 2), restarts=10)
    assert sorted(evaluated(selector)) == [0, 1, 2, 3]
    assert selector.cells.seen.tolist() == [10] * 4


def test_one_that_fails_too_often_is_no_place_to_go() -> None:
    choices = grid(3)

    def evaluate(combination: Combination, datapoint: int) -> float:
        if combination["a"] == 2:
            if datapoint == 0:
                raise RuntimeError("down")
            return 1.0
        return 0.1 * float(combination["a"])

    for seed in range(3):
        results = HillClimbingSelector(choices, range(4), evaluate, seed=seed, restarts=1).select_best()
        assert results.best.index == 1
