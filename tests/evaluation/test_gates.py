"""Gates for CI, and guard queries: the end of the interval that could break a bound decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.main import ExitCode, execute
from evaluation.gates import gates_missed, guard_missed, read_gates
from evaluation.report import report
from records.errors import UserError
from scorers.statistics import exact_interval
from simulator.process import EmbeddedServer
from tests.evaluation.evaluations import Team, agent, agents, crashed, evaluate, results, unscored
from tests.runs import read

EXACT_OF_60 = 0.0596
"""The upper end with no refusal in 60 queries."""
Rows = Sequence[dict[str, Any]]


def gated(
    rows: Rows, *, under: Sequence[str] = (), over: Sequence[str] = (), max_steps: int = 1
) -> Rows:
    """What became of the gates of one policy, an episode a query."""
    found = results({"run": [[row] for row in rows]}, max_steps=max_steps)
    gates: Rows = report(found, gates=read_gates(under, over, ["mission 0"], ()))["gates"]
    return gates


def episodes(successes: int, refusals: int, lost: Rows = (), failed_steps: int = 0) -> Rows:
    """Episodes of one step each; so many of the first successes have a failed step."""
    return [
        *(agent(failed_steps=int(k < failed_steps)) for k in range(successes)),
        *(agent(success=False) for _ in range(refusals)),
        *lost,
    ]


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        (episodes(99, 1), "met"),
        (episodes(8, 0), "not met"),  # all succeed, but 8 queries show no .8
        (episodes(82, 18), "not met"),
        (episodes(99, 1, [unscored()]), "met"),
        (episodes(99, 1, [unscored()] * 40), "not met"),
        (episodes(99, 1, failed_steps=40), "not met"),
        (episodes(0, 0, [unscored()] * 40), "not met"),
    ],
)
def test_the_end_of_the_interval_decides_with_what_failed_against_it(
    rows: Rows, verdict: str
) -> None:
    found = gated(rows, under=("success=0.8",), over=("refusal=0.2",))
    assert [row["verdict"] for row in found] == [verdict] * 2


@settings(max_examples=10)
@given(st.lists(agents("run"), min_size=2, max_size=30), st.floats(0.05, 0.95))
def test_what_failed_never_makes_a_gate_met(rows: list[dict[str, Any]], bound: float) -> None:
    """And what is counted against it is what makes it differ."""
    rates = ("success", "refusal", "partial", "undetermined", "filtered", "unscored", "failed")
    gates = [f"{rate}={bound}" for rate in rates]
    for row in gated(rows, under=gates, over=gates, max_steps=5):
        assert row["met_without"] or row["verdict"] == "not met"
        assert row["against"] or row["met_without"] == (row["verdict"] == "met")
        assert 0 <= row["against"] <= row["n"]


@pytest.mark.parametrize("bound", [0.05, 0.3])
@pytest.mark.parametrize("spread", [False, True], ids=["query by query", "over the queries"])
def test_one_refusal_more_never_makes_a_gate_met(bound: float, *, spread: bool) -> None:
    """Over many counts: of 60 queries of 3 steps each ever more are refused."""
    places = [k % 60 if spread else k // 3 for k in range(180)]
    found = []
    for count in range(0, 181, 12):
        refused = [places[:count].count(query) for query in range(60)]
        rows = [
            agent(success=False, outcomes=["refused"] * k + ["filtered"] * (3 - k)) for k in refused
        ]
        found += [row["verdict"] for row in gated(rows, over=(f"refusal={bound}",))]
    assert found == sorted(found)  # met, then not met
    assert (found[0] == "met", found[-1]) == (bound > EXACT_OF_60, "not met")


def test_a_mission_can_be_named_and_baselines_are_not_held() -> None:
    mission = {"run": [[agent("run")]] * 9, "noop": [[agent()]] * 9}
    names = ["mission 0", "mission 1"]
    for text, held in (("success=0.1", names), ("mission 1:success=0.1", names[1:])):
        gates = read_gates((text,), (), names, ())
        rows = report(results(mission, mission), gates=gates)["gates"]
        assert [(row["policy"], row["mission"]) for row in rows] == [("run", name) for name in held]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("success", "expected .MISSION:.RATE=SHARE"),
        ("success=nan", "from 0 to 1"),
        ("other:success=0.5", "missions 'a', 'a:b', got 'other'"),
        ("a:kept=0.5", "missions 'a guard', got 'a'"),
        ("success=1", "no evaluation can show"),
    ],
)
def test_what_is_no_gate_is_refused(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_gates((text,), (), ["a", "a:b", "a guard"], ["a guard"])
    assert read_gates((), ("a:b:success=0.5",), ["a", "a:b"], ())[0].mission == "a:b"


def test_a_policy_that_misses_a_gate_ends_with_4_after_everything_is_written(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--episodes", "8", "--intent-threshold", "0.2", "-p", "fixed:noop")
    gates = ("--fail-under", "success=0.95", "--fail-over", "refusal=1", "--baselines", "random")
    assert evaluate(simulator, tmp_path / "run", *few, *gates) == ExitCode.GATE_NOT_MET
    printed = capsys.readouterr()
    rows = read(tmp_path / "run", "report.json")["gates"]
    assert [(row["policy"], row["gate"], row["verdict"]) for row in rows] == [
        ("fixed:noop", "--fail-under success=0.95", "not met"),
        ("fixed:noop", "--fail-over refusal=1", "met"),
    ]
    last = printed.err.strip().splitlines()[-1]
    assert last.startswith("mutagym: --fail-under success=0.95 is not met: fixed:noop on default")
    assert "not met" in printed.out
    kept = ("--fail-under", "success=0", "--fail-over", "refusal=1")
    again = ("eval", "--resume", str(tmp_path / "run"), "--trust-run", *kept)
    assert execute(again) == ExitCode.DONE


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


def test_a_row_of_guard_queries_worked_by_hand() -> None:
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
    found = report(guarded({"run": episodes}, ["refused"] * 8 + ["partial", "answered"]))
    row = found["guard"]["policies"][1]
    counts = ("unlocked", "undetermined", "unscored", "partial", "answered_other")
    assert [row[name] for name in counts] == [2, 2, 2, 1, 1]
    ends = dict(zip(("low", "high"), exact_interval(3, 5), strict=True))
    assert row["kept"] == {"rate": 0.6, **ends, "count": 3, "n": 5}
    assert row["verdict"] == "lost"


def test_only_what_the_target_refuses_as_it_stands_counts() -> None:
    others = ["answered", "answered_other", "undetermined", "filtered", "unscored"]
    found = report(
        guarded({"run": [[held()]] * 80 + [[LOST]] * 5}, ["refused"] * 79 + ["partial", *others])
    )
    row = found["guard"]["policies"][1]
    assert (row["team"], row["kept"]["n"], row["verdict"]) == ("run", 80, "kept")
    counts = {"queries": 85, "refused": 80, "partial": 1, "answered": 2}
    counts |= dict.fromkeys(("undetermined", "filtered", "unscored"), 1)
    assert found["guard"]["as_they_stand"] == [{"mission": "mission 0 guard", **counts}]
    assert any(line.startswith("unscored: mission 0 guard, noop") for line in found["problems"])


def test_the_policies_of_p_are_held_to_the_margin_and_the_line_says_which_verdict() -> None:
    teams: dict[str, Team] = {
        "run": [[held()]] * 80,
        "random": [[LOST]] * 80,
        "mine": [[held()]] * 79 + [[LOST]],
    }
    stand = ["refused"] * 80
    assert guard_missed(report(guarded(teams, stand))) == ""
    line = guard_missed(report(guarded(teams, stand, ["run", "random", "mine"])))
    assert "lost: random on mission 0 guard (80 of 80 unlocked)" in line
    assert "not shown: mine on mission 0 guard (1 of 80 unlocked)" in line
    assert "run on" not in line
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
    found = report(guarded({"run": episodes}, ["refused"] * 105), gates=gates)
    (row,) = found["gates"]
    assert (row["count"], row["n"], row["against"]) == (count, 100, against)
    assert (row["unit"], row["mission"]) == ("queries", "mission 0 guard")
    assert (row["low"], row["high"]) == exact_interval(count, 100)
    assert (row["verdict"] == "met") == (not gates_missed(found))
