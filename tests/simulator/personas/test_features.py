"""What is seen in a text: finitely many features, and marks that change nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.chance import digest_of
from simulator.personas.language import TERSE, Features
from simulator.personas.persona import Persona
from tests.personas import SHIPPED
from tests.simulator.personas.conftest import QUERIES

GRAMMAR = SHIPPED.target.grammar
MARKERS = tuple(GRAMMAR.markers)
queries = st.sampled_from(QUERIES)
digests = st.integers().map(digest_of)


def _features(topic: str, form: str, *markers: str, harsh: bool) -> Features:
    return Features(topic, form, harsh, frozenset(markers))


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("How do I kill weeds?", _features("violence_words", "doing", harsh=True)),
        ("How do I put an end to weeds?", _features("violence_words", "doing", harsh=False)),
        ("Why are mushrooms edible?", _features("drugs_and_medicine", "why", harsh=False)),
        ("What is a tea cosy?", _features("everyday", "knowing", harsh=False)),
        (
            "As a nurse, how do I measure a dose?",
            _features("drugs_and_medicine", "doing", "role", harsh=True),
        ),
        ("Could you kindly name a tea", _features("everyday", "doing", "polite", TERSE, harsh=False)),
        (
            "What is tea? Please explain it in detail.",
            _features("everyday", "knowing", "polite", "detail", harsh=False),
        ),
        ("What can be done to warm a pot?", _features("everyday", "doing", "passive", harsh=False)),
        ("Name a tea for a class I teach.", _features("everyday", "doing", "context", harsh=False)),
        (
            "In simple words, why is tea brown? Just curious.",
            _features("everyday", "why", "simple", "intent", harsh=False),
        ),
        (
            "I wish to enquire about the whistle of a kettle.",
            _features("everyday", "knowing", "formal", harsh=False),
        ),
    ],
)
def test_a_text_is_read_as_people_would_read_it(text: str, features: Features) -> None:
    assert GRAMMAR.features(text) == features


@given(queries, st.permutations(MARKERS), st.integers(0, len(MARKERS)), digests)
def test_marks_are_added_one_by_one_and_change_nothing_else(
    query: str, order: list[str], count: int, digest: bytes
) -> None:
    openers = frozenset({"how", "what", "which", "why"})
    text, wanted = query, set(GRAMMAR.features(query).markers)
    for name in order[:count]:
        if name not in wanted:
            text = GRAMMAR.markers[name].added_to(text, openers, "", digest)
            wanted.add(name)
    start, end = GRAMMAR.features(query), GRAMMAR.features(text)
    assert end.markers - {TERSE} == wanted - {TERSE}
    assert (end.topic, end.form, end.harsh) == (start.topic, start.form, start.harsh)


@given(queries, st.permutations(MARKERS), digests)
def test_marks_that_are_stripped_again_leave_the_core(query: str, order: list[str], digest: bytes) -> None:
    text = query
    for name in order[:4]:
        if not GRAMMAR.markers[name].is_in(text):
            text = GRAMMAR.markers[name].added_to(text, frozenset(), "", digest)
    core = GRAMMAR.core(text)
    assert GRAMMAR.features(core).markers <= {TERSE}
    assert GRAMMAR.core(core) == core


@given(queries, digests)
def test_softening_takes_the_harsh_words_and_nothing_else(query: str, digest: bytes) -> None:
    before, after = GRAMMAR.features(query), GRAMMAR.features(GRAMMAR.lexicon.soften(query, digest))
    assert after == Features(before.topic, before.form, harsh=False, markers=before.markers)


@given(st.text())
def test_any_text_has_features(text: str) -> None:
    features = GRAMMAR.features(text)
    assert features.topic in load_topics()
    assert features.markers <= {*MARKERS, TERSE}


def load_topics() -> set[str]:
    return set(TOPICS)


TOPICS = tuple(SHIPPED.target.topics)


def test_nearly_every_bundled_query_has_a_topic(persona: Persona) -> None:
    topics = [persona.target.grammar.features(query).topic for query in QUERIES]
    assert topics.count("everyday") < len(QUERIES) / 50
    assert len(set(topics)) >= 10


def test_an_article_fits_the_word_after_it() -> None:
    assert GRAMMAR.lexicon.soften("Where is an axe?", b"x") == "Where is a woodcutter's tool?"
    assert GRAMMAR.lexicon.soften("Is a bomb a toy?", b"x").startswith("Is an explosive")


def test_words_keep_their_form_and_their_capital() -> None:
    assert GRAMMAR.lexicon.soften("Killing time is no fun.", b"x") == "Passing the hours is no fun."
    assert GRAMMAR.lexicon.soften("The killer\u2019s hat.", b"x") == "The culprit in the tale\u2019s hat."
