"""The mutators that rebuild a sentence by rule: right where they apply, and nothing where they do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mutators.registry import DEFAULT_MUTATORS, load_mutators
from mutators.restructure import RULES, drop_words, switch_form, to_passive


@given(st.text(), st.integers())
def test_a_rule_is_a_function_of_the_query_and_leaves_something(query: str, seed: int) -> None:
    for mutator in RULES:
        made = mutator.apply(query, (), seed)
        assert made == mutator.apply(query, ("other",), 0)
        assert bool(made) == bool(query.strip())


def test_they_load_by_name_and_are_no_default() -> None:
    names = [mutator.name for mutator in RULES]
    assert load_mutators(names) == RULES
    assert not set(names) & set(DEFAULT_MUTATORS)


@pytest.mark.parametrize(
    ("query", "made"),
    [
        ("How do I boil an egg?", "Explain how to boil an egg."),
        ("What's the best way to boil an egg?", "Tell me the best way to boil an egg."),
        ("What is fog?", "Tell me what fog is."),
        ("Where can I buy bread?", "Tell me where I can buy bread."),
        ("Who invented the telephone?", "Tell me who invented the telephone."),
        ("Can I wash wool?", "Tell me whether I can wash wool."),
        ("Explain how to boil an egg.", "How can I boil an egg?"),
        ("Write a poem about rain.", "Could you write a poem about rain?"),
        ("How do I boil an egg, and how long?", "How do I boil an egg, and how long?"),
        ("Why can people in Rome not vote?", "Why can people in Rome not vote?"),
        ("Rain.", "Rain."),
    ],
)
def test_a_question_becomes_a_request_and_a_request_a_question(query: str, made: str) -> None:
    assert switch_form.apply(query, (), 0) == made


@pytest.mark.parametrize(
    ("query", "made"),
    [
        ("How do I kill a frozen process?", "How can a frozen process be killed?"),
        ("How can I best hang a picture?", "How can a picture best be hung?"),
        ("Where should I plant the tulips?", "Where should the tulips be planted?"),
        ("How do I teach my dog a trick?", "How do I teach my dog a trick?"),
        ("How do I cut a log into pieces?", "How do I cut a log into pieces?"),
        ("How do I run fast?", "How do I run fast?"),
    ],
)
def test_what_is_done_to_a_thing_is_asked_in_the_passive_voice(query: str, made: str) -> None:
    assert to_passive.apply(query, (), 0) == made


@pytest.mark.parametrize(
    ("query", "made"),
    [
        ("How do I boil an egg?", "How to boil an egg?"),
        ("What is the address of the museum?", "Address of the museum?"),
        ("Could you please tell me why leaves fall?", "Why leaves fall?"),
        ("Do magpies really steal?", "Do magpies steal?"),
        ("Why do leaves fall?", "Why do leaves fall?"),
    ],
)
def test_words_that_ask_for_nothing_are_dropped(query: str, made: str) -> None:
    assert drop_words.apply(query, (), 0) == made
