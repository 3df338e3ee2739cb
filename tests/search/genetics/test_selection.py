"""Parents: the fitter are chosen more often, the stream of chance alone decides which."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.genetics.selection import SELECTIONS, select

FITNESSES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(st.sampled_from(SELECTIONS), FITNESSES, st.integers(0, 99))
def test_one_of_the_candidates_is_chosen_and_the_same_by_the_same_chance(
    kind: str, fitnesses: list[float], seed: int
) -> None:
    chosen = [select(kind, fitnesses, Random(seed), tournament_size=3) for _ in range(2)]
    assert chosen[0] == chosen[1]
    assert 0 <= chosen[0] < len(fitnesses)


@pytest.mark.parametrize("kind", SELECTIONS)
def test_the_fitter_is_chosen_more_often(kind: str) -> None:
    rng = Random(0)
    counts = Counter(select(kind, [0.1, 0.5, 0.9], rng, tournament_size=3) for _ in range(3000))
    assert counts[0] < counts[1] < counts[2]


def test_a_tournament_is_won_by_the_fittest_that_came() -> None:
    chosen = {select("tournament", [0.2, 0.9, 0.4], Random(i), tournament_size=40) for i in range(20)}
    assert chosen == {1}


def test_ranks_see_the_order_alone() -> None:
    near, far = [0.50, 0.51, 0.52], [0.0, 0.1, 0.9]
    for seed in range(50):
        assert select("rank", near, Random(seed)) == select("rank", far, Random(seed))


def test_equal_ranks_get_equal_chances() -> None:
    counts = Counter(select("rank", [0.5, 0.5], Random(i)) for i in range(2000))
    assert abs(counts[0] - counts[1]) < 200


def test_a_roulette_without_any_fitness_is_fair() -> None:
    counts = Counter(select("roulette", [0.0, 0.0], Random(i)) for i in range(2000))
    assert abs(counts[0] - counts[1]) < 200


def test_what_cannot_be_chosen_from_is_named() -> None:
    with pytest.raises(ValueError, match="at least one"):
        select("rank", [], Random(0))
    with pytest.raises(ValueError, match="'luck'; expected one of tournament, rank, roulette"):
        select("luck", [0.5], Random(0))
