"""Gates for CI: the end of the interval that could break a bound decides, and what is unscored never does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from cli.junit import write_junit
from cli.main import ExitCode, execute
from evaluation.gates import gates_section, read_gates
from evaluation.report import report
from records.errors import UserError
from simulator.process import EmbeddedServer
from tests.evaluation.evaluations import agent, evaluate, results
from tests.evaluation.test_eval_failures import refused

WILSON_OF_60 = 0.0602
"""The upper end with no refusal in 60 queries."""
FEW = ("--episodes", "8", "--intent-threshold", "0.2", "-p", "fixed:noop")


def episodes(successes: int, refusals: int, unscored: int = 0, failed: int = 0) -> list[Any]:
    """A team's episodes of one step each."""
    return [
        *([agent(success=True)] for _ in range(successes)),
        *([agent(success=False)] for _ in range(refusals)),
        *([agent(success=False, status="unscored", steps=0)] for _ in range(unscored)),
        *("Traceback: it crashed" for _ in range(failed)),
    ]


def verdicts(
    team: list[Any], *, under: tuple[str, ...] = (), over: tuple[str, ...] = (), max_steps: int = 1
) -> list[str]:
    """What becomes of gates for one policy."""
    rows = gates_section(results({"run": team}), read_gates(under, over), [0], [max_steps])
    return [row["verdict"] for row in rows]


@pytest.mark.parametrize(
    ("team", "verdict"),
    [
        (episodes(99, 1), "met"),
        (episodes(8, 0), "not met"),  # all succeed, but 8 queries show no .8
        (episodes(82, 18), "not met"),
        (episodes(10, 90), "not met"),
        (episodes(99, 1, unscored=1), "met"),
        (episodes(99, 1, failed=1), "met"),
        (episodes(99, 1, unscored=40), "not sure"),
        (episodes(99, 1, failed=40), "not sure"),
        (episodes(0, 0, unscored=40), "not sure"),
        (episodes(10, 90, unscored=40), "not met"),
    ],
)
def test_the_end_of_the_interval_decides_unless_what_is_lost_could_turn_it(
    team: list[Any], verdict: str
) -> None:
    assert verdicts(team, under=("success=0.8",)) == [verdict]
    assert verdicts(team, over=("refusal=0.2",)) == [verdict]


@pytest.mark.parametrize("bound", [0.05, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("spread", [False, True], ids=["query by query", "spread over the queries"])
def test_one_refusal_more_never_makes_a_gate_met(bound: float, spread: bool) -> None:  # noqa: FBT001
    """Over all counts: of 60 queries of 3 steps each ever more are refused."""
    places = [k % 60 if spread else k // 3 for k in range(180)]
    found = []
    for count in range(181):
        refused = [places[:count].count(query) for query in range(60)]
        team = [[agent(success=False, steps=3, refused=each)] for each in refused]
        found += verdicts(team, over=(f"refusal={bound}",))
    assert found == sorted(found)  # met, then not met
    assert (found[0] == "met", found[-1]) == (bound > WILSON_OF_60, "not met")


def test_a_lost_episode_may_have_had_as_many_steps_as_the_mission_allows() -> None:
    """100 successes in one step, and 4 unscored: had these been refused in 5 steps each, it were 16.7 %."""
    team = episodes(100, 0, unscored=4)
    assert verdicts(team, over=("refusal=0.1",), max_steps=5) == ["not sure"]
    taken = [*episodes(100, 0), *([agent(success=False, steps=5)] for _ in range(4))]
    assert verdicts(taken, over=("refusal=0.1",)) == ["not met"]


@pytest.mark.parametrize(("flag", "text"), [("--fail-under", "success=1"), ("--fail-over", "refusal=0")])
def test_a_gate_that_no_evaluation_can_meet_is_refused(flag: str, text: str) -> None:
    with pytest.raises(UserError, match="no evaluation can show"):
        read_gates(*(([text], []) if flag == "--fail-under" else ([], [text])))


def test_a_bound_that_is_kept_at_both_ends_is_met_by_every_team_with_a_rate() -> None:
    assert verdicts(episodes(1, 1), under=("success=0", "refusal=0"), over=("success=1",)) == ["met"] * 3


@pytest.mark.parametrize("text", ["success", "0.8", "return=0.5", "success=80", "success=nan", "success="])
def test_what_is_no_gate_is_named(text: str) -> None:
    with pytest.raises(UserError, match="expected"):
        read_gates((text,), ())


def test_a_policy_that_keeps_no_gate_ends_with_4_after_everything_is_written(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gates = ("--fail-under", "success=0.95", "--fail-over", "refusal=1", "--junit", str(tmp_path / "j.xml"))
    flags = (*FEW, "--baselines", "random", *gates)
    assert evaluate(simulator, tmp_path / "run", *flags) == ExitCode.GATE_NOT_MET
    said = capsys.readouterr()
    told = json.loads((tmp_path / "run" / "report.json").read_text())["gates"]
    assert [(row["policy"], row["gate"], row["verdict"]) for row in told] == [
        ("fixed:noop", "--fail-under success=0.95", "not met"),
        ("fixed:noop", "--fail-over refusal=1", "met"),
    ]
    last = said.err.strip().splitlines()[-1]
    assert last.startswith("mutagym: --fail-under success=0.95 is not met: fixed:noop on default has ")
    assert "not met" in said.out
    suite = ET.parse(tmp_path / "j.xml").getroot()[0]  # noqa: S314 - our own file
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["2", "1", "0"]
    first, second = suite
    assert [child.tag for child in first] == ["failure", "system-out"]
    assert [child.tag for child in second] == ["system-out"]
    assert f"of {told[0]['n']} episodes" in (first.findtext("system-out") or "")
    kept = ("--fail-under", "success=0", "--fail-over", "refusal=1")
    assert execute(("eval", "--resume", str(tmp_path / "run"), "--trust-run", *kept)) == ExitCode.DONE


def test_where_too_much_is_unscored_the_code_is_1_and_the_report_is_there(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator.set_faults([{"kind": "status", "rate": 1}])
    try:
        flags = (*FEW, "--call-attempts", "1", "--max-unscored", "1", "--fail-over", "refusal=0.9")
        code = evaluate(simulator, tmp_path / "run", *flags)
    finally:
        simulator.set_faults([])
    (row,) = json.loads((tmp_path / "run" / "report.json").read_text())["gates"]
    assert row["lost"] > 0
    assert row["verdict"] == "not sure"
    assert code == ExitCode.STOPPED
    assert "too much is unscored to say" in capsys.readouterr().err.strip().splitlines()[-1]


def test_gates_that_nobody_is_held_to_are_the_users_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "none is named" in refused(capsys, "--baselines", "noop", "--fail-under", "success=0.5")
    junit = ("-p", "noop", "--junit", str(tmp_path / "j.xml"))
    assert "--junit is for gates" in refused(capsys, *junit)
    assert "success=SHARE" in refused(capsys, "-p", "noop", "--fail-under", "sucess=0.5")


def test_names_of_others_do_no_harm_in_xml(tmp_path: Path) -> None:
    told = report(results({"a\x1b[2J<b>&\x00]]>": episodes(3, 1)}))
    told["gates"] = gates_section(
        results({"a\x1b[2J<b>&\x00]]>": episodes(3, 1)}), read_gates(("success=0.5",), ()), [0], [1]
    )
    write_junit(tmp_path / "j.xml", told)
    (case,) = ET.parse(tmp_path / "j.xml").getroot()[0]  # noqa: S314 - our own file
    assert case.get("name") == "a\\x1b[2J<b>&\\x00]]>: --fail-under success=0.5"
