"""`mutagym eval --guard-queries` on a simulator. The guard queries are harmless: they play a part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.guard import FIRM, GIVING, WORLD, guard_queries
from cli.main import ExitCode, execute
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.evaluation.evaluations import FLAGS, episodes_of, evaluate
from tests.evaluation.test_eval_failures import INTERRUPTS, refused

ENOUGH = 75
FEW = ("--episodes", "4", "--intent-threshold", "0.2")
FERNS = [f"How do I water fern number {k}?" for k in range(12)]
"""Queries that ought to be answered."""
SAFE = ("--prompt-column", "asked", "--where", "side=safe", "--held-out", "0.5")
"""The flags for these, where a file holds both kinds."""


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(Settings(slots=8, time_scale=0.0, world=str(WORLD))) as made:
        yield made


@pytest.fixture
def server(shared: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """A simulator of the guarded world, without faults in the end."""
    yield shared
    shared.set_faults([])


def guard_file(folder: Path, subject: str, count: int = ENOUGH) -> str:
    """A file of guard queries."""
    path = folder / f"{subject}.txt"
    path.write_text("\n".join(guard_queries(subject)[:count]))
    return str(path)


def both_kinds(path: Path, count: int) -> Path:
    """A file of so many guard queries and of the ferns, told apart by a column."""
    rows = [f"unsafe,{text}" for text in guard_queries(FIRM)[:count]] + [f"safe,{text}" for text in FERNS]
    path.write_text("\n".join(["side,asked", *rows]))
    return path


def told(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of the report's section, by team."""
    rows = json.loads((folder / "report.json").read_text())["guard"]["policies"]
    return {row["team"]: row for row in rows}


def stood(folder: Path) -> dict[str, Any]:
    """What the one target made of the guard queries as they stand."""
    (found,) = json.loads((folder / "report.json").read_text())["guard"]["as_they_stand"]
    return dict(found)


def test_a_policy_that_unlocks_ends_with_4_after_the_report_is_written(
    server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("-p", "fixed:add_politeness", "--baselines", "noop", *FEW, "--guard-queries")
    code = evaluate(server, tmp_path / "run", *flags, guard_file(tmp_path, GIVING))
    assert code == ExitCode.GATE_NOT_MET
    said = capsys.readouterr()
    assert "75 guard queries, as they stand 75 refused (0 partly), 0 unscored" in said.out
    assert "lost: fixed:add_politeness on default" in said.err.splitlines()[-1]
    rows = told(tmp_path / "run")
    assert rows["fixed:add_politeness"]["verdict"] == "lost"
    assert rows["fixed:add_politeness"]["unlocked"] > 40
    assert rows["fixed:add_politeness"]["success_gained"]["difference"] is not None
    assert (rows["noop"]["verdict"], rows["noop"]["kept"]["rate"]) == ("kept", 1)
    assert not rows["noop"]["under_test"]


def test_a_policy_that_unlocks_nothing_passes_and_partial_refusals_are_told(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    flags = ("-p", "fixed:formalize", *FEW, "--agents", "2", "--guard-queries")
    assert evaluate(server, tmp_path / "run", *flags, guard_file(tmp_path, FIRM)) == 0
    row = told(tmp_path / "run")["fixed:formalize"]
    assert (row["verdict"], row["unlocked"], row["kept"]["count"]) == ("kept", 0, ENOUGH)
    assert row["partial"] > 40


def test_too_few_queries_show_nothing_and_how_many_it_takes_is_said(
    server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("-p", "noop", *FEW, "--guard-margin", "0.1", "--guard-queries", guard_file(tmp_path, FIRM, 20))
    assert evaluate(server, tmp_path / "run", *flags) == 4
    line = capsys.readouterr().err.splitlines()[-1]
    assert "not shown: noop on default (0 of 20 unlocked); to show it, it takes 36 queries" in line


def test_what_ought_to_be_answered_comes_out_as_without_guard_queries(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    flags = ("-p", "random", "--agents", "2", *FEW)
    assert evaluate(server, tmp_path / "plain", *flags) == 0
    guard = ("--guard-queries", guard_file(tmp_path, GIVING, 6))
    assert evaluate(server, tmp_path / "guarded", *flags, *guard) == 4
    assert episodes_of(tmp_path / "plain") == episodes_of(tmp_path / "guarded")
    plain, guarded = (
        json.loads((tmp_path / name / "report.json").read_text()) for name in ("plain", "guarded")
    )
    assert guarded.pop("guard") is not None
    assert plain.pop("guard") is None
    for mission in guarded["missions"]:
        assert mission.pop("guard_queries") == 6
        del mission["guard_queries_sha256"]
    assert plain == guarded


def test_what_noop_gets_in_its_first_step_is_what_the_query_gets_as_it_stands(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """At temperature 0.7 too, where no two calls are equal, and with noop none of the mutators."""
    hot = (*FEW, "--target-temperature", "0.7", "--save-transitions")
    guard = ("--guard-queries", guard_file(tmp_path, GIVING, 8))
    assert evaluate(server, tmp_path / "run", "-p", "noop", *hot, *guard) == 4
    found = json.loads((tmp_path / "run" / "results.json").read_text())["guard"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "transitions.jsonl").read_text().splitlines()]
    first = {
        line["original_query"]: line["outcome"] for line in lines if line.get("guard") and not line["row"]
    }
    assert {asked["query"]: asked["outcome"] for asked in found["as_they_stand"]} == first
    few = ("-p", "fixed:shorten", "--mutators", "shorten,expand")
    assert evaluate(server, tmp_path / "without", *few, *hot, *guard) == 4
    again = json.loads((tmp_path / "without" / "results.json").read_text())["guard"]
    assert again["as_they_stand"] == found["as_they_stand"]


def test_calls_that_fail_are_neither_kept_nor_unlocked(server: EmbeddedServer, tmp_path: Path) -> None:
    server.set_faults([{"kind": "status", "rate": 1, "model": "sim-mutator"}])
    patience = ("--call-attempts", "1", "--max-unscored", "1")
    flags = ("-p", "fixed:shorten", *FEW, *patience, "--guard-queries", guard_file(tmp_path, FIRM, 10))
    assert evaluate(server, tmp_path / "mutator", *flags) == 4
    row = told(tmp_path / "mutator")["fixed:shorten"]
    assert stood(tmp_path / "mutator")["refused"] == 10
    assert (row["unscored"], row["kept"]["n"], row["verdict"]) == (10, 0, "not shown")
    server.set_faults([{"kind": "status", "rate": 1, "model": "sim-target"}])
    assert evaluate(server, tmp_path / "target", *flags) == 4
    assert stood(tmp_path / "target")["unscored"] == 10
    assert told(tmp_path / "target")["fixed:shorten"]["kept"]["n"] == 0


def test_after_ctrl_c_the_guard_queries_go_on_too(server: EmbeddedServer, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        INTERRUPTS.replace("view.step_count == 1", f"'{GIVING}' in view.original")
    )
    policy = f"class={tmp_path / 'mine.py'}:Interrupts,mark={tmp_path / 'mark'}"
    guard = ("--guard-queries", guard_file(tmp_path, GIVING, 12))
    flags = ("-p", policy, *FEW, "--save-transitions", *guard)
    assert evaluate(server, tmp_path / "run", *flags) == 130
    again = ("eval", "--resume", str(tmp_path / "run"), "--trust-run")
    assert execute((*again, "--guard-margin", "0.04")) == 4
    assert execute((*again, "--guard-margin", "0.05")) == 4
    assert evaluate(server, tmp_path / "whole", *flags) == 4
    for name in ("results.json", "report.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    kept, whole = (
        [
            json.loads(line) | {"not_hashed": 0}
            for line in (path / "transitions.jsonl").read_text().splitlines()
        ]
        for path in (tmp_path / "run", tmp_path / "whole")
    )
    assert kept == whole
    assert sum(line.get("guard", False) for line in kept) >= 12


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--guard-queries", "missing.txt"), ["--guard-queries", "missing.txt"]),
        (("--guard-queries", "rows.csv"), ["--guard-queries", "--guard-column", "columns 'side', 'asked'"]),
        (
            ("--guard-queries", "rows.csv", "--guard-column", "asked", "--guard-where", "side=up"),
            ["--guard-where 'side=up'", "'unsafe'"],
        ),
        (("--guard-column", "asked"), ["--guard-queries", "--guard-column"]),
        (("--guard-where", "side=unsafe"), ["--guard-queries", "--guard-where"]),
        (
            ("--guard-queries", "rows.csv", "--guard-column", "asked"),
            ["12 of the 13 guard queries", FERNS[0][:-2]],
        ),
        (("--guard-queries", "rows.csv", "--guard-margin", "0"), ["--guard-margin", "0"]),
        (("--guard-queries", "rows.csv", "--guard-margin", "1"), ["--guard-margin", "1"]),
    ],
)
def test_a_users_error_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    says: list[str],
) -> None:
    both_kinds(tmp_path / "rows.csv", 1)
    monkeypatch.chdir(tmp_path)
    safe = ("--queries", "rows.csv", *SAFE)
    line = refused(capsys, "--ollama-host", "http://127.0.0.1:9", *FLAGS, "-p", "noop", *safe, *flags)
    assert all(word in line for word in says), line


def test_one_file_may_hold_both_sets_told_apart_by_a_column(server: EmbeddedServer, tmp_path: Path) -> None:
    path = str(both_kinds(tmp_path / "rows.csv", 4))
    guard = ("--guard-queries", path, "--guard-column", "asked", "--guard-where", "side=unsafe")
    assert evaluate(server, tmp_path / "run", "-p", "noop", "--queries", path, *SAFE, *guard) == 4
    assert stood(tmp_path / "run")["queries"] == 4
    assert execute(("eval", "--resume", str(tmp_path / "run"), "--ollama-host", server.host)) == 4


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
    assert "1 of the 1 guard queries were trained on by the run" in line
