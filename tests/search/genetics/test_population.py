"""The population by ask and tell: elites stay, unscored genomes are nobody's parents, places are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mutators.system_prompts import WrongAnswer
from search.genetics.config import EvolutionConfig
from search.genetics.fitness import Evaluated
from search.genetics.genome import Genome
from search.genetics.offspring import Child
from search.genetics.population import Generation, Population
from search.genetics.variation import ChildSpec, Draft

SEED = Genome("Solve it.")
DRAFT = Draft(genome=SEED, asked=0, failed=0)


def population(seeds: tuple[Genome, ...] = (SEED,), **settings: Any) -> Population:  # noqa: ANN401 - any of them
    config = EvolutionConfig(**{"population_size": 8, "elite_size": 2, **settings})
    return Population(config, seeds=seeds, mutations=("improve", "drop"), crossings=("combine",))


def evaluated(genome: Genome, fitness: float | None, *, stopped: bool = False) -> Evaluated:
    return Evaluated(
        genome=genome, scores=(), fitness=fitness, stopped=stopped, unscored=fitness is None, asked=10
    )


def told(people: Population, fitness: Callable[[int, ChildSpec], float | None]) -> Generation:
    """A generation in which the child at each place gets a fitness."""
    children = []
    for place, spec in enumerate(people.ask()):
        genome = Genome(f"Prompt {people.generation} {place}.") if spec.steps else spec.parents[0]
        children.append(Child(spec=spec, evaluated=evaluated(genome, fitness(place, spec)), draft=DRAFT))
    return people.tell(children)


def test_the_first_population_is_the_seeds_and_their_mutations() -> None:
    seeds = (SEED, Genome("Answer it."))
    specs = population(seeds).ask()
    assert [spec.parents for spec in specs] == [(seeds[place % 2],) for place in range(8)]
    assert [len(spec.steps) for spec in specs] == [0, 0, 1, 1, 1, 1, 1, 1]
    assert len({spec.seed for spec in specs}) == 8


def test_the_elite_are_the_best_in_order_and_stay_without_being_asked_again() -> None:
    people = population()
    told(people, lambda place, _: [0.1, 0.9, 0.3, 0.8, 0.2, 0.5, 0.4, 0.6][place])
    assert [member.fitness for member in people.elites] == [0.9, 0.8]
    before = people.elites
    assert len(people.ask()) == 6
    told(people, lambda *_: 0.0)
    assert people.elites == before
    assert people.best == before[0]
    assert people.rival == before[1]


def test_an_unscored_genome_is_neither_parent_nor_elite_nor_a_0() -> None:
    people = population()
    record = told(people, lambda place, _: None if place % 2 else 0.2)
    assert (record.unscored, record.size) == (4, 4)
    assert record.mean_fitness == pytest.approx(0.2)
    scored = {member.genome for member in people.members}
    assert set(people.known) == scored  # the others may be born again
    for _ in range(5):
        assert {parent for spec in people.ask() for parent in spec.parents} <= scored
        told(people, lambda *_: None)
    assert {member.genome for member in people.members} == scored


def test_a_child_comes_with_what_its_first_parent_got_wrong() -> None:
    people = population()
    assert {spec.failures for spec in people.ask()} == {()}
    children = [
        Child(
            spec=spec,
            evaluated=replace(
                evaluated(Genome(f"P {place}."), place / 10), failures=(WrongAnswer(f"{place}?", "1", "2"),)
            ),
            draft=DRAFT,
        )
        for place, spec in enumerate(people.ask())
    ]
    people.tell(children)
    for spec in people.ask():
        (failure,) = spec.failures
        assert f"P {failure.question[:-1]}." == spec.parents[0].instructions


def test_a_stopped_genome_may_be_a_parent_but_is_never_the_elite() -> None:
    people = population()
    specs = people.ask()
    children = [
        Child(spec=b, evaluated=evaluated(Genome(f"P {i}."), 0.9 - i / 10, stopped=i < 3), draft=DRAFT)
        for i, b in enumerate(specs)
    ]
    assert people.tell(children).stopped == 3
    assert [member.genome.prompt for member in people.elites] == ["P 3.", "P 4."]
    assert people.members[0].genome.prompt == "P 0."


def test_the_place_of_a_duplicate_goes_to_the_best_of_the_generation_before() -> None:
    people = population()
    told(people, lambda place, _: place / 10)
    left = [member for member in people.members if member not in people.elites]
    children = [Child(spec=spec, evaluated=None, draft=DRAFT) for spec in people.ask()]
    record = people.tell(children)
    assert (record.duplicates, record.children, record.size) == (6, 0, 8)
    assert set(left) <= set(people.members)


def test_of_equals_the_older_ones_come_first() -> None:
    people = population(elite_size=1)
    told(people, lambda *_: 0.5)
    older = [member.genome for member in people.members]
    specs = people.ask()
    children = [
        Child(spec=spec, evaluated=evaluated(Genome(f"New {place}."), 0.5), draft=DRAFT)
        for place, spec in enumerate(specs[:4])
    ]
    duplicates = [Child(spec=spec, evaluated=None, draft=DRAFT) for spec in specs[4:]]
    people.tell([*children, *duplicates])
    assert [member.genome for member in people.members[:4]] == older[:4]


def test_children_that_are_not_crossed_are_always_mutated() -> None:
    people = population(crossover_rate=0.0, mutation_rate=0.0)
    told(people, lambda place, _: place / 10)
    assert all(len(spec.parents) == len(spec.steps) == 1 for spec in people.ask())
    crossed = population(crossover_rate=1.0, mutation_rate=0.0)
    told(crossed, lambda place, _: place / 10)
    steps = {spec.steps for spec in crossed.ask() if len(spec.parents) == 2}
    assert steps == {("combine",)}


@given(
    seed=st.integers(0, 50),
    selection=st.sampled_from(["tournament", "rank", "roulette"]),
    values=st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=8, max_size=8),
)
def test_the_same_seed_and_the_same_answers_give_the_same_generations(
    seed: int, selection: str, values: list[float | None]
) -> None:
    runs = [population(seed=seed, selection=selection) for _ in range(2)]
    for _ in range(4):
        assert runs[0].ask() == runs[1].ask() == runs[0].ask()
        assert told(runs[0], lambda place, _: values[place]) == told(runs[1], lambda place, _: values[place])
        fitnesses = [member.fitness for member in runs[0].members]
        assert fitnesses == sorted(fitnesses, key=lambda value: -(value or 0))
        assert len(runs[0].members) <= 8


def test_it_is_over_after_all_generations_or_when_patience_ends() -> None:
    people = population(max_generations=2)
    for _ in range(3):
        assert not people.is_over
        told(people, lambda *_: 0.5)
    assert people.is_over
    patient = population(max_generations=50, patience=2)
    while not patient.is_over:
        told(patient, lambda *_: 0.5)
    assert patient.generation == 3


def test_seeds_that_cannot_be_a_population_are_refused() -> None:
    with pytest.raises(ValueError, match="0 seed prompts; expected 1 to population_size, which is 8"):
        population(())
    with pytest.raises(ValueError, match="the same seed prompt was given twice"):
        population((SEED, SEED))
    with pytest.raises(ValueError, match="9 seed prompts"):
        population(tuple(Genome(f"P {i}.") for i in range(9)))
