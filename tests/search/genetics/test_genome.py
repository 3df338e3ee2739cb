"""A genome: the whole system prompt, and how far two are apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.chance import chance, seed_of
from search.genetics.genome import Example, Genome, diversity

GENOMES = st.builds(
    Genome,
    st.lists(st.sampled_from(["Check it.", "Go slowly.", "Be brief."]), min_size=1, max_size=3).map(" ".join),
)


def test_the_prompt_is_the_instructions_and_then_the_examples() -> None:
    genome = Genome("Solve it.", (Example("What is 1 + 1?", "2"), Example("What is 2 + 2?", "4")))
    assert genome.prompt == (
        "Solve it.\n\nQuestion: What is 1 + 1?\nAnswer: 2\n\nQuestion: What is 2 + 2?\nAnswer: 4"
    )
    assert Genome("Solve it.").prompt == "Solve it."


def test_a_genome_survives_its_own_json() -> None:
    genome = Genome("Solve it.", (Example("What is 1 + 1?", "2"),))
    assert Genome.from_json(genome.to_json()) == genome


def test_blank_instructions_are_no_genome() -> None:
    with pytest.raises(ValueError, match="instructions"):
        Genome("  ")


@given(st.lists(GENOMES, max_size=6))
def test_diversity_is_a_share_and_0_where_all_are_equal(genomes: list[Genome]) -> None:
    assert 0 <= diversity(genomes) <= 1
    assert diversity(genomes[:1] * 4) == 0
    assert diversity(genomes) == pytest.approx(diversity(genomes[::-1]))


def test_diversity_of_prompts_without_a_word_in_common_is_1() -> None:
    assert diversity([Genome("one two"), Genome("three four"), Genome("five")]) == 1
    assert diversity([Genome("one two"), Genome("one three")]) == pytest.approx(2 / 3)


def test_chance_is_keyed_by_what_it_decides() -> None:
    assert chance(1, "parents", 3).random() == chance(1, "parents", 3).random()
    assert chance(1, "parents", 3).random() != chance(1, "parents", 4).random()
    assert 0 <= seed_of(1, "mutation") < 2**31
