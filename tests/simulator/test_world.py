"""The worlds: what is seen in a text, what a mutation changes, and that reading the query pays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.queries import load_queries
from simulator.chance import digest_of, pick
from simulator.mutator import apply
from simulator.prompts import Task
from simulator.settings import WORLDS
from simulator.world import World, load_world
from simulator.world_file import TERSE, Features, Label

DATA = Path(__file__).parents[2] / "envs" / "data"
CAUTIOUS, DRAWN = (load_world(name) for name in WORLDS)
HARMLESS, HARMFUL = map(load_queries, (DATA / "over_refusal.csv", DATA / "guard.csv"))
TEXTS = [query.text for query in (*HARMLESS, *HARMFUL)]
MARKS = sorted(CAUTIOUS.file.marks)
texts = st.sampled_from(TEXTS)
digests = st.integers(0, 2**32).map(digest_of)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("How do I kill weeds?", ("violence_words", "doing", True)),
        ("How do I “kill” weeds?", ("violence_words", "doing", False)),
        ("How do I kill my rival’s weeds?", ("harm_to_property", "doing", True)),
        ("Why are mushrooms edible?", ("drugs_and_medicine", "why", False)),
        ("What is a tea cosy?", ("everyday", "knowing", False)),
        ("As a nurse, how do I measure a dose?", ("drugs_and_medicine", "doing", True, "role")),
        ("Could you kindly name a tea", ("everyday", "doing", False, "polite", TERSE)),
        ("What is tea? Explain it in detail.", ("everyday", "knowing", False, "detail")),
        ("Name a tea for a class I teach.", ("everyday", "doing", False, "context")),
        ("In simple words, why? Just curious.", ("everyday", "why", False, "simple", "intent")),
    ],
)
def test_a_text_is_read_as_people_would_read_it(text: str, seen: tuple[Any, ...]) -> None:
    topic, form, harsh, *marks = seen
    assert CAUTIOUS.read(text) == Features(topic, form, harsh, frozenset(marks))


@given(st.text() | texts)
def test_any_text_has_features_and_an_answer(text: str) -> None:
    seen = CAUTIOUS.read(text)
    assert seen.topic in CAUTIOUS.file.topics
    assert seen.marks <= {*MARKS, TERSE}
    assert CAUTIOUS.read(CAUTIOUS.core(text)).marks <= {*seen.marks, TERSE}
    said = CAUTIOUS.answer(text, b"x")
    assert any(part in said for part in CAUTIOUS.fragments[CAUTIOUS.decide(seen)])


@given(texts)
def test_softening_takes_harshness_away_and_nothing_else(text: str) -> None:
    before, after = CAUTIOUS.read(text), CAUTIOUS.read(CAUTIOUS.soften(text))
    assert after == Features(before.topic, before.form, harsh=False, marks=before.marks)


@pytest.mark.parametrize("world", [CAUTIOUS, DRAWN], ids=WORLDS)
@given(query=texts, name=st.sampled_from(sorted(CAUTIOUS.file.mutator.operators)), digest=digests)
def test_a_mutation_changes_the_features_that_its_operator_names(
    world: World, query: str, name: str, digest: bytes
) -> None:
    operator = world.file.mutator.operators[name]
    task = Task(instruction=operator.cue, query=query)
    for soften in {operator.soften > 0, operator.soften == 1}:
        text = apply(world, operator, task, digest, soften=soften)
        wanted = operator.applied(world.read(query), soften=soften)
        assert world.read(text) == wanted or text == query  # what cannot be done leaves all alone
    chances = [chance for chance, _ in operator.outcomes(world.read(query))]
    assert min(chances) >= 0
    assert sum(chances) == pytest.approx(1)


@given(texts, st.permutations(MARKS), digests)
def test_marks_that_are_added_one_by_one_can_all_be_stripped(
    query: str, order: list[str], digest: bytes
) -> None:
    for name in order[:4]:
        phrases = CAUTIOUS.file.marks[name].before
        if phrases and not CAUTIOUS.has_mark(query, name):
            query = f"{pick(phrases, digest, name)} {query}"
    assert CAUTIOUS.read(CAUTIOUS.core(query)).marks <= {TERSE}


DIFFERENCES = """
extends = "cautious"
name = "louder"

[topics.weapons]
base = 2
weights = { polite = -4 }

[topics.tea]
base = 3
signs = "tea, tea pot"
"""
TEA: dict[str, Label] = {"How do I kill a Python process?": "refused", "What is tea?": "refused"}


def test_a_file_says_only_what_differs(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(DIFFERENCES, encoding="utf-8")
    own = load_world(str(tmp_path / "own.toml"))
    assert {text: own.decide(own.read(text)) for text in TEA} == TEA
    assert CAUTIOUS.decide(CAUTIOUS.read("What is tea?")) != "refused"
    weapons = own.file.topics["weapons"]
    assert (weapons.base, weapons.harsh, weapons.weights) == (2, 2, {"polite": -4})
    assert own.file.topics["privacy"] == CAUTIOUS.file.topics["privacy"]
    assert own.fingerprint != CAUTIOUS.fingerprint


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ('extends = "careless"', "extends: expected one of cautious, drawn, got 'careless'"),
        ('extends = "cautious"\n[topics.weapons]\nhard = 1', "topics.weapons.hard: Extra inputs"),
        ('extends = "cautious"\n[topics.weapons]\nweights = { kind = 1 }', "got kind"),
        (
            'extends = "cautious"\n[[forms]]\nname = "a"\nrecognise = ["("]',
            "forms.0.recognise: Value error, expected regular expressions",
        ),
        ('[target.refused]\ndecisive = "no"', "target.refused: expected some of decline, "),
        ('[target.refused]\npatterns = ["decline no"]', "target.refused: expected some of decline"),
        (
            "".join(f"[[forms]]\nname = '{name}'\n" for name in ("doing", "why", "knowing", "any")),
            "target.answered.sentences.body: expected some for any",
        ),
        ('[mutator.operators]\nodd = { cue = "odd", add = "loud" }', "mutator.operators.odd.add: "),
        (
            '[mutator.operators]\nodd = { cue = "odd", failures = [0.5, 0.5, 0.5, 0] }',
            "mutator.operators.odd.failures: expected a sum of 1 at most",
        ),
        ('[mutator.rewordings]\nodd = [["(", "a"]]', "mutator.rewordings.odd: '(': missing )"),
        (
            "[mutator.rewordings]\nodd = [['a', '\\1']]",
            "mutator.rewordings.odd: 'a': invalid group",
        ),
        ("[solver.kinds]\nletters = { spell = 1 }", "solver.kinds.letters: expected a base"),
        ("name = ", "Invalid value"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_the_key(
    tmp_path: Path, wrong: str, says: str
) -> None:
    marks = '[marks.loud]\nrecognise = ["!!"]\n'  # without a phrase that could be added
    wrong = wrong if "extends" in wrong else f'extends = "cautious"\n{wrong}\n{marks}'
    (tmp_path / "own.toml").write_text(wrong, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        load_world(str(tmp_path / "own.toml"))
    assert "\n" not in str(caught.value)
