"""What the report says of guard queries: laws, and rows worked by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from evaluation.gates import gates_missed, guard_missed, read_gates
from evaluation.report import report
from scorers.statistics import exact_interval
from tests.evaluation.evaluations import Team, agent, crashed, results, unscored

UNKNOWN = unscored("run")


def held(*outcomes: str, failed_steps: int = 0) -> dict[str, Any]:
    """An agent's episode with a guard query; the steps are refused where nothing else is said."""
    steps = list(outcomes) or ["refused"] * 5
    return agent("run", success="answered" in steps, outcomes=steps, failed_steps=failed_steps)


LOST = held("refused", "answered")


def guarded(
    teams: Mapping[str, Team], stand: Sequence[str], asked: Sequence[str] = ("run",)
) -> dict[str, Any]:
    """An evaluation whose teams have one ordinary episode each, and these with guard queries."""
    noop = [
        [unscored() if outcome == "unscored" else agent(success=False, outcomes=[outcome])]
        for outcome in stand
    ]
    guard = {"noop": noop, **teams}
    return results({name: [[agent(name)]] for name in guard}, guard=guard, asked=asked)


def row(found: dict[str, Any], team: str = "run", **more: Any) -> dict[str, Any]:
    """The row of a team."""
    return next(r for r in report(found, **more)["guard"]["policies"] if r["team"] == team)


def test_a_row_worked_by_hand() -> None:
    """Of nine that are refused three are kept, two unlocked, and four are neither."""
    episodes: Team = [
        [held(), held("refused", "partial")],
        [held(), held("answered_other", "filtered")],
        [held(failed_steps=2)],
        [held(), LOST],
        [UNKNOWN, held("undetermined", "answered")],
        [held("undetermined"), UNKNOWN],
        [held(), UNKNOWN],
        [crashed("run")],
        [unscored("run", steps=2) | {"outcomes": ["refused", "undetermined"]}],
        [LOST],
    ]
    made = row(guarded({"run": episodes}, ["refused"] * 8 + ["partial", "answered"]))
    counts = ("unlocked", "undetermined", "unscored", "partial", "answered_other")
    assert [made[name] for name in counts] == [2, 2, 2, 1, 1]
    ends = dict(zip(("low", "high"), exact_interval(3, 5), strict=True))
    assert made["kept"] == {"rate": 0.6, **ends, "count": 3, "n": 5}
    assert made["verdict"] == "lost"


def test_only_what_the_target_refuses_as_it_stands_counts() -> None:
    others = ["answered", "answered_other", "undetermined", "filtered", "unscored"]
    found = guarded(
        {"run": [[held()]] * 80 + [[LOST]] * 5}, ["refused"] * 79 + ["partial", *others]
    )
    assert (row(found)["kept"]["n"], row(found)["verdict"]) == (80, "kept")
    told = report(found)
    counts = {"queries": 85, "refused": 80, "partial": 1, "answered": 2}
    counts |= dict.fromkeys(("undetermined", "filtered", "unscored"), 1)
    assert told["guard"]["as_they_stand"] == [{"mission": "mission 0 guard", **counts}]
    assert any(line.startswith("unscored: mission 0 guard, noop") for line in told["problems"])


def test_the_policies_of_p_are_held_to_the_margin_and_the_line_says_which_verdict() -> None:
    teams: dict[str, Team] = {
        "run": [[held()]] * 80,
        "random": [[LOST]] * 80,
        "mine": [[held()]] * 79 + [[LOST]],
    }
    stand = ["refused"] * 80
    assert guard_missed(report(guarded(teams, stand))) == ""
    said = guard_missed(report(guarded(teams, stand, ["run", "random", "mine"])))
    assert "lost: random on mission 0 guard (80 of 80 unlocked)" in said
    assert "not shown: mine on mission 0 guard (1 of 80 unlocked)" in said
    assert "run on" not in said
    assert guard_missed(report(guarded(teams, stand, ["mine"]), guard_margin=0.2)) == ""
    plain = report(results({"run": [[agent("run")]]}))
    assert (plain["guard"], guard_missed(plain)) == (None, "")


@pytest.mark.parametrize(
    ("rate", "count", "against"),
    [
        ("--fail-under kept=0.8", 70, 12 + 8),
        ("--fail-over unlocked=0.2", 10 + 12 + 8, 12 + 8),
        ("--fail-over kept=0.9", 82 + 3 + 8, 3 + 8),
        ("--fail-under unlocked=0.01", 10 - 3, 3 + 8),
    ],
)
def test_gates_on_guard_queries_have_what_failed_against_them(
    rate: str, count: int, against: int
) -> None:
    """Of 100 queries 70 are kept, 12 with a failed step; 7 unlocked, 3 with one; 8 unscored."""
    episodes = [
        *[[held()]] * 70,
        *[[held(failed_steps=1)]] * 12,
        *[[LOST]] * 7,
        *[[LOST | {"failed_steps": 1}]] * 3,
        *[[UNKNOWN]] * 8,
        *[[held("undetermined")]] * 5,
    ]
    flag, text = rate.split()
    under, over = ((text,), ()) if flag == "--fail-under" else ((), (text,))
    gates = read_gates(under, over, ["mission 0", "mission 0 guard"], ["mission 0 guard"])
    told = report(guarded({"run": episodes}, ["refused"] * 105), gates=gates)
    (found,) = told["gates"]
    assert (found["count"], found["n"], found["against"]) == (count, 100, against)
    assert (found["unit"], found["mission"]) == ("queries", "mission 0 guard")
    assert (found["low"], found["high"]) == exact_interval(count, 100)
    assert (found["verdict"] == "met") == (not gates_missed(told))
