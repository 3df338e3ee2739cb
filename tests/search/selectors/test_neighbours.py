"""Neighbours of a combination, and their order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.selectors.combination import Places, by_marginal_means, combinations, neighbours, places_of

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(SHAPES)
def test_neighbours_differ_in_one_choice_and_are_all_that_do(shape: list[int]) -> None:
    every = places_of(shape)
    table = np.array(every)
    differences = (table[:, None] != table).sum(2)
    for places, different in zip(every, differences, strict=True):
        expected = {every[other] for other in np.flatnonzero(different == 1)}
        found = neighbours(places, shape)
        assert set(found) == expected
        assert len(found) == len(expected)


@given(SHAPES)
def test_places_stand_in_the_order_of_the_combinations(shape: list[int]) -> None:
    choices = {f"name {place}": list(range(count)) for place, count in enumerate(shape)}
    assert [tuple(each.values()) for each in combinations(choices)] == list(places_of(shape))


def test_the_choices_that_did_best_come_first() -> None:
    measured: dict[Places, float] = {(0, 0): 0.2, (1, 0): 0.8, (0, 1): 0.4}
    # First names: 0 did .3, 1 did .8; second names: 0 did .5, 1 did .4, 2 as all did, .47.
    assert by_marginal_means([(0, 2), (1, 1), (1, 2)], measured) == [(1, 2), (1, 1), (0, 2)]


def test_without_any_score_the_order_stays() -> None:
    assert by_marginal_means([(1, 0), (0, 1)], {}) == [(1, 0), (0, 1)]


@pytest.mark.parametrize("order", [1, -1])
def test_no_choice_is_better_for_its_name_alone(order: int) -> None:
    measured: dict[Places, float] = {(0,): 0.1, (2,): 0.1}
    candidates = [(1,), (3,)][::order]
    assert by_marginal_means(candidates, measured) == candidates
