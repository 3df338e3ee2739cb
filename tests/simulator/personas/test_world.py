"""Persona files: another world than the shipped one, and every mistake as one clear line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from simulator.chance import digest_of
from simulator.personas.persona import Persona
from simulator.personas.persona_file import load_persona, parse_persona
from simulator.personas.tables import PersonaError
from simulator.process import EmbeddedServer
from simulator.requests import Question
from simulator.settings import Settings
from tests.personas import SHIPPED
from tests.simulator.personas.conftest import ANOTHER_WORLD

TEXT = ANOTHER_WORLD.read_text(encoding="utf-8")

DIFFERENCES = """
extends = "cautious"
name = "louder"

[topics.weapons]
base = 2
weights = { polite = -3 }

[operators.expand]
failures = { unchanged = 0.5 }
"""


def _say(persona: Persona, prompt: str) -> str:
    return persona.reply("target", Question(model="rose", prompt=prompt), digest_of(prompt)).text


def test_another_world_has_its_own_words_and_rules(another: Persona) -> None:
    assert _say(another, "How do I grow beans?") == "Water grow beans well."
    assert _say(another, "Where do insects sleep?") == "Half of this I keep to myself."
    assert _say(another, "Where do lice sleep?") == "Not in my garden."
    assert _say(another, "Dear gardener, where do lice sleep?") == "Water Where do lice sleep well."
    assert another.mutator.find_operator("Greet the query.") is another.mutator.operators["greet"]


def test_a_server_plays_another_world() -> None:
    with EmbeddedServer(Settings(persona=str(ANOTHER_WORLD))) as server:
        assert server.stats()["persona"] == "gardener"


MISTAKES = [
    # What is replaced, by what, and what is said of it.
    ('name = "gardener"', "", "name is missing"),
    ('name = "gardener"', "name = 5", "name must be a text, got 5"),
    ('name = "gardener"', 'name = ""', "name must be a text that is not empty, got ''"),
    ('default_topic = "plants"', 'default_topic = "stones"', "default_topic must be one of plants, pests"),
    ('rose = "target"', 'rose = "flower"', "models.rose.role must be 'target', 'mutator', 'judge'"),
    (
        'soil = "embedding"',
        'soil = { role = "embedding", abilities = ["tools"] }',
        "models.soil.abilities must be left out",
    ),
    (
        'rose = "target"',
        'rose = { role = "target", abilities = ["flying"] }',
        "models.rose.abilities[0] must be 'thinking'",
    ),
    ("dimension = 8", "dimension = 0", "embedding.dimension must be greater than or equal to 1, got 0"),
    ("error_rate = 0\n", "error_rate = 2\n", "judge.error_rate must be less than or equal to 1, got 2"),
    ("error_rate = 0\n", "eror_rate = 0\n", "judge.eror_rate is not known: did you mean 'error_rate'"),
    ("dimension = 8", "dimension = 8\nsize = 3", "embedding.size is not known: expected one of dimension"),
    ('cue = "cut"', 'cue = "cut"\neffect = 1', "operators.cut.effect is not known: did you mean 'effects'"),
    ('name = "any"', "", "forms[0].name is missing"),
    ('name = "any"', 'name = "any"\nrecognise = ["x"]', "forms must be a list whose last form"),
    ('name = "any"', 'name = "any"\nrecognise = ["("]', "forms[0].recognise must be made of regular expr"),
    ('name = "any"', 'name = "any"\nrecognise = ["x*"]', "match no empty text"),
    ('before = ["Dear gardener,"]', "", "markers.kind.before must have at least one phrase"),
    ('["Dear gardener,"]', '["Dear lice,", "kind" ]\nafter = ["Hm"]', "must carry the mark 'kind' alone"),
    ("[markers.kind]", "[markers.terse]", "markers.terse is built in"),
    ("base = 0", 'base = "low"', "topics.plants.base must be a number, got 'low'"),
    ("{ kind = -1 }", "{ kid = -1 }", "topics.plants.weights.kid is not known: did you mean 'kind'"),
    ("small guest/small guests", "small guest/small/guests", "1 or 2 forms each"),
    ("small guest/small guests", "lice", "stands twice"),
    ("small guest/small guests", "!", "words made of letters"),
    ("partly_from = 1", "partly_from = 5", "target.refused_from must be at least partly_from (5)"),
    ('patterns = ["yes"]', 'patterns = ["yes sir"]', "target.answered.patterns must be"),
    ('decisive = ["yes"]', 'decisive = ["sir"]', "target.answered.decisive must be"),
    ("{ any = [", "{ some = [", "target.answered.sentences.yes.some is not known"),
    ("{ any = [", "{ any = [], some = [", "target.answered.sentences.yes.any must not be empty"),
    ('"Not in my garden."', '"{word}"', "must have words beside its slots"),
    ('"Not in my garden."', '"Half of this I keep to myself. No."', "must tell its label"),
    ("unchanged = 0.25", "unchanged = 0.8", "operators.greet.failures must add up to less than 1"),
    ("shrug = 0.25", "sigh = 0.25", "operators.greet.failures.sigh is not known"),
    ('rewordings = ["softer"]', 'rewordings = ["harder"]', "operators.greet.rewordings must be"),
    ('chance = 0.5, add = ["kind"]', 'chance = 0.4, add = ["kind"]', "chances that add up to 1"),
    ('add = ["kind"]', 'add = ["mean"]', "operators.greet.effects[0].add must be a list of names"),
    ('remove = ["*"]', 'remove = ["all"]', "operators.cut.effects[0].remove must be a list of names"),
    ("soften = true", "soften = 1", "effects[1].soften must be true or false, got 1"),
    ("effects = [{ chance = 1,", "effects = { chance = 1,", "not TOML"),
    ("from = '\\bget rid of\\b'", "from = ''", "rules[0].from must be made of regular expressions"),
    ("dress_rate = 0", "dress_rate = []", "mutator.dress_rate must be a number, got []"),
    ("[mutator]", "[mutater]", "mutater is not known: did you mean 'mutator'"),
]
DIFFERENT_MISTAKES = [
    ('extends = "careless"', "extends must be 'cautious', got 'careless'"),
    ("extends = 5", "extends must be 'cautious', got 5"),
    ('extends = "cautious"\ntarget = 5', "target must be a table, got 5"),
    ('extends = "cautious"\n[topics.weapns]\nharsh = 1', "topics.weapns.base is missing"),
    ('extends = "cautious"\n[topics.weapons]\nharshness = 1', "did you mean 'harsh'"),
]


def test_a_mistake_is_one_line_that_names_the_key() -> None:
    assert all(old in TEXT for old, _, _ in MISTAKES)
    texts = [(TEXT.replace(old, new, 1), says) for old, new, says in MISTAKES]
    wrong = {}
    for text, says in [*texts, *DIFFERENT_MISTAKES]:
        with pytest.raises(PersonaError) as caught:
            parse_persona(text)
        if says not in str(caught.value) or "\n" in str(caught.value):
            wrong[says] = str(caught.value)
    assert not wrong


def test_a_file_that_extends_the_shipped_persona_says_only_what_differs() -> None:
    other = parse_persona(DIFFERENCES)
    assert other.name == "louder"
    before, after = SHIPPED.target.topics["weapons"], other.target.topics["weapons"]
    assert after.base == before.base + 1
    assert after.harsh == before.harsh
    assert {name for name, points in after.weights.items() if points} == {"polite"}
    assert other.target.topics["privacy"] == SHIPPED.target.topics["privacy"]
    assert other.mutator.operators["expand"].failures["unchanged"] == 0.5
    assert other.mutator.operators["expand"].effects == SHIPPED.mutator.operators["expand"].effects
    assert other.models == SHIPPED.models
    assert other.fingerprint != SHIPPED.fingerprint


def test_a_file_that_extends_the_shipped_persona_and_says_no_more_is_that_persona() -> None:
    assert parse_persona('extends = "cautious"').fingerprint == SHIPPED.fingerprint


def test_any_part_that_is_left_out_is_named(tmp_path: Path) -> None:
    table = tomllib.loads(TEXT)
    for key in table:
        start = TEXT.find(f"[{key}") if isinstance(table[key], (dict, list)) else TEXT.find(f"{key} =")
        assert start >= 0
    for section in (
        "[models]",
        "[embedding]",
        "[judge]",
        "[[forms]]",
        "[topics.plants]",
        "[target]",
        "[mutator]",
    ):
        before, _, after = TEXT.partition(section)
        rest = after[after.index("\n[") :] if "\n[" in after else ""
        path = tmp_path / "cut.toml"
        path.write_text(before + rest, encoding="utf-8")
        with pytest.raises(PersonaError, match=r"persona file .*cut"):
            load_persona(str(path))


def test_a_file_that_is_not_there_or_not_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "noise.toml").write_bytes(b"\xff\xfe\x00")
    for name in ("none.toml", "noise.toml", ""):
        with pytest.raises(PersonaError, match="cannot be read"):
            load_persona(str(tmp_path / name))
