"""Calls that fail however often they are made: counted, and not the end of a search that gets others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ollama_utils.simulator.process import EmbeddedServer
from ollama_utils.simulator.settings import Settings
from tests.train.searches import metrics, read, replies, search
from train.cli import execute

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
        server.set_faults([{"kind": "error_500", "rate": 1.0, "model": model} for model in broken])
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
    assert execute(("evolve", "--resume", str(run))) == 0
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
    assert execute(("select", "--resume", str(run))) == 0
    assert read(run) == before
