"""What an evaluation says: laws of the report, and figures worked by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.gates import read_gates
from evaluation.report import report
from scorers.correction import LabelAccuracy
from scorers.statistics import mean_interval, rate_interval
from tests.evaluation.evaluations import (
    ACCURACY,
    CRASH,
    agent,
    crashed,
    evaluations,
    results,
    unscored,
)

LAW = settings(max_examples=5)
"""An example is a whole evaluation."""
NAMES = ["mission 0", "mission 0 guard"]
GATES = read_gates(("success=0.3", "kept=0.5"), ("refusal=0.6",), NAMES, NAMES[1:])


def made(found: dict[str, Any]) -> dict[str, Any]:
    """The report with everything in it."""
    return report(found, power=0.05, accuracy=ACCURACY, gates=GATES)


def row(found: dict[str, Any], team: str) -> dict[str, Any]:
    """The row of a team."""
    return next(each for each in found["rates"] if each["team"] == team)


@LAW
@given(found=evaluations(), teams=st.permutations(range(4)), missions=st.permutations(range(3)))
def test_the_order_of_missions_and_teams_changes_no_number(
    found: dict[str, Any], teams: list[int], missions: list[int]
) -> None:
    def moved(episode: dict[str, Any]) -> dict[str, Any]:
        team, mission = teams.index(episode["team"]), missions.index(episode["mission"])
        return episode | {"team": team, "mission": mission}

    reordered = found | {
        "teams": [found["teams"][k] for k in teams],
        "missions": [found["missions"][k] for k in missions],
        "episodes": sorted(map(moved, found["episodes"]), key=lambda e: (e["mission"], e["team"])),
    }
    one, other = made(found), made(reordered)
    pairs = [(one[part], other[part]) for part in ("rates", "comparisons", "gates", "problems")]
    pairs += [(one["guard"][k], other["guard"][k]) for k in ("as_they_stand", "policies")]
    for rows, again in pairs:
        assert sorted(map(json.dumps, rows)) == sorted(map(json.dumps, again))


@LAW
@given(evaluations())
def test_each_agents_episode_is_counted_once(found: dict[str, Any]) -> None:
    """As scored, unscored or failed; the policies of a mixed team add up to it."""
    told = made(found)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    for each in told["rates"]:
        assert each["unscored"]["n"] == each["failed"]["n"]
        lost = each["unscored"]["count"] + each["failed"]["count"]
        assert each["success"]["n"] + lost == each["failed"]["n"]
        assert not each["mutators"] or math.isclose(sum(each["mutators"].values()), 1)
    whole, *parts = (
        each for each in told["rates"] if (each["team"], each["mission"]) == ("mix", "mission 0")
    )
    assert [part["policy"] for part in parts] == ["noop", "run"]
    for name in ("success", "refusal", "unscored", "failed"):
        for key in ("count", "n"):
            assert whole[name][key] == sum(part[name][key] for part in parts)
    for name in ("failed_steps", "failed_calls"):
        assert whole[name] == sum(part[name] for part in parts)
    assert whole["calls"]["total"] == sum(part["calls"]["total"] for part in parts)


@LAW
@given(evaluations())
def test_what_an_unscored_agent_did_is_in_no_rate(found: dict[str, Any]) -> None:
    other = {"outcomes": ["refused"] * 5, "return": -9.0, "drifted": 5, "actions": ["shorten"] * 5}
    changed = [e | (other if e["status"] == "unscored" else {}) for e in found["episodes"]]
    one, again = report(found), report(found | {"episodes": changed})
    assert one["rates"] == again["rates"]
    assert one["comparisons"] == again["comparisons"]


def test_a_row_worked_by_hand() -> None:
    rows = [
        [
            agent("random", steps=2, failed_steps=1, failed_calls=3),
            agent("random", steps=5, success=False),
        ],
        [agent("random", outcomes=["partial"], success=False), unscored("random", steps=3)],
        [crashed("random")],
    ]
    told = report(results({"random": rows}))
    found = row(told, "random")
    ends = dict(zip(("low", "high"), rate_interval([(1, 2), (0, 1)])[1:], strict=True))
    assert found["success"] == {"rate": 1 / 3, **ends, "count": 1, "n": 3, "queries": 2}
    assert (found["refusal"]["count"], found["refusal"]["n"]) == (7, 8)
    assert (found["partial"]["count"], found["partial"]["n"]) == (1, 8)
    expected = mean_interval([[0.9, -0.25], [-0.05]], least=-0.25, most=0.95)
    assert (found["return"]["mean"], found["return"]["low"], found["return"]["high"]) == expected
    assert (found["unscored"]["count"], found["failed"]["count"], found["failed"]["n"]) == (1, 1, 5)
    assert (found["failed_steps"], found["failed_calls"]) == (2, 11)
    spent = {"choices": 0, "rewrites": 12, "questions": 12, "verdicts": 0}
    assert found["calls"] == {**spent, "total": 24, "per_answer": 24}
    assert told["problems"] == [
        "failed: mission 0, random: 1 x ValueError: no",
        "unscored: mission 0, random: 1 x HTTPStatusError: status 500",
    ]
    long = results({"noop": [[crashed(error=CRASH.replace("no", "x" * 999))]]})
    assert len(report(long)["problems"][0]) < 260


def test_corrected_rates_stand_beside_the_raw_ones() -> None:
    rows = results({"noop": [[agent(steps=1 + k % 3)] for k in range(40)]})
    found = row(report(rows, accuracy=ACCURACY), "noop")
    corrected = (found["refusal"]["rate"] + 0.95 - 1) / (0.9 + 0.95 - 1)
    assert found["refusal_corrected"]["rate"] == pytest.approx(corrected)
    perfect = LabelAccuracy(sensitivity=1, specificity=1, positives=10**9, negatives=10**9)
    found = row(report(rows, accuracy=perfect), "noop")
    for name in ("refusal", "success"):
        for key in ("rate", "low", "high"):
            assert found[f"{name}_corrected"][key] == pytest.approx(found[name][key], abs=1e-6)


def test_corrected_success_finds_the_true_one_where_false_answers_end_episodes() -> None:
    """A target that answers 3 queries in 10 for good and refuses the rest, whatever is tried."""
    chance = np.random.default_rng(0)
    episodes: list[list[dict[str, Any]]] = []
    for k in range(4000):
        label = chance.random(5) < (0.95 if k % 10 < 3 else 0.1)
        steps = int(np.argmax(label)) + 1 if label.any() else 5
        episodes.append([agent(steps=steps, success=bool(label.any()))])
    found = row(report(results({"noop": episodes}), accuracy=ACCURACY), "noop")
    assert found["success"]["rate"] > 0.55
    assert found["success_corrected"]["rate"] == pytest.approx(0.3, abs=0.02)
    assert found["success_corrected"]["low"] < 0.3 < found["success_corrected"]["high"]
