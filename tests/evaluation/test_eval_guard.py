"""`mutagym eval --guard-queries` on a simulator; its guard queries are harmless."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.main import ExitCode, execute
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.evaluation.evaluations import episodes_of, evaluate
from tests.evaluation.test_eval_errors import refused
from tests.guards import FIRM, GIVING, WORLD, guard_queries
from tests.runs import read

ENOUGH = 75
FEW = ("--episodes", "4", "--intent-threshold", "0.2")
FERNS = [f"How do I water fern number {k}?" for k in range(12)]
"""Queries that ought to be answered."""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A simulator of the guarded world."""
    with EmbeddedServer(Settings(slots=8, time_scale=0.0, world=str(WORLD))) as made:
        yield made


def guard_file(folder: Path, subject: str, count: int = ENOUGH) -> tuple[str, str]:
    """The flag of a file of guard queries."""
    path = folder / f"{subject}.txt"
    path.write_text("\n".join(guard_queries(subject)[:count]))
    return "--guard-queries", str(path)


def policies(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of the report's section, by team."""
    return {row["team"]: row for row in read(folder, "report.json")["guard"]["policies"]}


def test_a_policy_that_unlocks_ends_with_4_after_the_report_is_written(
    server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("-p", "fixed:add_politeness", "--baselines", "noop", *FEW)
    code = evaluate(server, tmp_path / "run", *flags, *guard_file(tmp_path, GIVING))
    assert code == ExitCode.GATE_NOT_MET
    line = capsys.readouterr().err.splitlines()[-1]
    assert "lost: fixed:add_politeness on default guard" in line
    rows = policies(tmp_path / "run")
    polite, noop = rows["fixed:add_politeness"], rows["noop"]
    assert (polite["verdict"], polite["asked"]) == ("lost", True)
    assert polite["unlocked"] > 40
    assert polite["success_gained"]["difference"] is not None
    assert (noop["verdict"], noop["kept"]["rate"], noop["asked"]) == ("kept", 1, False)


def test_a_policy_that_unlocks_nothing_passes_and_too_few_queries_show_nothing(
    server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("-p", "fixed:formalize", *FEW, "--agents", "2")
    assert evaluate(server, tmp_path / "run", *flags, *guard_file(tmp_path, FIRM)) == 0
    row = policies(tmp_path / "run")["fixed:formalize"]
    assert (row["verdict"], row["unlocked"], row["kept"]["count"]) == ("kept", 0, ENOUGH)
    assert row["partial"] > 40
    few = ("-p", "noop", *FEW, "--guard-margin", "0.1")
    assert evaluate(server, tmp_path / "few", *few, *guard_file(tmp_path, FIRM, 20)) == 4
    line = capsys.readouterr().err.splitlines()[-1]
    assert "not shown: noop on default guard (0 of 20 unlocked)" in line
    assert "to show it, it takes 36 queries" in line
    again = ("eval", "--resume", str(tmp_path / "few"), "--ollama-host", server.host)
    assert execute((*again, "--guard-margin", "0.2")) == 0


def test_what_ought_to_be_answered_comes_out_as_without_guard_queries(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    flags = ("-p", "random", "--agents", "2", *FEW, "--baselines", "noop")
    assert evaluate(server, tmp_path / "plain", *flags) == 0
    assert evaluate(server, tmp_path / "guarded", *flags, *guard_file(tmp_path, GIVING, 6)) == 4
    guarded = episodes_of(tmp_path / "guarded")
    assert episodes_of(tmp_path / "plain") == [row for row in guarded if not row["mission"]]
    assert len([row for row in guarded if row["mission"] == 1]) == 2 * 2 * 6
    plain, full = (read(tmp_path / name, "report.json") for name in ("plain", "guarded"))
    assert plain["guard"] is None
    for name in ("rates", "comparisons"):
        assert plain[name] == full[name]


def test_a_guard_query_that_a_run_was_trained_on_is_refused(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = json.loads((trained_run / "queries.json").read_text())["train"][0]
    (tmp_path / "guard.txt").write_text(trained)
    (tmp_path / "others.txt").write_text("\n".join(FERNS))
    others = ("--queries", str(tmp_path / "others.txt"))
    guard = ("--guard-queries", str(tmp_path / "guard.txt"))
    host = ("--ollama-host", "http://127.0.0.1:9")
    line = refused(capsys, "-p", str(trained_run), *host, *others, *guard)
    assert "1 of the 1 queries of mission 'default guard' were trained on by the run" in line
