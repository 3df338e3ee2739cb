"""Epsilon-LUCB names a combination within epsilon of the best of the dataset."""

from __future__ import annotations

import numpy as np
import pytest

from search.selectors.combination import Combination
from search.selectors.lucb import EpsilonLUCBSelector
from search.selectors.registry import make_selector
from tests.search.selectors.arms import MEANS, play
from tests.search.selectors.tables import bernoulli, grid


@pytest.mark.parametrize(
    ("epsilon", "seeds"), [(0.05, 5), *(pytest.param(e, 30, marks=pytest.mark.soak) for e in (0.01, 0.05))]
)
def test_nine_arms_the_one_named_is_within_epsilon_of_the_datasets_best(epsilon: float, seeds: int) -> None:
    """As stated: but with probability delta, .05; measured over 200 seeds: always, at 56 % savings."""
    played = [play("epsilon_lucb", seed, epsilon=epsilon) for seed in range(seeds)]
    gaps = [each.table.mean(1).max() - each.table[each.named].mean() for each in played]
    assert np.mean(np.array(gaps) <= epsilon + 1e-9) >= 0.95
    assert np.mean([each.savings for each in played]) >= 0.5


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


def test_one_pull_a_round_is_the_leader_against_one_contender() -> None:
    selector = play("epsilon_lucb", 3, ahead=0, max_errors=1.0).selector
    first, *others = selector.rounds
    assert (first.combinations, first.batch_size) == (9, 1)
    assert all(each.combinations <= 2 and each.batch_size == 1 for each in others)


def test_after_the_first_round_only_the_leader_and_its_contenders_are_evaluated() -> None:
    selector = make_selector(
        "epsilon_lucb", grid(9), range(200), lambda _c, _d: 0.0, ahead=0, pulls_per_round=20
    )
    table = bernoulli(list(MEANS), 200, seed=3)
    while requests := selector.ask():
        assert not selector.rounds or {number for number, _ in requests} <= set(selector.survivors)
        selector.tell([[table[number, place] for place in places] for number, places in requests])
    assert len(selector.rounds) > 5


def test_evaluating_ahead_trades_a_few_evaluations_for_waiting() -> None:
    waits, ahead = (
        np.mean([play("epsilon_lucb", seed, ahead=ahead).savings for seed in range(5)]) for ahead in (0, 60)
    )
    assert waits - 0.08 < ahead < waits


def test_a_leader_that_begins_to_fail_loses_the_lead() -> None:
    order = EpsilonLUCBSelector(grid(2), range(60), lambda _c, _d: 0.0).datapoints
    late = set(order[8:])

    def evaluate(combination: Combination, datapoint: int) -> float:
        if combination["a"] == 0 and datapoint in late:
            raise OSError("gone")
        return 1.0 if combination["a"] == 0 else 0.8

    results = EpsilonLUCBSelector(grid(2), range(60), evaluate).select_best()
    assert results.best.index == 1
