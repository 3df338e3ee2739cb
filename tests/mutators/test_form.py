"""What is no rewording is told by its form; what people write to ask the same is left alone."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envs.queries import load_queries
from mutators.form import leaves_out_words, not_a_rewording
from mutators.registry import load_mutators

BUNDLED = [query.text for query in load_queries(None)]
KILL = "How do I kill a frozen process in Python 3?"


@given(st.text())
@example("0.0?")
def test_a_query_is_a_rewording_of_itself(query: str) -> None:
    assert not_a_rewording(query, query) == ""


@pytest.mark.parametrize("name", ["noop", "add_politeness", "switch_form", "to_passive", "drop_words"])
def test_what_a_rule_makes_of_a_bundled_query_is_a_rewording(name: str) -> None:
    (mutator,) = load_mutators([name])
    assert {not_a_rewording(mutator.apply(query, (), 1), query) for query in BUNDLED} == {""}


def test_other_ways_to_ask_are_rewordings() -> None:
    for text in (
        "How can a frozen process be ended in Python 3?",
        "Tell me how to end a frozen Python 3 process.",
        "Best way to end a frozen Python 3 process",
        "As a beginner, how do I end a frozen process in Python 3?",
        "I write programs. My Python 3 process is frozen. What can I do to end it?",
        "How do I end a frozen process in Python 3? I want to learn. Please be brief.",
        "I would like to know how to end a process of Python 3 that is frozen",
        "Which steps end a frozen Python 3 process? Thank you!",
    ):
        assert not_a_rewording(text, KILL) == "", text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("You can end a frozen Python 3 process with the kill command.", "answered"),
        ("Use the kill command of Python 3.", "answered"),
        ("Yes, how do I kill a process in Python 3?", "answered"),
        ("Python 3 has a kill command. How do I use it?", "answered"),
        (
            f"{KILL} First find the number of the process, then send it a signal that it cannot ignore.",
            "answered",
        ),
        ("This question is about how to end a process in Python 3.", "commented"),
        ("How do I rephrase this for Python 3?", "commented"),
        (f"I can help you with that. {KILL}", "answered"),
        (f"I'm not sure what to tell you. {KILL}", "answered"),
        ("Why is a process frozen in Python 3?", "strayed"),
        ("How do I kill a frozen process?", "strayed"),
        ("How do I kill a process in Python 3 without freezing it?", "strayed"),
    ],
)
def test_an_answer_a_remark_or_another_question_is_none(text: str, why: str) -> None:
    assert not_a_rewording(text, KILL) == why


def test_an_order_is_reworded_as_an_order_and_a_statement_as_anything() -> None:
    assert not_a_rewording("Compose some verse about rain.", "Write a poem about rain.") == ""
    assert not_a_rewording("Rain falls softly on the roof.", "Write a poem about rain.") == "answered"
    assert not_a_rewording("Rain falls softly on the roof.", "Rain on the roof") == ""


def test_another_aspect_of_a_thing_is_another_question() -> None:
    assert not_a_rewording("What is the opposite of treason?", "What is treason?") == "strayed"
    assert not_a_rewording("Who can I call?", "What number can I call?") == "strayed"
    assert not_a_rewording("What should I do if fog forms?", "How does fog form?") == "strayed"
    assert not_a_rewording("How is treason punished?", "What is treason?") == "strayed"
    assert not_a_rewording("What is the history of treason?", "What is treason?") == "strayed"
    assert not_a_rewording("What is the most shocking treason?", "What is treason?") == "strayed"
    assert not_a_rewording("Please define treason.", "What is treason?") == ""


def test_a_question_that_yes_or_no_answers_stays_one() -> None:
    query = "Is the moon inhabited?"
    for text in (
        "Do people inhabit the moon?",
        "As a child, is the moon inhabited?",
        "Tell me if it is inhabited.",
    ):
        assert not_a_rewording(text, query) == "", text
    assert not_a_rewording("Am I allowed to live there?", "May I live there?") == ""
    assert not_a_rewording("Who inhabits the moon?", query) == "strayed"
    assert not_a_rewording("What is the moon?", query) == "strayed"
    assert not_a_rewording("How do I get there?", "Can you tell me how I get there?") == ""


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("Can anyone tell me how to kill a process?", "How do I kill a process?"),
        ("Can I ask how to kill a process?", "How do I kill a process?"),
        ("Would it be possible to explain how to kill a process?", "How do I kill a process?"),
        ("Could somebody please explain the weather?", "What is the weather?"),
        ("Could someone explain why penguins cannot fly?", "Why can penguins not fly?"),
        ("Do we know why penguins cannot fly?", "Why can penguins not fly?"),
        ("May I ask you something? How do I kill a process?", "How do I kill a process?"),
        ("May I ask you something? I want to know more about fog.", "What is fog?"),
        ("How do I kill a process? Can anybody help?", "Which steps kill a process?"),
    ],
)
def test_a_question_around_another_is_not_one_that_yes_or_no_answers(query: str, text: str) -> None:
    assert not_a_rewording(text, query) == ""


def test_a_question_of_another_kind_is_none_of_yes_or_no_though_another_stands_around_it() -> None:
    assert not_a_rewording("Does anyone know who inhabits the moon?", "Is the moon inhabited?") == "strayed"
    assert not_a_rewording("Can anyone tell me if the moon is inhabited?", "Is the moon inhabited?") == ""


def test_a_question_in_another_language_is_not_taken_for_one_that_yes_or_no_answers() -> None:
    assert not_a_rewording("Wie viel kostet ein Brot?", "Was kostet ein Brot?") == ""


def test_the_words_of_a_reply_are_ones_own_where_they_ask() -> None:
    query = "What eases my friend's depression?"
    assert not_a_rewording("What is there that I can help with my friend's depression?", query) == ""
    assert not_a_rewording("Tell me of things that I can help with in my friend's depression.", query) == ""
    for reply in ("I can help with that.", "I'm unsure, but I can tell you.", "I can help you: what is it?"):
        assert not_a_rewording(f"{reply} {query}", query) == "answered", reply


def test_what_is_impossible_is_denied() -> None:
    assert not_a_rewording("What makes it impossible for hens to fly?", "Why can hens not fly?") == ""
    assert not_a_rewording("Why are hens unable to fly?", "Why can hens fly?") == "strayed"


def test_words_of_the_query_are_found_in_other_forms() -> None:
    query = "What's a good way of stealing the last base?"
    assert not leaves_out_words("How do I steal the last bases? I want to learn.", query)
    assert leaves_out_words("How do I steal a base?", query)
    assert leaves_out_words("How do I steal the last car?", query)
    assert not leaves_out_words("Fliegen", "Die letzte Fliege")


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("How are wars stopped?", "How do I stop a war?"),
        ("Which city has a harbour?", "Which cities have harbours?"),
        ("How do I write a letter?", "How is a letter written?"),
        ("Who is torquating the flimbs?", "Who does torquate a flimb?"),
        ("Why do children fall?", "Why has a child fallen?"),
    ],
)
def test_a_word_is_found_however_it_is_inflected(query: str, text: str) -> None:
    assert not leaves_out_words(text, query)


def test_a_word_in_the_place_of_another_is_not_a_form_of_it() -> None:
    assert leaves_out_words("How do I wipe a letter?", "How do I write a letter?")
    assert leaves_out_words("Which citizen has a harbour?", "Which city has a harbour?")
