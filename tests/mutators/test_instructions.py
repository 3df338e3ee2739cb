"""Mutators of instructions: their prompts, the rules, what the simulated mutator makes of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mutators.mutator import Mutator
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from mutators.system_prompts import (
    INSTRUCTION_CROSSOVERS,
    INSTRUCTION_MUTATORS,
    MAX_SHOWN_CHARS,
    WrongAnswer,
    combine_instructions,
    drop_sentence,
    improve_instructions,
    sentences,
    specialize_instructions,
    splice_sentences,
    swap_sentences,
)
from search.task import SEED_INSTRUCTIONS
from simulator.prompts import task_of

ALL = (*INSTRUCTION_MUTATORS, *INSTRUCTION_CROSSOVERS)
WRONG = [
    WrongAnswer("How old is </failures> the \u2028 moon?", "4.5", "I'd say\n<query>five</query>"),
    WrongAnswer("Write a haiku.", None, "No."),
]
SPECIALIZED = specialize_instructions(WRONG)
BY_MODEL = [*(mutator for mutator in ALL if mutator.kind == "model"), SPECIALIZED]
LONG = "Read it well. Work step by step. Check the result. " + SEED_INSTRUCTIONS
OTHER = "Take your time. Spell words out letter by letter. " + SEED_INSTRUCTIONS
texts = st.lists(
    st.sampled_from(["Read it.", "Check it!", "Is it so?", "Say why."]), min_size=1
).map(" ".join)
seeds = st.integers(0, 2**32)


def test_all_have_names_of_their_own_that_load_and_none_is_a_querys_default() -> None:
    names = [mutator.name for mutator in ALL]
    assert load_mutators(names) == ALL
    assert not set(names) & set(DEFAULT_MUTATORS)


@pytest.mark.parametrize("mutator", BY_MODEL, ids=lambda mutator: mutator.name)
def test_a_prompt_tags_the_instructions_which_cannot_close_their_tag(mutator: Mutator) -> None:
    for seed in range(20):
        task = task_of(mutator.prompt("Work. </query> Stop.", ["Rest. </other>"], seed).text)
        assert task.query == "Work. </query> Stop."
        assert task.other in {None, "Rest. </other>"}


def test_the_seed_picks_what_an_improvement_is_about() -> None:
    assert len({improve_instructions.prompt(LONG, (), seed).text for seed in range(60)}) == 8


def test_with_nothing_to_combine_and_without_failures_the_instructions_are_improved() -> None:
    improved = improve_instructions.prompt(LONG, (), 3)
    assert combine_instructions.prompt(LONG, [LONG], 3) == improved
    assert specialize_instructions([]).prompt(LONG, (), 3) == improved
    assert task_of(combine_instructions.prompt(LONG, [LONG, OTHER], 3).text).other == OTHER


def test_a_specialization_shows_what_went_wrong_cut_short() -> None:
    task = task_of(SPECIALIZED.prompt(LONG, (), 0).text)
    shown = [json.loads(line) for line in task.failures.split("\n")]
    assert shown == [
        {"question": WRONG[0].question, "answer": "4.5", "reply": WRONG[0].reply},
        {"question": "Write a haiku.", "reply": "No."},
    ]
    long = specialize_instructions([WrongAnswer("x" * 9_999, "y" * 9_999, "z" * 9_999)])
    assert len(long.prompt(LONG, (), 0).text) < 3 * MAX_SHOWN_CHARS + 2_000


@given(texts, texts, seeds)
def test_the_rules_lose_and_add_no_more_than_they_say(text: str, other: str, seed: int) -> None:
    before, dropped = sentences(text), sentences(drop_sentence.apply(text, (), seed))
    assert len(dropped) == max(1, len(before) - 1)
    assert all(dropped.count(each) <= before.count(each) for each in dropped)
    assert sorted(sentences(swap_sentences.apply(text, (), seed))) == sorted(before)
    spliced = set(sentences(splice_sentences.apply(text, [other], seed)))
    assert spliced == set(before) or set(before) & set(sentences(other)) <= spliced
    assert spliced <= {*before, *sentences(other)}
