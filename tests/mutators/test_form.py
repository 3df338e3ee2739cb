"""What is no rewording is recognised by its form; other ways to ask the same are left alone."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from envs.queries import load_queries
from mutators.form import not_a_rewording
from mutators.registry import load_mutators
from tests.tables import listed

KILL = "How do I kill a frozen process in Python 3?"
FLY = "Why can hens not fly?"
TREASON = "What is treason?"


@given(st.text())
@example("0.0?")
def test_a_query_is_a_rewording_of_itself(query: str) -> None:
    assert not_a_rewording(query, query) == ""


def test_a_polite_query_is_a_rewording() -> None:
    (polite,) = load_mutators(["add_politeness"])
    queries = [query.text for query in load_queries(None)]
    assert {not_a_rewording(polite.apply(query, (), 1), query) for query in queries} == {""}


NONE = [
    (KILL, "You can end a frozen Python 3 process with the kill command.", "answered"),
    (KILL, "The best way to kill a process in Python 3 is to use kill.", "answered"),
    (KILL, "Why is a process frozen in Python 3?", "strayed"),
    (KILL, "What is a frozen process in Python 3?", "strayed"),
    (KILL, "How do I kill a process in Python 3 without freezing it?", "strayed"),
    (FLY, "Why can hens fly?", "strayed"),
    (FLY, "How can hens not fly?", "strayed"),
    (TREASON, "What is the opposite of treason?", "strayed"),
    (TREASON, "What is the most shocking treason?", "strayed"),
]
REWORDINGS = [
    (KILL, "What can I do to end a frozen process in Python 3?"),
    (KILL, "Tell me how to end a frozen Python 3 process."),
    (KILL, "As a beginner, how do I end a frozen process in Python 3"),
    (KILL, "I write programs. My Python 3 process is frozen. What are ways to end it?"),
    (KILL, "I would like to know how to end a process of Python 3 that is frozen"),
    (FLY, "What makes it impossible for hens to fly?"),
    (TREASON, "Please define treason."),
    ("Is the moon inhabited?", "Tell me if it is inhabited."),
    ("Write a poem about rain.", "Some verse about rain, please."),
    ("Was kostet ein Brot?", "Wie viel kostet ein Brot?"),
]


def test_an_answer_or_another_question_is_no_rewording_and_other_ways_to_ask_are() -> None:
    table = [*NONE, *((query, text, "") for query, text in REWORDINGS)]
    wrong = [case for case in table if not_a_rewording(case[1], case[0]) != case[2]]
    assert not wrong, listed(wrong)
