"""Epsilon-LUCB names a combination within epsilon of the best of the dataset."""

from __future__ import annotations

import numpy as np
import pytest

from search.selectors.combination import Combination
from search.selectors.lucb import EpsilonLUCBSelector
from tests.search.selectors.arms import play
from tests.search.selectors.tables import grid


@pytest.mark.parametrize(
    ("epsilon", "seeds"), [(0.05, 5), *(pytest.param(e, 30, marks=pytest.mark.soak) for e in (0.01, 0.05))]
)
def test_nine_arms_the_one_named_is_within_epsilon_of_the_datasets_best(epsilon: float, seeds: int) -> None:
    """As stated: but with probability delta, .05; measured over 200 seeds: always, at 61 % savings."""
    played = [play("epsilon_lucb", seed, epsilon=epsilon) for seed in range(seeds)]
    gaps = [each.table.mean(1).max() - each.table[each.named].mean() for each in played]
    assert np.mean(np.array(gaps) <= epsilon + 1e-9) >= 0.95
    assert np.mean([each.savings for each in played]) >= 0.55


@pytest.mark.parametrize(("seeds", "datapoints"), [(10, 100), pytest.param(30, 200, marks=pytest.mark.soak)])
def test_arms_that_are_alike_are_wrong_by_more_than_epsilon_as_seldom_as_delta_says(
    seeds: int, datapoints: int
) -> None:
    played = [
        play("epsilon_lucb", seed, (0.6, 0.6, 0.6), datapoints, delta=0.2, epsilon=0.02)
        for seed in range(seeds)
    ]
    gaps = [each.table.mean(1).max() - each.table[each.named].mean() for each in played]
    assert np.mean(np.array(gaps) <= 0.02 + 1e-9) >= 0.8


def test_after_the_first_round_only_the_leader_and_the_contender_are_evaluated() -> None:
    selector = play("epsilon_lucb", 3).selector
    first, *others = selector.rounds
    assert (first.combinations, first.batch_size) == (9, 1)
    assert all(each.combinations <= 2 and each.batch_size == 1 for each in others)


def test_pulls_per_round_trade_evaluations_for_rounds() -> None:
    one, ten = (play("epsilon_lucb", 3, pulls_per_round=pulls) for pulls in (1, 10))
    assert len(ten.selector.rounds) < len(one.selector.rounds) / 5
    assert ten.savings > one.savings - 0.1


def test_a_leader_that_begins_to_fail_loses_the_lead() -> None:
    order = EpsilonLUCBSelector(grid(2), range(60), lambda _c, _d: 0.0).datapoints
    late = set(order[8:])

    def evaluate(combination: Combination, datapoint: int) -> float:
        if combination["a"] == 0 and datapoint in late:
            raise OSError("gone")
        return 1.0 if combination["a"] == 0 else 0.8

    results = EpsilonLUCBSelector(grid(2), range(60), evaluate).select_best()
    assert results.best.index == 1
