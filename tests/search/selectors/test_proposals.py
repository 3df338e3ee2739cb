"""What Bayesian optimisation would look at next."""

from __future__ import annotations

import numpy as np
import pytest

from search.selectors.bayesian import log_expected_improvement, propose
from search.selectors.combination import Places, places_of


def additive(places: Places) -> float:
    """A score to which each choice adds its part."""
    return sum(places) / 20


def test_proposals_are_different_and_were_not_measured() -> None:
    shape = (3, 4, 2)
    measured = {places: additive(places) for places in places_of(shape)[::3]}
    proposed = propose(shape, measured, 5, seed=1)
    assert len(set(proposed)) == 5
    assert not set(proposed) & set(measured)


def test_equal_arguments_propose_the_same() -> None:
    measured = {places: additive(places) for places in places_of((4, 4))[::3]}
    assert propose((4, 4), measured, 3, seed=2) == propose((4, 4), measured, 3, seed=2)


def test_all_that_are_left_are_proposed_where_there_are_no_more() -> None:
    measured = {places: additive(places) for places in places_of((3, 2))[:4]}
    assert sorted(propose((3, 2), measured, 5, seed=0)) == [(2, 0), (2, 1)]


def test_nothing_measured_is_left_to_chance() -> None:
    assert len({tuple(propose((4, 5), {}, 3, seed=seed)) for seed in range(8)}) == 8


@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_the_process_finds_the_best_of_a_score_with_structure_where_chance_seldom_does(seeds: int) -> None:
    shape, found = (6, 6), 0
    for seed in range(seeds):
        measured = {places: additive(places) for places in propose(shape, {}, 6, seed)}
        while len(measured) < 12:
            measured |= {places: additive(places) for places in propose(shape, measured, 3, seed)}
        found += (5, 5) in measured
    assert found >= 0.8 * seeds  # chance: 1 in 3 of the times


def test_a_score_that_is_the_same_everywhere_is_no_warning() -> None:
    assert len(propose((3, 3), {(0, 0): 0.5, (2, 2): 0.5}, 2, seed=0)) == 2


@pytest.mark.parametrize("best", [-3.0, 0.0, 1.0, 8.0])
def test_the_expected_improvement_is_what_an_integral_says(best: float) -> None:
    values = np.linspace(-9, 12, 2_000_001)
    density = np.exp(-((values - 0.5) ** 2) / (2 * 0.7**2)) / (0.7 * np.sqrt(2 * np.pi))
    integral = np.trapezoid(np.maximum(values - best, 0) * density, values)
    found = log_expected_improvement(np.array([0.5]), np.array([0.7]), best)
    assert np.exp(found[0]) == pytest.approx(integral, rel=1e-6)


def test_the_log_of_an_improvement_is_finite_where_the_improvement_is_no_float() -> None:
    found = log_expected_improvement(np.zeros(3), np.array([1e-3, 2e-3, 0.0]), 1.0)
    assert np.isfinite(found[:2]).all()
    assert found[0] < found[1]


def test_what_is_under_way_is_not_proposed_again() -> None:
    measured = {places: additive(places) for places in places_of((4, 4))[::3]}
    first = propose((4, 4), measured, 3, seed=2)
    then = propose((4, 4), measured, 3, seed=2, under_way=first)
    assert len({*measured, *first, *then}) == len(measured) + 6
