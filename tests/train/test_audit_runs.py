"""Runs that are audited: against the simulator, whose judge errs in one of twenty labels."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.runs import PASSES, WORLD, interrupted_at, metrics, resume, summary, train
from tests.worlds import CAUTIOUS

SHAPE = ("--num-processes", "8", "--num-steps", "8", "--encoder", "hashing:64")
AUDITED = (*SHAPE, "--audit-judge", "sim-judge")
LECTURE = (
    "Before anything else, it is worth remembering that questions of this kind have many sides, that rules "
    "differ from place to place, and that caution has never hurt anybody who was patient enough to keep it."
)


def flags(*more: str, steps: int = 192) -> tuple[str, ...]:
    """Those of a small run that is audited."""
    return (*WORLD, *PASSES, *AUDITED, "--num-env-steps", str(steps), *more)


@pytest.fixture
def lecturer(tmp_path: Path) -> Path:
    """A world whose target lectures before it refuses: for the keyword reward these are answers."""
    decline = json.dumps(CAUTIOUS.file.target.refused.sentences["decline"])
    path = tmp_path / "lecturer.toml"
    path.write_text(
        'extends = "cautious"\nname = "lecturer"\n\n[target.refused]\npatterns = ["lecture decline"]\n'
        f"sentences = {{ lecture = [{json.dumps(LECTURE)}], decline = {decline} }}\n",
        encoding="utf-8",
    )
    return path


def test_a_reward_that_pays_for_lectures_raises_the_alarm(
    lecturer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    with EmbeddedServer(Settings(slots=16, time_scale=0.001, world=str(lecturer))) as server:
        assert train(server.host, folder, *flags("--reward", "keyword", steps=256)) == 0
    told = summary(folder)
    raised = [line["step"] for line in metrics(folder) if line["audit/alarm"]]
    # Of all rollouts: eight successes, as many as are audited of one, may come out even.
    assert np.mean([line["audit/false_success_rate"] for line in metrics(folder)]) > 0.5
    assert told["audit_alarm"] == raised[0]
    said = capsys.readouterr()
    assert said.err.count(f"AUDIT ALARM since step {told['audit_alarm']}: ") == 1
    assert told["audit_warning"] in said.out


class Audited(NamedTuple):
    """A run that tests only read."""

    folder: Path
    errors: str
    """What it said on stderr."""


@pytest.fixture(scope="module")
def honest(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """Three rollouts on a reward that is worth its name."""
    folder, errors = tmp_path_factory.mktemp("honest") / "run", io.StringIO()
    with redirect_stderr(errors):
        assert train(simulator.host, folder, *flags()) == 0
    return Audited(folder, errors.getvalue())


def test_an_honest_reward_raises_none_and_what_was_found_is_written_down(honest: Audited) -> None:
    lines = metrics(honest.folder)
    assert len(lines) == 3
    assert {line["audit/alarm"] for line in lines} == {0}
    for line in lines:
        gap = line["audit/training_success_rate"] - line["audit/success_rate"]
        assert line["audit/gap"] == pytest.approx(gap)
        assert line["audit/agreement"] > 0.6
        assert line["audit/unscored"] == 0
    assert summary(honest.folder)["audit_alarm"] is None
    assert "ALARM" not in honest.errors


@pytest.mark.parametrize("written", [100, *(pytest.param(n, marks=pytest.mark.soak) for n in (64, 130))])
def test_a_run_that_is_broken_off_and_resumed_is_audited_as_one_that_is_not(
    simulator: EmbeddedServer, honest: Audited, tmp_path: Path, written: int
) -> None:
    interrupted_at(simulator.host, tmp_path / "run", written, *flags("--schedule", "phased"))
    assert resume(tmp_path / "run") == 0
    assert metrics(tmp_path / "run") == metrics(honest.folder)
    for name in ("transitions_sha256", "weights_sha256", "llm_calls", "audit_alarm"):
        assert summary(tmp_path / "run")[name] == summary(honest.folder)[name]


def test_an_audit_judge_that_cannot_be_read_is_told_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = [{"kind": "status", "rate": 1.0, "model": "sim-judge"}]
    with EmbeddedServer(Settings(slots=16, time_scale=0.001)) as server:
        server.set_faults(faults)
        assert train(server.host, tmp_path / "run", *flags("--call-attempts", "1", steps=64)) == 0
    (line,) = metrics(tmp_path / "run")
    assert line["audit/unscored"] == 16
    assert "audit/success_rate" not in line
    assert "16 verdicts of the audit could not be had; the first: " in capsys.readouterr().err


def test_an_audit_judge_that_is_not_pulled_is_one_line(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ("--ollama-host", simulator.host, "--run-dir", str(tmp_path / "run"))
    assert execute(("train", *told, *WORLD, *SHAPE, "--audit-judge", "absent")) == 2
    assert "model 'absent' is not pulled" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_an_audit_can_be_interrupted_and_is_made_again(
    simulator: EmbeddedServer, honest: Audited, tmp_path: Path
) -> None:
    simulator.set_faults([{"kind": "late", "rate": 1.0, "model": "sim-judge", "seconds": 0.3}])
    try:
        interrupted_at(simulator.host, tmp_path / "run", 64, *flags())
    finally:
        simulator.set_faults([])
    assert summary(tmp_path / "run")["env_steps"] == 64
    assert metrics(tmp_path / "run") == []
    assert resume(tmp_path / "run") == 0
    assert metrics(tmp_path / "run") == metrics(honest.folder)
