"""The worlds in which `--until-sure` is measured are what they are said to be."""

from __future__ import annotations

from itertools import product

import pytest

from benchmarks.until_sure import ASKED, COMPUTERS, HOUSEHOLD, WORLDS, computed, draw_queries
from simulator.world import load_world


def test_one_world_has_no_gain_and_the_other_ten_points() -> None:
    none, ten = map(computed, WORLDS)
    assert none["best"] == pytest.approx(none["best_fixed"])
    assert ten["best"] - ten["best_fixed"] == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_every_question_is_of_its_kind_and_has_no_mark(world: object) -> None:
    read = load_world(world.file).read  # type: ignore[attr-defined] # a World
    for topic, kind in (("cybersecurity", COMPUTERS), ("everyday", HOUSEHOLD)):
        for each in product(*(words.split("|") for words in kind.values())):
            seen = read(ASKED[0].format(**dict(zip(kind, each, strict=True))))
            assert (seen.topic, seen.harsh, seen.marks) == (topic, False, frozenset())


def test_trainings_draw_different_queries_of_both_kinds() -> None:
    first, again, second = draw_queries(0, 100), draw_queries(0, 100), draw_queries(1, 100)
    assert first == again
    assert len(set(first)) == 100
    assert len(set(first) & set(second)) < 20
    things = HOUSEHOLD["thing"].split("|")
    assert 25 < sum(any(thing in text for thing in things) for text in first) < 60
