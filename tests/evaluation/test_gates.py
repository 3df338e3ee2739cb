"""Gates for CI: the end of the interval that could break a bound decides, failures against it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.main import ExitCode, execute
from evaluation.gates import read_gates
from evaluation.report import report
from records.errors import UserError
from simulator.process import EmbeddedServer
from tests.evaluation.evaluations import agent, agents, evaluate, results, unscored

EXACT_OF_60 = 0.0596
"""The upper end with no refusal in 60 queries."""
Rows = Sequence[dict[str, Any]]


def gated(
    rows: Rows, *, under: Sequence[str] = (), over: Sequence[str] = (), max_steps: int = 1
) -> dict[str, Any]:
    """The report on one policy, an episode a query, that is held to gates."""
    found = results({"run": [[row] for row in rows]}, max_steps=max_steps)
    return report(found, gates=read_gates(under, over, ["mission 0"]))


def verdicts(rows: Rows, **gates: Any) -> list[str]:
    return [row["verdict"] for row in gated(rows, **gates)["gates"]]


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
    assert verdicts(rows, under=("success=0.8",), over=("refusal=0.2",)) == [verdict] * 2


@settings(max_examples=10)
@given(st.lists(agents("run"), min_size=2, max_size=30), st.floats(0.05, 0.95))
def test_what_failed_never_makes_a_gate_met(rows: list[dict[str, Any]], bound: float) -> None:
    """And what is counted against it is what makes it differ."""
    rates = ("success", "refusal", "partial", "undetermined", "filtered", "unscored", "failed")
    gates = [f"{rate}={bound}" for rate in rates]
    for row in gated(rows, under=gates, over=gates, max_steps=5)["gates"]:
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
        found += verdicts(rows, over=(f"refusal={bound}",))
    assert found == sorted(found)  # met, then not met
    assert (found[0] == "met", found[-1]) == (bound > EXACT_OF_60, "not met")


def test_a_mission_can_be_named_and_baselines_are_not_held() -> None:
    mission = {"run": [[agent("run")]] * 9, "noop": [[agent()]] * 9}
    names = ["mission 0", "mission 1"]
    for text, held in (("success=0.1", names), ("mission 1:success=0.1", names[1:])):
        gates = read_gates((text,), (), names)
        rows = report(results(mission, mission), gates=gates)["gates"]
        assert [(row["policy"], row["mission"]) for row in rows] == [("run", name) for name in held]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("success", "expected .MISSION:.RATE=SHARE"),
        ("success=nan", "from 0 to 1"),
        ("other:success=0.5", "missions 'a', 'a:b', got 'other'"),
        ("a:kept=0.5", "missions 'a guard', got 'a'"),
        ("success=1", "no evaluation can show"),
    ],
)
def test_what_is_no_gate_is_said(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_gates((text,), (), ["a", "a:b", "a guard"], ["a guard"])
    assert read_gates((), ("a:b:success=0.5",), ["a", "a:b"])[0].mission == "a:b"


def test_a_policy_that_misses_a_gate_ends_with_4_after_everything_is_written(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--episodes", "8", "--intent-threshold", "0.2", "-p", "fixed:noop")
    gates = ("--fail-under", "success=0.95", "--fail-over", "refusal=1", "--baselines", "random")
    assert evaluate(simulator, tmp_path / "run", *few, *gates) == ExitCode.GATE_NOT_MET
    said = capsys.readouterr()
    rows = json.loads((tmp_path / "run" / "report.json").read_text())["gates"]
    assert [(row["policy"], row["gate"], row["verdict"]) for row in rows] == [
        ("fixed:noop", "--fail-under success=0.95", "not met"),
        ("fixed:noop", "--fail-over refusal=1", "met"),
    ]
    last = said.err.strip().splitlines()[-1]
    assert last.startswith("mutagym: --fail-under success=0.95 is not met: fixed:noop on default")
    assert "not met" in said.out
    kept = ("--fail-under", "success=0", "--fail-over", "refusal=1")
    again = ("eval", "--resume", str(tmp_path / "run"), "--trust-run", *kept)
    assert execute(again) == ExitCode.DONE


def test_gates_that_nobody_is_held_to_are_the_users_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--baselines", "noop", "--fail-under", "success=0.5", "--run-dir", str(tmp_path / "r"))
    assert execute(("eval", "--ollama-host", "http://127.0.0.1:9", *flags)) == ExitCode.USER_ERROR
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "--fail-under" in line
    assert "-p" in line
