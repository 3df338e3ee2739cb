"""What an evaluation says: laws of the report, and figures worked by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.gates import read_gates
from evaluation.report import report
from scorers.comparison import compare
from scorers.correction import LabelAccuracy
from scorers.statistics import mean_interval, rate_interval
from tests.evaluation.evaluations import (
    ACCURACY,
    CRASH,
    agent,
    agents,
    crashed,
    evaluations,
    results,
    unscored,
)

NAMES = ["mission 0", "mission 0 guard"]
GATES = read_gates(("success=0.3", "kept=0.5"), ("refusal=0.6",), NAMES, NAMES[1:])


def made(found: dict[str, Any]) -> dict[str, Any]:
    """The report with everything in it."""
    return report(found, power=0.05, accuracy=ACCURACY, gates=GATES)


def row(found: dict[str, Any], team: str) -> dict[str, Any]:
    """The row of a team."""
    return next(each for each in found["rates"] if each["team"] == team)


@settings(max_examples=4)
@given(found=evaluations(), teams=st.permutations(range(4)), missions=st.permutations(range(3)))
def test_order_changes_no_number_and_neither_does_what_an_unscored_agent_did(
    found: dict[str, Any], teams: list[int], missions: list[int]
) -> None:
    other = {"outcomes": ["refused"] * 5, "return": -9.0, "drifted": 5, "actions": ["shorten"] * 5}

    def moved(episode: dict[str, Any]) -> dict[str, Any]:
        team, mission = teams.index(episode["team"]), missions.index(episode["mission"])
        changed = other if episode["status"] == "unscored" and not mission_is_guard(episode) else {}
        return episode | {"team": team, "mission": mission} | changed

    def mission_is_guard(episode: dict[str, Any]) -> bool:
        return bool(found["missions"][episode["mission"]]["guard"])

    reordered = found | {
        "teams": [found["teams"][k] for k in teams],
        "missions": [found["missions"][k] for k in missions],
        "episodes": sorted(map(moved, found["episodes"]), key=lambda e: (e["mission"], e["team"])),
    }
    one, again = made(found), made(reordered)
    pairs = [(one[part], again[part]) for part in ("rates", "comparisons", "gates", "problems")]
    pairs += [(one["guard"][k], again["guard"][k]) for k in ("as_they_stand", "policies")]
    for rows, rows_again in pairs:
        assert sorted(map(json.dumps, rows)) == sorted(map(json.dumps, rows_again))


@settings(max_examples=4)
@given(evaluations())
def test_each_agents_episode_is_counted_once(found: dict[str, Any]) -> None:
    """As scored, unscored or failed; the policies of a mixed team add up to it."""
    whole_report = report(found, power=0.05, accuracy=ACCURACY)
    assert json.loads(json.dumps(whole_report, allow_nan=False)) == whole_report
    for each in whole_report["rates"]:
        assert each["unscored"]["n"] == each["failed"]["n"]
        lost = each["unscored"]["count"] + each["failed"]["count"]
        assert each["success"]["n"] + lost == each["failed"]["n"]
        assert not each["mutators"] or math.isclose(sum(each["mutators"].values()), 1)
    whole, *parts = (
        each
        for each in whole_report["rates"]
        if (each["team"], each["mission"]) == ("mix", "mission 0")
    )
    assert [part["policy"] for part in parts] == ["noop", "run"]
    for name in ("success", "refusal", "unscored", "failed"):
        for key in ("count", "n"):
            assert whole[name][key] == sum(part[name][key] for part in parts)
    for name in ("failed_steps", "failed_calls"):
        assert whole[name] == sum(part[name] for part in parts)
    assert whole["calls"]["total"] == sum(part["calls"]["total"] for part in parts)


def test_a_row_worked_by_hand() -> None:
    rows = [
        [
            agent("random", steps=2, failed_steps=1, failed_calls=3),
            agent("random", steps=5, success=False),
        ],
        [agent("random", outcomes=["partial"], success=False), unscored("random", steps=3)],
        [crashed("random")],
    ]
    whole = report(results({"random": rows}))
    found = row(whole, "random")
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
    assert whole["problems"] == [
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


def outcomes(**by_team: Sequence[bool]) -> dict[str, list[list[dict[str, Any]]]]:
    """A mission, by team and query whether it succeeded."""
    return {name: [[agent(name, success=s)] for s in each] for name, each in by_team.items()}


def test_success_is_paired_by_query_and_adjusted_over_all_that_are_shown() -> None:
    mission = outcomes(
        noop=[False] * 10 + [True] * 4,
        random=[False] * 5 + [True] * 9,
        best_fixed=[False] * 4 + [True] * 10,
        run=[True] * 14,
    )
    lines = report(results(mission))["comparisons"]
    assert [line["against"] for line in lines] == ["noop", "random", "best_fixed"]
    found = lines[0]["success"]
    expected = compare([[1.0]] * 14, [[float(k >= 10)] for k in range(14)])
    assert found["difference"] == pytest.approx(10 / 14)
    assert (found["low"], found["high"]) == (expected.low, expected.high)
    assert found["p"] == pytest.approx(2 * 0.5**10, abs=0.001)
    assert found["p_holm"] == pytest.approx(3 * found["p"])


@settings(max_examples=8)
@given(st.lists(st.lists(agents("run"), min_size=2, max_size=2), min_size=2, max_size=6))
def test_equal_policies_differ_by_exactly_0(rows: list[list[dict[str, Any]]]) -> None:
    (line,) = report(results({"run": rows, "noop": rows}))["comparisons"]
    for name in ("success", "return", "calls_per_answer"):
        assert line[name]["difference"] in {0, None}
    assert (line["success"]["difference"] is None) == (line["queries"] == 0)
    assert line["success"]["p"] in {1, None}


@pytest.mark.parametrize(
    ("asked", "baselines", "pairs"),
    [
        ("run", "random noop", ["run random", "run noop"]),
        ("run noop", "noop random", ["run noop", "run random", "noop random"]),
        ("noop random", "noop random", ["random noop"]),
    ],
)
def test_those_that_were_asked_for_are_compared_with_the_baselines_each_pair_once(
    asked: str, baselines: str, pairs: list[str]
) -> None:
    teams = outcomes(run=[True], noop=[True], random=[True])
    found = report(results(teams, asked=asked.split(), baselines=baselines.split()))
    assert [f"{line['team']} {line['against']}" for line in found["comparisons"]] == pairs


def test_queries_that_only_one_was_scored_on_are_left_out() -> None:
    run = [[agent("run")], [unscored("run")], [crashed("run")]]
    (line,) = report(results({"run": run, "noop": [[agent()]] * 3}))["comparisons"]
    assert (line["queries"], line["left_out"], line["success"]["difference"]) == (1, 2, 0)
    (line,) = report(results({"run": run[1:], "noop": [[agent()]] * 2}), power=0.1)["comparisons"]
    assert (line["success"]["p"], line["queries_needed"]) == (None, None)
    unknown = {"difference": None, "low": None, "high": None}
    assert line["return"] == line["calls_per_answer"] == unknown
    assert unknown.items() <= line["success"].items()


@pytest.mark.parametrize(
    ("power", "wins", "queries", "expected"),
    [
        (0.05, 0, 180, None),  # where no query differs, nothing is known
        # Six must differ, of which a difference of 30 points brings three in ten: 25 in 80 of 100.
        (0.3, 1, 180, 25),
        (0.5, 20, 20, 6),  # where every query is won the next may not be
    ],
)
def test_enough_queries_have_to_differ_that_the_test_can_find_it(
    power: float, wins: int, queries: int, expected: int | None
) -> None:
    mission = outcomes(run=[True] * queries, noop=[k >= wins for k in range(queries)])
    (line,) = report(results(mission), power=power)["comparisons"]
    assert line["queries_needed"] == expected


@pytest.mark.parametrize(("failed", "turns"), [(0, False), (3, False), (20, True)])
def test_where_failed_steps_could_turn_a_comparison_a_line_says_so(
    failed: int, *, turns: bool
) -> None:
    """Of 60 queries noop answers 10, and run 30, with failed steps in some."""
    run = [[agent("run", success=k < 30, failed_steps=int(k < failed))] for k in range(60)]
    noop = [[agent(success=k < 10)] for k in range(60)]
    problems = report(results({"run": run, "noop": noop}))["problems"]
    lines = [line for line in problems if "could turn" in line]
    assert [f"mission 0, run against noop: {failed} episodes" in line for line in lines] == (
        [True] if turns else []
    )
