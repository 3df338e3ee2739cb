"""Rates that adapt: more mutation where the search stands still, more of the operators that helped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.genetics.population import AdaptiveRates, Use

NAMES = ("improve", "shorten", "drop")


def rates(*, adaptive: bool = True) -> AdaptiveRates:
    return AdaptiveRates(crossover=0.8, mutation=0.2, operators=NAMES, adaptive=adaptive)


def test_the_first_rates_are_those_that_were_asked_for() -> None:
    assert rates().crossover == 0.8
    assert rates().mutation == 0.2
    assert rates().chance_of("improve") == pytest.approx(1 / 3)


def test_mutation_rises_while_the_best_stands_still_and_falls_back_when_it_moves() -> None:
    adapting = rates()
    seen = []
    for improved in (False, False, False, True):
        adapting.tell([], improved=improved, diversity=0.9)
        seen.append(adapting.mutation)
    assert 0.2 < seen[0] < seen[1] <= seen[2] <= 0.8
    assert seen[3] == 0.2


def test_a_population_of_lookalikes_is_mutated_more_and_crossed_less() -> None:
    adapting = rates()
    adapting.tell([], improved=True, diversity=0.05)
    assert adapting.mutation > 0.2
    assert adapting.crossover < 0.8


def test_operators_whose_children_beat_their_parents_are_drawn_more_often() -> None:
    adapting = rates()
    for _ in range(4):
        adapting.tell([Use("improve", won=True), Use("shorten", won=False)], improved=True, diversity=1)
    assert adapting.chance_of("improve") > adapting.chance_of("drop") > adapting.chance_of("shorten")


@given(st.lists(st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=5), max_size=30))
def test_every_operator_keeps_a_chance(generations: list[list[tuple[str, bool]]]) -> None:
    adapting = rates()
    for uses in generations:
        adapting.tell([Use(name, won=won) for name, won in uses], improved=False, diversity=0.5)
    chances = [adapting.chance_of(name) for name in NAMES]
    assert sum(chances) == pytest.approx(1)
    assert min(chances) > 0.1
    assert adapting.crossover <= 1
    assert adapting.mutation <= 0.8


def test_rates_that_are_not_to_adapt_stay() -> None:
    fixed = rates(adaptive=False)
    fixed.tell([Use("drop", won=True)], improved=False, diversity=0.0)
    assert (fixed.crossover, fixed.mutation) == (0.8, 0.2)
    assert fixed.chance_of("drop") == pytest.approx(1 / 3)


def test_a_mutation_rate_above_the_usual_most_is_never_lowered() -> None:
    adapting = AdaptiveRates(crossover=0.5, mutation=0.9, operators=NAMES, adaptive=True)
    adapting.tell([], improved=False, diversity=0.0)
    assert adapting.mutation == 0.9
