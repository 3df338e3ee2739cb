"""Arm elimination names what brute force names, for fewer evaluations."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from search.selectors.arm_elimination import ArmEliminationSelector
from search.selectors.combination import Combination
from search.selectors.registry import make_selector
from search.selectors.selector import Selector
from tests.search.selectors.arms import play
from tests.search.selectors.tables import grid, lookup


@pytest.mark.parametrize("seeds", [50, pytest.param(200, marks=pytest.mark.soak)])
def test_nine_arms_brute_forces_arm_is_named_and_at_least_30_percent_saved(seeds: int) -> None:
    """The issue's claim: at least 94 % at 30 % over 200 seeds; measured: 100 % at 47 %."""
    played = [play("arm_elimination", seed) for seed in range(seeds)]
    assert np.mean([each.named == each.best for each in played]) >= 0.94
    assert np.mean([each.savings for each in played]) >= 0.4


@pytest.mark.parametrize("seeds", [50, pytest.param(200, marks=pytest.mark.soak)])
def test_arms_that_are_alike_are_kept_apart_as_seldom_wrong_as_delta_says(seeds: int) -> None:
    played = [play("arm_elimination", seed, (0.6, 0.6, 0.6, 0.6), delta=0.2) for seed in range(seeds)]
    assert np.mean([each.named == each.best for each in played]) >= 0.8


def test_batches_double_until_one_is_left_that_is_sure_to_fail_seldom_or_all_is_seen() -> None:
    selector = play("arm_elimination", 0, (0.6, 0.6, 0.6)).selector
    assert batches(selector) == [20, 40, 80, 60]
    selector = play("arm_elimination", 0, (0.95, 0.1, 0.1)).selector
    assert selector.rounds[0].survivors == (0,)
    assert selector.cells.seen.tolist() == [71, 20, 20]


def batches(selector: Selector) -> list[int]:
    """The datapoints of each batch, which may be asked for in several rounds."""
    return [size for size, _ in groupby(each.batch_size for each in selector.rounds)]


def test_the_first_batch_and_the_growth_are_settings() -> None:
    means = (0.6, 0.6, 0.6)
    selector = play("arm_elimination", 0, means, n_initial=50, growth_factor=1.0, ahead=0).selector
    assert [each.batch_size for each in selector.rounds] == [50] * 4


def test_who_did_best_so_far_comes_first_in_a_batch() -> None:
    selector = make_selector("arm_elimination", grid(3), range(100), lambda _c, _d: 0.0, ahead=1, n_initial=1)
    scores = {0: 0.4, 1: 0.6, 2: 0.5}
    order: list[int] = []
    while requests := selector.ask():
        order += [number for number, _ in requests]
        selector.tell([[scores[number]] * len(places) for number, places in requests])
    assert order[:3] == [0, 1, 2]
    assert order[6:9] == [1, 2, 0]


def test_a_tie_is_decided_as_brute_force_does() -> None:
    table = np.zeros((3, 50))
    table[1, :30] = 1.0
    table[2, 20:] = 1.0  # as often right, elsewhere
    selector = ArmEliminationSelector(grid(3), range(50), lookup(table, grid(3)), seed=4)
    assert selector.select_best().best.index == 1


def test_whom_one_beat_that_fails_too_often_later_comes_back() -> None:
    order = ArmEliminationSelector(grid(3), range(100), lambda _c, _d: 0.0).datapoints
    late = set(order[40:])

    def evaluate(combination: Combination, datapoint: int) -> float:
        if combination["a"] == 0 and datapoint in late:
            raise OSError("gone")
        # 1 is beaten by 0 at once; 2 is as good as 0 for a while, so that the search goes on.
        return {0: 1.0, 1: 0.1 * (datapoint % 2), 2: 0.0 if datapoint in late else 1.0}[combination["a"]]

    selector = ArmEliminationSelector(grid(3), range(100), evaluate)
    results = selector.select_best()
    assert results.rounds[0].survivors == (0, 2)
    assert 0 not in results.rounds[-1].survivors
    assert results.best.index == 2
    assert results.rows[1].datapoints == 100 or 1 not in results.rounds[-1].survivors


def test_one_combination_alone_is_evaluated_until_it_is_sure_to_fail_seldom() -> None:
    results = ArmEliminationSelector(grid(1), range(50), lambda _c, _d: 0.5).select_best()
    assert results.best.datapoints == 38
    results = ArmEliminationSelector(grid(1), range(50), lambda _c, _d: 0.5, max_errors=1.0).select_best()
    assert results.best.datapoints == 5
