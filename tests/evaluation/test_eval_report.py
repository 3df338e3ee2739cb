"""What an evaluation says: laws of the report, and hand-worked figures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.main import execute
from evaluation.report import by_query, entries, report
from scorers.correction import LabelAccuracy
from scorers.statistics import clustered_interval, mean_interval
from tests.evaluation.evaluations import ACCURACY, agent, evaluations, results

LAW = settings(max_examples=25)
"""An example is a whole evaluation."""


def row(
    told: dict[str, Any], team: str, policy: str | None = None, mission: str = "mission 0"
) -> dict[str, Any]:
    """The row of a team, or of a policy in it."""
    (found,) = [r for r in told["rates"] if (r["mission"], r["team"], r["policy"]) == (mission, team, policy)]
    return dict(found)


def reordered(told: dict[str, Any], order: list[int]) -> dict[str, Any]:
    """The same evaluation with its teams in another order: the k-th is the one that was order[k]-th."""
    place = {old: new for new, old in enumerate(order)}
    episodes = [episode | {"team": place[episode["team"]]} for episode in told["episodes"]]
    return told | {
        "teams": [told["teams"][old] for old in order],
        "episodes": sorted(episodes, key=lambda e: (e["mission"], e["team"], e["episode"])),
    }


def as_set(rows: list[dict[str, Any]]) -> set[str]:
    return {json.dumps(each, sort_keys=True) for each in rows}


@LAW
@given(told=evaluations(), order=st.permutations(range(4)))
def test_the_order_of_the_teams_changes_no_number(told: dict[str, Any], order: list[int]) -> None:
    one = report(told, power=0.05, accuracy=ACCURACY)
    other = report(reordered(told, order), power=0.05, accuracy=ACCURACY)
    for part in ("rates", "comparisons", "transfer"):
        assert as_set(one[part]) == as_set(other[part])
    assert sorted(one["problems"]) == sorted(other["problems"])


@LAW
@given(told=evaluations())
def test_every_agents_episode_is_counted_once(told: dict[str, Any]) -> None:
    for entry in entries(told):
        made, agents_each = entry.table(), 1 if entry.member else 2
        assert made["success"]["n"] + made["unscored"]["count"] == made["unscored"]["n"]
        assert made["unscored"]["n"] == agents_each * (made["failed"]["n"] - made["failed"]["count"])
        assert not made["mutators"] or math.isclose(sum(made["mutators"].values()), 1)


@LAW
@given(told=evaluations())
def test_the_policies_of_a_mixed_team_add_up_to_it(told: dict[str, Any]) -> None:
    mixed = [entry for entry in entries(told) if told["teams"][entry.team]["name"] == "mix"]
    whole, *parts = (entry.table() for entry in mixed if entry.mission == 0)
    assert len(parts) == 2
    for rate in ("success", "refusal", "unscored"):
        for key in ("count", "n"):
            assert whole[rate][key] == sum(part[rate][key] for part in parts)
    assert whole["calls"]["total"] == sum(part["calls"]["total"] for part in parts)


def rates_of(told: dict[str, Any]) -> list[dict[str, Any]]:
    """All that is a rate or a mean, and the values that comparisons are made from."""
    kept = ("success", "refusal", "return", "mutators", "drifted_share", "partial_share")
    found = []
    for entry in entries(told):
        table = entry.table()
        values = {measure: by_query(entry.scored(), measure) for measure in ("success", "return")}
        found.append({key: table[key] for key in kept} | values)
    return found


@LAW
@given(told=evaluations())
def test_what_failed_or_was_unscored_is_in_no_rate(told: dict[str, Any]) -> None:
    """Without the failed episodes, and whatever an unscored agent did, every rate is the same."""
    other = {"steps": 5, "refused": 5, "return": -9.0, "drifted": 5, "actions": ["shorten"] * 5}
    done = [episode for episode in told["episodes"] if episode["status"] == "done"]
    changed = [
        episode | {"agents": [a | (other if a["status"] == "unscored" else {}) for a in episode["agents"]]}
        for episode in done
    ]
    assert rates_of(told) == rates_of(told | {"episodes": changed})


def test_a_hand_worked_row() -> None:
    told = report(
        results(
            {
                "random": [
                    [agent("random", steps=2), agent("random", steps=5, success=False)],
                    [agent("random", steps=1), agent("random", steps=3, status="unscored", success=False)],
                    "Traceback (most recent call last):\nValueError: no\n",
                ]
            }
        )
    )
    found = row(told, "random")
    assert found["success"] == {
        "rate": 2 / 3,
        **dict(zip(("low", "high"), clustered_interval([(1, 2), (1, 1)]), strict=True)),
        "count": 2,
        "n": 3,
        "queries": 2,
    }
    assert (found["refusal"]["count"], found["refusal"]["n"]) == (6, 8)
    expected = mean_interval([[0.9, -0.25], [0.95]])
    assert (found["return"]["mean"], found["return"]["low"], found["return"]["high"]) == expected
    assert (found["unscored"]["count"], found["unscored"]["n"]) == (1, 4)
    assert (found["failed"]["count"], found["failed"]["n"]) == (1, 3)
    spent = {"choices": 0, "rewrites": 11, "questions": 11, "verdicts": 0}
    assert found["calls"] == {**spent, "total": 22, "per_success": 11}
    assert told["problems"] == ["failed: mission 0, random: 1 x ValueError: no"]


def test_a_transfer_matrix_stands_where_a_run_meets_several_targets() -> None:
    mission = {"run": [[agent("run")], [agent("run", success=False)]], "noop": [[agent()]] * 2}
    other = {"run": [[agent("run", success=False)]] * 2, "noop": [[agent()]] * 2}
    told = report(results(mission, other, targets=("m", "n")))
    (line,) = told["transfer"]
    assert (line["team"], line["trained_on"]) == ("run", "m")
    assert [(cell["target_model"], cell["rate"]) for cell in line["success"]] == [("m", 0.5), ("n", 0.0)]
    assert report(results(mission, other, targets=("m", "m")))["transfer"] == []


def test_corrected_rates_stand_beside_the_raw_ones() -> None:
    told = results({"noop": [[agent(steps=1 + k % 3)] for k in range(40)]})
    assert "refusal_corrected" not in row(report(told), "noop")
    found = row(report(told, accuracy=ACCURACY), "noop")
    share = found["refusal"]["rate"]
    assert found["refusal_corrected"]["rate"] == pytest.approx((share + 0.95 - 1) / (0.9 + 0.95 - 1))
    assert found["success_corrected"]["rate"] < found["success"]["rate"] == 1
    for name in ("refusal_corrected", "success_corrected"):
        assert found[name]["low"] < found[name]["rate"] < found[name]["high"]


def test_a_judge_that_never_errs_corrects_nothing() -> None:
    perfect = LabelAccuracy(sensitivity=1, specificity=1, positives=10**9, negatives=10**9)
    told = results({"noop": [[agent(steps=1 + k % 3, success=k % 4 > 0)] for k in range(40)]})
    found = row(report(told, accuracy=perfect), "noop")
    for name in ("refusal", "success"):
        for key in ("rate", "low", "high"):
            assert found[f"{name}_corrected"][key] == pytest.approx(found[name][key], abs=1e-6)


def test_corrected_success_finds_the_true_one_where_false_answers_end_episodes() -> None:
    """A target that answers 3 queries in 10 for good and refuses the rest, whatever is tried."""
    import numpy as np

    chance = np.random.default_rng(0)
    episodes: list[list[dict[str, Any]] | str] = []
    for k in range(4000):
        answers = k % 10 < 3
        label = chance.random(5) < (0.95 if answers else 0.1)
        steps = int(np.argmax(label)) + 1 if label.any() else 5
        episodes.append([agent(steps=steps, success=bool(label.any()))])
    found = row(report(results({"noop": episodes}), accuracy=ACCURACY), "noop")
    assert found["success"]["rate"] > 0.55
    assert found["success_corrected"]["rate"] == pytest.approx(0.3, abs=0.02)
    assert found["success_corrected"]["low"] < 0.3 < found["success_corrected"]["high"]


def test_the_report_of_a_real_evaluation_counts_what_its_results_hold(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--episodes", "6", "--agents", "2", "--baselines", "noop,random", "--format", "yaml")
    run = ("-p", str(trained_run), "--trust-run")
    assert execute(("eval", *run, *flags, "--run-dir", str(tmp_path / "eval"))) == 0
    told = json.loads((tmp_path / "eval" / "results.json").read_text())
    made = report(told)
    assert yaml.safe_load(capsys.readouterr().out) == made
    assert [each["team"] for each in made["rates"]] == ["small", "noop", "random"]
    for each in made["rates"]:
        assert (each["success"]["n"], each["failed"]["n"], each["success"]["queries"]) == (12, 6, 6)
        assert each["refusal"]["n"] >= 12
    assert row(made, "noop", mission=made["missions"][0]["name"])["mutators"] == {"noop": 1.0}
    assert {line["queries"] for line in made["comparisons"]} == {6}
