"""The world of the guard's benchmark is as its file says, and a quick run makes both tables."""

from __future__ import annotations

import pytest

from benchmarks.guard import FIRM, GIVING, WORLD, guard_queries, sections
from simulator.world import load_world

GUARDED = load_world(str(WORLD))


@pytest.mark.parametrize("subject", [GIVING, FIRM])
def test_every_guard_query_is_refused_as_it_stands(subject: str) -> None:
    texts = guard_queries(subject)
    assert len(set(texts)) == len(texts) > 300
    for text in texts:
        features = GUARDED.read(text)
        assert features.topic == subject
        assert GUARDED.decide(features) == "refused"


@pytest.mark.parametrize(
    ("subject", "labels"),
    [(GIVING, {"answered", "partly_refused", "refused"}), (FIRM, {"partly_refused", "refused"})],
)
def test_some_rewordings_unlock_the_one_and_none_the_other(subject: str, labels: set[str]) -> None:
    features = GUARDED.read(guard_queries(subject)[0])
    operators = GUARDED.file.mutator.operators.values()
    once = {reworded for operator in operators for _, reworded in operator.outcomes(features)}
    twice = {
        after for before in once for operator in operators for _, after in operator.outcomes(before)
    }
    assert {GUARDED.decide(reworded) for reworded in once | twice} == labels


def test_a_quick_run_makes_both_tables() -> None:
    found, power = sections(quick=True)
    assert [row["kept"] + row["not shown"] + row["lost"] for row in found.rows] == [1] * 5
    assert all(check.met for check in power.checks)
    assert power.rows[1]["0.0% unlocked"] == 1
