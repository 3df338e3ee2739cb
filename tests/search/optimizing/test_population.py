"""A population of prompts: sections, records, and generations that neither grow nor collapse."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.optimizing.prompts import SECTION_TEXTS, SECTIONS, PromptPopulation, PromptSections

SEEDS = ("Answer the question.", "Role: You are a teacher.\nTask: Solve the problem.\nFormat: Answer: 42")

words = st.text(alphabet="ab :\n RoleTask", max_size=20)


@given(st.fixed_dictionaries(dict.fromkeys(SECTIONS, words)))
def test_sections_written_out_and_read_again_are_the_same(texts: dict[str, str]) -> None:
    sections = PromptSections(**texts)
    assert PromptSections.read(sections.text) == sections


def test_a_prompt_without_sections_is_all_task_and_stays_as_it_is() -> None:
    prompt = "Answer the question.\n\nBe brief."
    sections = PromptSections.read(prompt)
    assert (sections.task, sections.role, sections.text) == (prompt, "", prompt)


def test_text_before_the_first_label_belongs_to_the_task() -> None:
    assert PromptSections.read("Be kind.\nMethod:\nGo step\nby step.") == PromptSections(
        task="Be kind.", method="Go step\nby step."
    )


def told(population: PromptPopulation, rounds: int = 1) -> None:
    """Give every prompt a fitness of its own."""
    for _ in range(rounds):
        for prompt in population.prompts:
            population.tell(prompt, len(set(prompt)) / 100)


def test_a_population_is_filled_up_to_its_size_with_distinct_prompts() -> None:
    population = PromptPopulation(SEEDS, size=10, seed=3)
    assert population.prompts[:2] == list(SEEDS)
    assert len(set(population.prompts)) == 10


@settings(max_examples=30)
@given(
    seed=st.integers(0, 999),
    size=st.integers(2, 12),
    elites=st.integers(0, 2),
    mutation=st.floats(0, 1),
    crossover=st.floats(0, 1),
)
def test_whatever_the_rates_it_keeps_its_size_and_never_holds_a_prompt_twice(
    seed: int, size: int, elites: int, mutation: float, crossover: float
) -> None:
    population = PromptPopulation(
        SEEDS,
        size=size,
        elite_size=elites,
        mutation_rate=mutation,
        crossover_rate=crossover,
        seed=seed,
    )
    for _ in range(5):
        told(population)
        population.evolve()
        assert len(population.prompts) == len(set(population.prompts)) == size
        assert all(prompt.strip() for prompt in population.prompts)


def test_a_reworder_that_always_says_the_same_does_not_collapse_the_population() -> None:
    prompts = [f"Prompt number {number}." for number in range(8)]
    population = PromptPopulation(
        prompts, size=8, mutation_rate=1.0, seed=1, reword=lambda *_: "the same", model_share=1.0, pools={}
    )
    for _ in range(6):
        told(population)
        population.evolve()
        assert len(set(population.prompts)) == 8


def test_the_elites_stay_unchanged_at_the_head_the_best_first() -> None:
    population = PromptPopulation(SEEDS, size=8, elite_size=3, seed=5)
    told(population, rounds=4)
    ranked = sorted(population.members, key=lambda member: -(member.fitness or 0))
    population.evolve()
    assert [m.prompt for m in population.members[:3]] == [m.prompt for m in ranked[:3]]
    assert [(m.fitness, m.tries) for m in population.members[:3]] == [
        (m.fitness, m.tries) for m in ranked[:3]
    ]
    assert [m.prompt for m in population.elites] == [m.prompt for m in ranked[:3]]


def test_fitness_is_the_running_mean_and_a_child_has_none_until_it_is_tried() -> None:
    population = PromptPopulation(SEEDS, size=4, seed=0)
    first = population.prompts[0]
    for value in (1.0, 0.0, 0.5):
        population.tell(first, value)
    assert (population.members[0].fitness, population.members[0].tries) == (0.5, 3)
    told(population, rounds=2)
    before = set(population.prompts)
    population.evolve()
    children = [m for m in population.members if m.prompt not in before]
    assert children
    assert all(m.fitness is None and m.tries == 0 for m in children)


def test_one_lucky_try_does_not_outrank_a_long_record() -> None:
    population = PromptPopulation(SEEDS, size=4, elite_size=1, seed=0)
    steady, lucky, *rest = population.prompts
    for prompt in rest:
        for _ in range(20):
            population.tell(prompt, 0.3)
    for _ in range(20):
        population.tell(steady, 0.9)
    population.tell(lucky, 1.0)
    assert population.elites[0].prompt == steady


def test_a_prompt_is_held_against_what_others_brought_for_the_same_question() -> None:
    population = PromptPopulation(SEEDS, size=4, elite_size=1, seed=0)
    easy, hard, *_ = population.prompts
    for _ in range(5):
        population.tell(easy, 0.8, expected=0.9)
        population.tell(hard, 0.4, expected=0.1)
    assert population.best.prompt == hard
    assert population.best.fitness == pytest.approx(0.4)
    assert population.best.tries == 5


def test_an_untried_prompt_is_no_elite_while_others_were_tried() -> None:
    population = PromptPopulation(SEEDS, size=4, elite_size=2, seed=0)
    told_prompts = population.prompts[2:]
    for prompt in told_prompts:
        population.tell(prompt, 0.01)
    assert {m.prompt for m in population.elites} == set(told_prompts)


def test_what_was_learned_of_a_prompt_that_left_counts_when_it_comes_back() -> None:
    population = PromptPopulation(SEEDS, size=4, seed=0)
    population.tell("A prompt that is not in it.", 0.7)
    assert population.record("A prompt that is not in it.") == (0.7, 1)


def test_crossover_takes_each_section_from_one_of_the_parents() -> None:
    mother = PromptSections(role="R1", task="T1", method="M1", check="C1", format="F1")
    father = PromptSections(role="R2", task="T2", method="M2", check="C2", format="F2")
    population = PromptPopulation(
        [mother, father], size=2, elite_size=0, crossover_rate=1.0, mutation_rate=0.0, seed=2
    )
    told(population)
    population.evolve()
    for member in population.members:
        for name in SECTIONS:
            assert getattr(member.sections, name) in {getattr(mother, name), getattr(father, name)}


def test_a_mutation_changes_one_section_and_the_reworder_sees_which() -> None:
    seen: list[tuple[str, str, Sequence[str], int]] = []

    def reword(section: str, text: str, others: Sequence[str], seed: int) -> str | None:
        seen.append((section, text, tuple(others), seed))
        return f"{text} and more {seed}"

    population = PromptPopulation(SEEDS, size=2, reword=reword, seed=1)
    changed = population.mutated(population.members[1].sections, seed=7, model_share=1.0)
    ((section, text, _, _),) = seen
    old = population.members[1].sections
    assert getattr(old, section) == text
    assert [name for name in SECTIONS if getattr(old, name) != getattr(changed, name)] == [section]


def test_a_reworder_that_brings_nothing_leaves_it_to_the_pool() -> None:
    population = PromptPopulation(
        SEEDS, size=6, mutation_rate=1.0, seed=1, reword=lambda *_: None, model_share=1
    )
    told(population)
    population.evolve()
    known = {text for texts in SECTION_TEXTS.values() for text in texts} | {"", *SEEDS}
    for member in population.members:
        assert {getattr(member.sections, n) for n in SECTIONS} <= known | {
            getattr(PromptSections.read(SEEDS[1]), n) for n in SECTIONS
        }


def test_the_same_seed_and_the_same_records_give_the_same_generations() -> None:
    def run(seed: int) -> list[list[str]]:
        population = PromptPopulation(SEEDS, size=10, seed=seed)
        generations = []
        for _ in range(4):
            told(population)
            population.evolve()
            generations.append(population.prompts)
        return generations

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_better_prompts_spread() -> None:
    population = PromptPopulation(SEEDS, size=10, seed=4)

    def worth(prompt: str) -> float:
        sections = PromptSections.read(prompt)
        hits = [getattr(sections, name) == texts[1] for name, texts in SECTION_TEXTS.items()]
        return float(sum(hits) / len(hits))

    def mean() -> float:
        return sum(map(worth, population.prompts)) / len(population.prompts)

    start = mean()
    for _ in range(25):
        for prompt in population.prompts:
            population.tell(prompt, worth(prompt))
        population.evolve()
    assert mean() > start + 0.3


@pytest.mark.parametrize(
    ("prompts", "settings", "says"),
    [
        ((), {}, "at least one prompt"),
        (("  ",), {}, "blank"),
        (("a", "b", "c"), {"size": 2}, "more prompts than"),
        (("a", "a"), {}, "twice"),
        (("a",), {"size": 0}, "size"),
        (("a",), {"size": 2, "elite_size": 3}, "elite_size"),
        (("a",), {"mutation_rate": 1.5}, "mutation_rate"),
        (("a",), {"crossover_rate": -0.1}, "crossover_rate"),
    ],
)
def test_what_cannot_be_a_population_is_refused_in_one_line(
    prompts: Sequence[str], settings: dict[str, int], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        PromptPopulation(prompts, **settings)  # type: ignore[arg-type] # some are floats


def test_a_reward_that_is_no_number_is_refused() -> None:
    population = PromptPopulation(SEEDS, size=2)
    with pytest.raises(ValueError, match="finite"):
        population.tell(SEEDS[0], float("nan"))
