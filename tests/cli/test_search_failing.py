"""Calls that fail however often they are made: counted, and not the end of a search that gets others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.cli.searches import replies, search
from tests.runs import metrics, read

BROKEN = ("--call-attempts", "1")


@pytest.fixture(autouse=True)
def _whole_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as on a terminal of no known width, whoever runs the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="module")
def lame() -> Iterator[EmbeddedServer]:
    """A server on which two models cannot run."""
    with EmbeddedServer(Settings(slots=16, time_scale=0)) as server:
        broken = ("sim-mutator", "sim-solver-small")
        server.set_faults([{"kind": "status", "rate": 1.0, "model": model} for model in broken])
        yield server


def test_a_search_whose_mutator_never_answers_is_resumed_to_the_same_end(
    lame: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The calls that failed are all that is asked again, and they all fail again."""
    run = search("evolve", lame.host, tmp_path / "run", *BROKEN)
    told = capsys.readouterr()
    for record in read(run)["history"]:
        assert record["failed_steps"] == record["model_steps"]
        counts = f"{record['failed_steps']} of {record['model_steps']} rewording"
        said = [
            line for line in told.err.splitlines() if line.startswith(f"generation {record['generation']}: ")
        ]
        assert [line.startswith(f"generation {record['generation']}: {counts}") for line in said] == (
            [True] if record["failed_steps"] else []
        )
        assert all("by model failed: " in line and line.endswith("; rules took their place") for line in said)
        assert f"{record['failed_steps']} of {record['model_steps']}" in told.out
    before, lines, known = read(run), metrics(run), replies(run)
    assert sum(record["failed_steps"] for record in before["history"]) > 0
    assert execute(("evolve", "--resume", str(run), "--trust-run")) == 0
    assert (read(run), metrics(run), replies(run)) == (before, lines, known)


def test_a_model_that_never_answers_is_counted_and_not_named_and_the_others_are_compared(
    lame: EmbeddedServer, tmp_path: Path
) -> None:
    models = ("--models", "sim-solver-large,sim-solver-small,sim-solver", "--selector", "brute_force")
    run = search("select", lame.host, tmp_path / "run", *models, *BROKEN)
    rows = {row["combination"]["model"]: row for row in read(run)["combinations"]}
    assert [model for model, row in rows.items() if row["is_best"]] == ["sim-solver-large"]
    assert rows["sim-solver-small"]["errors"] == rows["sim-solver-small"]["datapoints"] == 200
    before = read(run)
    assert execute(("select", "--resume", str(run), "--trust-run")) == 0
    assert read(run) == before


@pytest.fixture(scope="module")
def flaky() -> Iterator[EmbeddedServer]:
    """A server that fails at a quarter of the calls to the target."""
    with EmbeddedServer(Settings(slots=16, time_scale=0)) as server:
        server.set_faults([{"kind": "status", "rate": 0.25, "model": "sim-solver"}])
        yield server


def test_where_calls_fail_the_shares_of_optimize_are_of_the_questions_that_its_differences_are_of(
    flaky: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the candidates without a score are counted, and why they have none is logged."""
    run = search("optimize", flaky.host, tmp_path / "run", "--held-out", "0.3", *BROKEN)
    results = read(run)
    seed, *others = results["held_out"]
    assert seed["left_out"] > 0
    assert seed["queries"] > 0
    for arm in others:
        assert (arm["queries"], arm["left_out"]) == (seed["queries"], seed["left_out"])
        assert arm["score"] - seed["score"] == pytest.approx(arm["difference"])
    told = " ".join(capsys.readouterr().out.split())
    assert "n: the questions that all three have a score for; the others, " in told
    assert f"{seed['left_out']} of 60 (a call failed), are left out of every row." in told
    assert results["unscored"] > 0
    assert results["candidates"] == 40
    assert f"{results['unscored']} of 40 candidates have no score" in told
    log = (run / "log.txt").read_text()
    assert log.count("a candidate has no score: ServerFaultError") == results["unscored"]


def test_the_prompts_that_evolve_tells_of_are_its_children_and_what_it_leaves_out_is_said(
    flaky: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--population-size", "12", "--max-generations", "1")
    run = search("evolve", flaky.host, tmp_path / "run", *few, *BROKEN)
    results = read(run)
    children, unscored = (sum(each[name] for each in results["history"]) for name in ("children", "unscored"))
    assert 0 < unscored < children
    told = " ".join(capsys.readouterr().out.split())
    assert f"{children} prompts in 2 generations, {unscored} of them unscored, each on 15 problems" in told
    held_out = results["held_out"]
    assert held_out["best"] - held_out["seed"] == pytest.approx(held_out["difference"])
    assert held_out["left_out"] > 0
    assert f"; the others, {held_out['left_out']} of 40 (a call failed), are left out of both rows." in told


def test_where_none_can_be_named_all_is_told_and_a_resume_may_allow_more_errors(
    lame: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ("--ollama-host", lame.host, "--models", "sim-solver-small,sim-mutator", *BROKEN)
    folder = tmp_path / "run"
    assert execute(("select", *told, "--run-dir", str(folder))) == 1
    said = capsys.readouterr()
    assert "None of them can be named." in said.out
    assert said.out.count("fails too often") == 2
    assert "go on with --resume and a larger --max-errors" in said.err.splitlines()[-1]
    assert {row["verdict"] for row in read(folder)["combinations"]} == {"fails too often"}
    assert execute(("select", "--resume", str(folder), "--trust-run", "--max-errors", "1")) == 0
    assert sum(row["is_best"] for row in read(folder)["combinations"]) == 1
