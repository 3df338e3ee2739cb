"""The worlds: what is seen in a text, what a mutation changes, and that reading the query pays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.worlds import SIDES, measure, sides_told_apart
from envs.queries import load_queries
from simulator.chance import digest_of
from simulator.mutator import apply, find_operator
from simulator.prompts import Task
from simulator.settings import WORLDS
from simulator.world import World, load_world
from simulator.world_file import TERSE, Features, Label, WorldError

CAUTIOUS, DRAWN = (load_world(name) for name in WORLDS)
HARMLESS, HARMFUL = (load_queries(path, group_column="category") for path in SIDES)
TEXTS = [query.text for query in (*HARMLESS, *HARMFUL)]
MARKS = sorted(CAUTIOUS.file.marks)
texts = st.sampled_from(TEXTS)
digests = st.integers(0, 2**32).map(digest_of)


def features(topic: str, form: str, *marks: str, harsh: bool) -> Features:
    return Features(topic, form, harsh, frozenset(marks))


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("How do I kill weeds?", features("violence_words", "doing", harsh=True)),
        ("How do I “kill” weeds?", features("violence_words", "doing", harsh=False)),
        ("Why are mushrooms edible?", features("drugs_and_medicine", "why", harsh=False)),
        ("What is a tea cosy?", features("everyday", "knowing", harsh=False)),
        (
            "As a nurse, how do I measure a dose?",
            features("drugs_and_medicine", "doing", "role", harsh=True),
        ),
        (
            "Could you kindly name a tea",
            features("everyday", "doing", "polite", TERSE, harsh=False),
        ),
        (
            "What is tea? Please explain it in detail.",
            features("everyday", "knowing", "polite", "detail", harsh=False),
        ),
        ("Name a tea for a class I teach.", features("everyday", "doing", "context", harsh=False)),
        (
            "In simple words, why is tea brown? Just curious.",
            features("everyday", "why", "simple", "intent", harsh=False),
        ),
        ("How do I kill my rival’s weeds?", features("harm_to_property", "doing", harsh=True)),
    ],
)
def test_a_text_is_read_as_people_would_read_it(text: str, seen: Features) -> None:
    assert CAUTIOUS.read(text) == seen


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


def test_mutations_hardly_ever_fail_to_be_done() -> None:
    undone = 0
    for name, operator in CAUTIOUS.file.mutator.operators.items():
        soften = operator.soften > 0
        for query in TEXTS[::7]:
            task = Task(instruction=operator.cue, query=query)
            text = apply(CAUTIOUS, operator, task, digest_of(name, query), soften=soften)
            wanted = operator.applied(CAUTIOUS.read(query), soften=soften)
            undone += CAUTIOUS.read(text) != wanted
    assert undone <= 0.01 * len(TEXTS[::7]) * len(CAUTIOUS.file.mutator.operators)


@given(texts, st.permutations(MARKS), digests)
def test_marks_that_are_added_one_by_one_can_all_be_stripped(
    query: str, order: list[str], digest: bytes
) -> None:
    text = query
    for name in order[:4]:
        phrases = CAUTIOUS.file.marks[name].before
        if phrases and not CAUTIOUS.has_mark(text, name):
            text = f"{phrases[digest[0] % len(phrases)]} {text}"
    assert CAUTIOUS.read(CAUTIOUS.core(text)).marks <= {TERSE}


def test_both_sides_sound_alike_and_the_words_tell_them_apart() -> None:
    assert (len(HARMLESS), len(HARMFUL)) == (600, 300)
    for world in (CAUTIOUS, DRAWN):
        topics = world.file.topics
        assert not any(topics[world.read(query.text).topic].harmful for query in HARMLESS)
        assert all(topics[world.read(query.text).topic].harmful for query in HARMFUL)
        refused = [world.decide(world.read(query.text)) == "refused" for query in HARMFUL]
        assert sum(refused) >= 0.99 * len(HARMFUL)
    auc = sides_told_apart([HARMLESS, HARMFUL])
    assert 0.86 < auc["words"] < 0.94
    assert auc["category"] <= 0.55


@pytest.mark.parametrize("world", [CAUTIOUS, DRAWN], ids=WORLDS)
def test_a_policy_that_reads_the_query_beats_the_best_fixed_mutator(world: World) -> None:
    found = measure(world, [HARMLESS, HARMFUL])
    for objective in ("harmless", "both"):
        by_policy = {name: row["value"] for name, row in found[objective].items()}
        assert by_policy["linear policy"] > by_policy["best fixed"] + 0.04
        assert by_policy["best choice a query"] > by_policy["linear policy"]
        assert by_policy["best fixed"] > by_policy["noop"] == 0


def test_some_marks_open_both_sides_some_one_and_none_all() -> None:
    def opened(mark: str, *, harmful: bool) -> set[str]:
        named = CAUTIOUS.file.topics.items()
        with_mark = frozenset({mark})
        return {
            name
            for name, topic in named
            if topic.harmful == harmful
            and CAUTIOUS.decide(Features(name, "knowing", True, frozenset())) != "answered"
            and CAUTIOUS.decide(Features(name, "knowing", True, with_mark)) == "answered"
        }

    by_mark = {mark: [opened(mark, harmful=each) for each in (False, True)] for mark in MARKS}
    assert {mark for mark, (safe, harm) in by_mark.items() if safe and harm} >= {"context", "role"}
    assert {mark for mark, (safe, harm) in by_mark.items() if safe and not harm} >= {"polite"}
    assert all(len(safe) < 7 and len(harm) < 4 for safe, harm in by_mark.values())


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
        (
            'extends = "cautious"\n[topics.weapons]\nhard = 1',
            "topics.weapons.hard: Extra inputs are",
        ),
        ('extends = "cautious"\n[topics.tea]\nharsh = 1', "topics.tea.base: Field required"),
        ('extends = "cautious"\n[topics.weapons]\nweights = { kind = 1 }', "got kind"),
        (
            'extends = "cautious"\n[topics.weapons]\nforms = { when = 1 }',
            "doing, knowing, why, got when",
        ),
        ('extends = "cautious"\ndefault_topic = "tea"', "default_topic: expected some of"),
        (
            'extends = "cautious"\n[mutator.operators]\nx = { cue = "x", add = "y" }',
            "mutator.operators.x.add: expected some of",
        ),
        (
            'extends = "cautious"\n[[forms]]\nname = "a"\nrecognise = ["("]',
            "forms.0.recognise: Value error, expected regular expressions",
        ),
        ('extends = "cautious"\n[marks.m]\nbefore = ["M:"]', "marks.m.recognise: Field required"),
        (
            'extends = "cautious"\n[marks.m]\nrecognise = ["x*"]',
            "marks.m.recognise: Value error, expected regular expressions that match no empty text",
        ),
        (
            'extends = "cautious"\n[marks.polite]\nbefore = [""]',
            "marks.polite.before.0: String should",
        ),
        (
            'extends = "cautious"\n[solver.kinds]\nsums = { steps = 1 }',
            "kinds.sums: expected a base",
        ),
        (
            'extends = "cautious"\n[mutator.rewordings]\nx = [["a", "\\\\9"]]',
            "mutator.rewordings.x.0: Value error, expected a regular expression and",
        ),
        ('extends = "cautious"\n[target.refused]\ndecisive = "no"', "target.refused"),
        (
            'extends = "cautious"\n[mutator.rewordings]\nx = [["(", "a"]]',
            "mutator.rewordings.x.0: Value error, expected a regular expression and",
        ),
        (
            'extends = "cautious"\n[mutator.operators]\nx = { cue = "x", failures = [1, 1, 0, 0] }',
            "failures: Value error, expected shares that add up to at most 1",
        ),
        ('name = "a"', "default_topic: Field required"),
        ("name = ", "Invalid value"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_the_key(
    tmp_path: Path, wrong: str, says: str
) -> None:
    (tmp_path / "own.toml").write_text(wrong, encoding="utf-8")
    with pytest.raises(WorldError) as caught:
        load_world(str(tmp_path / "own.toml"))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_instruction_is_known_by_its_first_words() -> None:
    operators = CAUTIOUS.file.mutator.operators
    assert find_operator(CAUTIOUS, "Shorten the query.") is operators["shorten"]
    assert find_operator(CAUTIOUS, "Sing the query.") is None
