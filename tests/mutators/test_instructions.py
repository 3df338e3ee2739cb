"""Mutators of instructions: their prompts, the rules, what the simulated mutator makes of them."""

from __future__ import annotations

import json
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mutators.cleaning import clean
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
    shorten_instructions,
    specialize_instructions,
    splice_sentences,
    swap_sentences,
)
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call
from search.task import SEED_INSTRUCTIONS
from simulator.prompts import task_of
from tests.worlds import CAUTIOUS

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
    assert len({shorten_instructions.prompt(LONG, (), seed).text for seed in range(60)}) == 1


def test_with_nothing_to_combine_the_instructions_are_improved() -> None:
    assert combine_instructions.prompt(LONG, [LONG], 3) == improve_instructions.prompt(LONG, (), 3)
    assert task_of(combine_instructions.prompt(LONG, [LONG, OTHER], 3).text).other == OTHER


def test_a_specialization_shows_what_went_wrong_and_no_world_of_its_own() -> None:
    task = task_of(SPECIALIZED.prompt(LONG, (), 0).text)
    assert task.query == LONG
    shown = [json.loads(line) for line in task.failures.split("\n")]
    assert shown == [
        {"question": WRONG[0].question, "answer": "4.5", "reply": WRONG[0].reply},
        {"question": "Write a haiku.", "reply": "No."},
    ]
    plain = task.instruction.replace(task.failures, "").casefold()
    assert not [
        word for word in ("sum", "letter", "list", "date", "measure", "unit") if word in plain
    ]
    long = specialize_instructions([WrongAnswer("x" * 9_999, "y" * 9_999, "z" * 9_999)]).prompt(
        LONG, (), 0
    )
    assert len(long.text) < 3 * MAX_SHOWN_CHARS + 2_000


def test_without_failures_the_instructions_are_improved() -> None:
    specialize = specialize_instructions([])
    assert specialize.prompt(LONG, (), 3) == improve_instructions.prompt(LONG, (), 3)


@given(texts, seeds)
def test_a_dropped_sentence_is_the_only_loss(text: str, seed: int) -> None:
    before, after = sentences(text), sentences(drop_sentence.apply(text, (), seed))
    assert len(after) == max(1, len(before) - 1)
    assert all(after.count(each) <= before.count(each) for each in after)


@given(texts, seeds)
def test_swapping_loses_nothing(text: str, seed: int) -> None:
    assert sorted(sentences(swap_sentences.apply(text, (), seed))) == sorted(sentences(text))


@given(texts, texts, seeds)
def test_splicing_keeps_what_both_say_and_adds_nothing(text: str, other: str, seed: int) -> None:
    spliced = sentences(splice_sentences.apply(text, [other], seed))
    assert spliced
    assert set(sentences(text)) & set(sentences(other)) <= set(spliced) or spliced == sentences(
        text
    )
    assert set(spliced) <= {*sentences(text), *sentences(other)}


def _reworded(dispatcher: Dispatcher, prompt: str) -> str:
    completion = dispatcher.generate(
        Call(model="sim-mutator", prompt=prompt, options={"temperature": 0})
    )
    assert completion.error is None
    return clean(completion.text, LONG)


def test_the_simulated_mutator_changes_instructions_by_whole_sentences(
    dispatcher: Dispatcher,
) -> None:
    advice = CAUTIOUS.file.solver
    known = {*advice.general, *chain.from_iterable(advice.special.values())}
    kept = set(sentences(LONG))
    for seed in range(12):
        for mutator in (improve_instructions, SPECIALIZED):
            after = sentences(_reworded(dispatcher, mutator.prompt(LONG, (), seed).text))
            assert len(set(after) - kept) == 1
            assert set(after) - kept <= known
            assert after[-1] == sentences(LONG)[-1]
    shorter = sentences(_reworded(dispatcher, shorten_instructions.prompt(LONG, (), 0).text))
    assert len(shorter) == len(sentences(LONG)) - 1
    joined = sentences(_reworded(dispatcher, combine_instructions.prompt(LONG, [OTHER], 0).text))
    assert set(sentences(LONG)) & set(sentences(OTHER)) <= set(joined) <= {*kept, *sentences(OTHER)}
