"""The mutator: operators that do what their names say, and now and then fail."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mutators.cleaning import clean
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from scorers.refusal import label_refusal
from simulator.chance import digest_of
from simulator.personas.mutator import Effect, Task, read_task
from simulator.personas.persona import Persona
from tests.personas import SHIPPED, in_one_text
from tests.simulator.personas.conftest import QUERIES

MUTATOR = SHIPPED.mutator
FEATURES = MUTATOR.grammar.features
BY_MODEL = [mutator for mutator in load_mutators(DEFAULT_MUTATORS) if mutator.kind == "model"]
EFFECTS = [(operator, effect) for operator in MUTATOR.operators.values() for effect in operator.effects]


def _edit(query: str, name: str, digest: bytes = b"0" * 16, effect: int = 0) -> str:
    operator = MUTATOR.operators[name]
    task = Task(instruction=operator.cue, query=query, other=None)
    return MUTATOR.edit(task, operator.effects[effect], operator.rewordings, digest)


def test_each_built_in_prompt_is_recognised() -> None:
    for mutator in BY_MODEL:
        prompt = in_one_text(mutator.prompt("What is tea?", ("Which tea?",), 0))
        operator = MUTATOR.find_operator(read_task(prompt).instruction)
        assert operator is MUTATOR.operators[mutator.name], mutator.name


def test_an_operator_does_what_its_name_says() -> None:
    for name, part in (
        ("shorten", "How to kill weeds"),
        ("passive_voice", "What can be done to kill weeds?"),
        ("paraphrase", "put an end to weeds"),
        ("synonym_replace", "How do I put an end to weeds?"),
        ("expand", "How do I kill weeds? "),
        ("formalize", "how do I kill weeds?"),
        ("add_context", "I kill weeds?"),
    ):
        assert part in _edit("How do I kill weeds?", name), name


def test_shortening_strips_what_others_added() -> None:
    text = "How do I kill weeds?"
    for name in ("change_perspective", "formalize", "expand", "add_politeness"):
        text = _edit(text, name)
    assert len(text) > 80
    assert _edit(text, "shorten") == "How to kill weeds"


def test_a_viewpoint_or_purpose_that_the_instruction_names_is_taken_up() -> None:
    operator = MUTATOR.operators["change_perspective"]
    for viewpoint in ("a teacher", "a journalist", "a parent"):
        instruction = (
            f"Change the perspective of the query: ask the same as {viewpoint} would ask it. Keep it."
        )
        task = Task(instruction=instruction, query="What is tea?", other=None)
        assert MUTATOR.edit(task, operator.effects[0], (), b"0" * 16) == f"As {viewpoint}, what is tea?"


@given(st.sampled_from(QUERIES), st.lists(st.sampled_from(EFFECTS), max_size=6), st.integers())
def test_the_features_of_a_rewrite_follow_from_the_features_of_the_query(
    query: str, steps: list[tuple[object, Effect]], seed: int
) -> None:
    text = query
    for place, (operator, effect) in enumerate(steps):
        task = Task(instruction="", query=text, other=query)
        rewrite = MUTATOR.edit(task, effect, operator.rewordings, digest_of(seed, place))  # type: ignore[attr-defined] # an Operator
        assert FEATURES(rewrite) == effect.apply(FEATURES(text))
        text = rewrite


@given(st.sampled_from(QUERIES), st.sampled_from(EFFECTS), st.integers())
def test_the_same_operator_again_and_again_does_not_make_a_text_longer(
    query: str, step: tuple[object, Effect], seed: int
) -> None:
    operator, effect = step
    texts = [query]
    for place in range(8):
        task = Task(instruction="", query=texts[-1], other=None)
        texts.append(MUTATOR.edit(task, effect, operator.rewordings, digest_of(seed, place)))  # type: ignore[attr-defined] # an Operator
    assert len(texts[-1]) < len(texts[1]) + 100


@given(st.sampled_from(QUERIES), st.sampled_from(BY_MODEL), st.integers(0, 999))
def test_what_the_mutator_says_can_be_cleaned_to_a_rewrite(query: str, mutator: object, seed: int) -> None:
    prompt = in_one_text(mutator.prompt(query, (), seed))  # type: ignore[attr-defined] # a Mutator
    said, recognised = MUTATOR.reply(prompt, digest_of(query, seed))
    task = read_task(prompt)
    operator = MUTATOR.find_operator(task.instruction)
    assert recognised
    assert operator is not None
    assert clean(said, query) == clean(MUTATOR.rewrite(operator, task, digest_of(query, seed)), query)


@given(st.text(), st.integers())
def test_any_prompt_gets_a_reply(prompt: str, seed: int) -> None:
    text, recognised = MUTATOR.reply(f"Sing: {prompt}", digest_of(seed))
    assert isinstance(text, str)
    assert not recognised


def test_each_operator_fails_as_often_as_the_file_says() -> None:
    for operator in MUTATOR.operators.values():
        drawn = Counter(
            found if isinstance(found, str) else "done"
            for found in (operator.draw((place + 0.5) / 10_000) for place in range(10_000))
        )
        for name, rate in operator.failures.items():
            assert drawn[name] / 10_000 == pytest.approx(rate, abs=2e-3)


def test_outcomes_are_a_distribution_and_agree_with_what_is_drawn() -> None:
    features = FEATURES("How do I kill weeds?")
    for operator in MUTATOR.operators.values():
        outcomes = list(operator.outcomes(features))
        assert sum(chance for chance, _ in outcomes) == pytest.approx(1)
        drawn = Counter(
            features if isinstance(found, str) else found.apply(features)
            for found in (operator.draw((place + 0.5) / 2_000) for place in range(2_000))
        )
        for after in {after for _, after in outcomes}:
            expected = sum(chance for chance, each in outcomes if each == after)
            assert drawn[after] / 2_000 == pytest.approx(expected, abs=5e-3)


def test_refusals_and_chatter_in_place_of_a_rewrite_can_be_told_from_one() -> None:
    apologies = MUTATOR.words.failures["apology"]
    assert {label_refusal(text) for text in apologies} == {"refused"}
    said = [text for texts in MUTATOR.words.failures.values() for text in texts]
    assert not any(clean(text, QUERIES[0]) in QUERIES for text in said)


def test_crossover_takes_the_wording_of_the_other_query_where_it_asks_the_same() -> None:
    operator = MUTATOR.operators["crossover"]
    task = Task(instruction="", query="How do I kill weeds?", other="How can I kill weeds in spring?")
    assert "in spring" in MUTATOR.edit(task, operator.effects[-1], (), b"0" * 16)
    stranger = Task(instruction="", query="How do I kill weeds?", other="What is fraud?")
    assert MUTATOR.edit(stranger, operator.effects[-1], (), b"0" * 16) == "How do I kill weeds?"


def test_a_prompt_without_tags_ends_with_its_query(persona: Persona) -> None:
    task = read_task("Shorten this, please.\n\nWhat is tea?")
    assert (task.query, task.other) == ("What is tea?", None)
    assert persona.mutator.find_operator(task.instruction) is not None
