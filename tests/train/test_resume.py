"""A run that is broken off and resumed ends as one that is not: same steps, same weights, no reply twice."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from stable_baselines3.common.save_util import load_from_zip_file

from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.runs import PASSES, WORLD, interrupted_at, lines, metrics, resume, summary, train

KILLS = int(os.environ.get("MUTAGYM_KILLS", "1"))
LANES, STEPS = 4, 8
ALL = 96 if KILLS == 1 else 192
"""Steps of a run; one that is killed often is longer, so that no process comes to its end before its kill."""
LONG = ("--target-system", "Be kind and brief. " * 100)
"""So that the log of replies, which has all requests, comes to be larger than a checkpoint."""
SHAPE = ("--num-processes", str(LANES), "--num-steps", str(STEPS), "--encoder", "hashing:16", *LONG)


def flags(*more: str, steps: int = ALL, shape: Sequence[str] = SHAPE) -> tuple[str, ...]:
    """Those of a small run."""
    return (*WORLD, *shape, *PASSES, "--num-env-steps", str(steps), *more)


def same(folder: Path, other: Path) -> bool:
    """Whether two runs came to the same, their calls included."""
    names = ("env_steps", "transitions_sha256", "weights_sha256", "llm_calls", "completion_tokens")
    return [summary(folder)[name] for name in names] == [summary(other)[name] for name in names]


@pytest.fixture(scope="module")
def whole(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from start to end."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert train(simulator.host, folder, *flags()) == 0
    return folder


@pytest.mark.parametrize("written", [33, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 30, 62, 90))])
def test_a_run_interrupted_anywhere_and_resumed_is_the_run_that_was_not(
    simulator: EmbeddedServer, whole: Path, tmp_path: Path, written: int
) -> None:
    interrupted_at(simulator.host, tmp_path / "run", written, *flags())
    assert summary(tmp_path / "run")["stopped"] == "stopped by SIGINT"
    assert load_from_zip_file(tmp_path / "run" / "policy.zip")[1]
    assert resume(tmp_path / "run") == 0
    assert summary(tmp_path / "run")["stopped"] is None
    assert same(tmp_path / "run", whole)


SHAPES = {
    "a judge, an encoder on the server, a warm target": (
        *("--num-processes", "4", "--num-steps", "8", "--encoder", "ollama:sim-embed"),
        *("--reward", "judge", "--judge-model", "sim-judge", "--target-temperature", "0.7"),
    ),
    "one lane, one call at a time, one step": (
        *("--num-processes", "1", "--num-steps", "16", "--encoder", "hashing:16"),
        *("--no-batching", "--max-steps", "1", "--log-interval", "2", "--save-interval", "3"),
    ),
    "rows of many lanes": ("--num-processes", "24", "--num-steps", "2", "--encoder", "hashing:16"),
}


@pytest.mark.parametrize(
    "shape",
    [
        SHAPES["a judge, an encoder on the server, a warm target"],
        *(
            pytest.param(SHAPES[name], marks=pytest.mark.soak)
            for name in ("one lane, one call at a time, one step", "rows of many lanes")
        ),
    ],
    ids=SHAPES,
)
def test_runs_of_every_shape_go_on_and_so_do_their_metrics(
    simulator: EmbeddedServer, tmp_path: Path, shape: tuple[str, ...]
) -> None:
    assert train(simulator.host, tmp_path / "whole", *flags(steps=64, shape=shape)) == 0
    interrupted_at(simulator.host, tmp_path / "run", 40, *flags(steps=64, shape=shape))
    assert resume(tmp_path / "run") == 0
    assert same(tmp_path / "run", tmp_path / "whole")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


def test_a_run_may_be_made_longer(simulator: EmbeddedServer, whole: Path, tmp_path: Path) -> None:
    assert train(simulator.host, tmp_path / "run", *flags(steps=32)) == 0
    assert resume(tmp_path / "run", "--num-env-steps", "64") == 0
    assert resume(tmp_path / "run", "--num-env-steps", str(ALL)) == 0
    assert same(tmp_path / "run", whole)


def test_to_resume_a_run_that_is_complete_changes_nothing(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    before = [(folder / name).read_text().count("\n") for name in ("transitions.jsonl", "metrics.jsonl")]
    for _ in range(2):
        assert resume(folder) == 0
    after = [(folder / name).read_text().count("\n") for name in ("transitions.jsonl", "metrics.jsonl")]
    assert after == before
    assert same(folder, whole)


def test_a_torn_last_line_and_a_row_that_lacks_lanes_are_cut_off(
    simulator: EmbeddedServer, whole: Path, tmp_path: Path
) -> None:
    interrupted_at(simulator.host, tmp_path / "run", 44, *flags())
    path = tmp_path / "run" / "transitions.jsonl"
    path.write_bytes(path.read_bytes()[:-100])
    assert resume(tmp_path / "run") == 0
    assert same(tmp_path / "run", whole)


def test_steps_that_came_to_nothing_come_to_nothing_again(simulator: EmbeddedServer, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    simulator.set_faults([{"kind": "status", "rate": 0.3}])
    try:
        interrupted_at(simulator.host, folder, 60, *flags("--call-attempts", "1"))
    finally:
        simulator.set_faults([])
    before = lines(folder)
    assert any(line["unscored"] for line in before[32:])
    assert resume(folder) == 0
    assert lines(folder)[: len(before)] == before
    assert len(lines(folder)) == summary(folder)["env_steps"] == ALL


def test_a_run_that_a_broken_server_stopped_goes_on_when_the_server_is_back(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert train(simulator.host, folder, *flags(steps=32)) == 0
    simulator.set_faults([{"kind": "status", "rate": 1.0}])
    try:
        assert resume(folder, "--num-env-steps", "192", "--call-attempts", "1") == 1
    finally:
        simulator.set_faults([])
    assert "could not be scored" in summary(folder)["stopped"]
    failed = lines(folder)
    assert resume(folder) == 0
    assert lines(folder)[: len(failed)] == failed
    assert summary(folder)["unscored_steps"] == sum(line["unscored"] for line in failed) > 100


def test_the_log_holds_every_reply_once_and_says_what_it_cost(whole: Path) -> None:
    database = sqlite3.connect(whole / "replies.sqlite")
    rows = database.execute("SELECT endpoint, model, attempts, error, reply FROM replies").fetchall()
    keys = database.execute("SELECT count(DISTINCT key) FROM replies").fetchone()[0]
    database.close()
    assert len(rows) == keys == summary(whole)["llm_calls"]
    assert {(endpoint, *cost) for endpoint, _, *cost, _ in rows} == {("generate", 1, None), ("chat", 1, None)}
    assert {model for _, model, *_ in rows} == {"sim-target", "sim-mutator"}
    said = {json.loads(reply)["text"] for *_, reply in rows}
    assert {line["reply"] for line in lines(whole)} <= said


def killed_and_resumed(server: EmbeddedServer, folder: Path, chance: random.Random) -> int:
    """A run in processes that are killed at random moments, and then comes to its end; how many were."""
    host = ["--ollama-host", server.host]
    begun = [*host, *flags(), "--run-dir", str(folder)]
    for kills in range(KILLS):
        again = ["--resume", str(folder), *host] if (folder / "config.toml").exists() else begun
        process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "cli.launch", "train", *again],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        # One in the middle of a run, the next while it starts, and so on.
        is_starting = kills % 2 == 1
        at_least = 0 if is_starting else (kills + 1) * ALL // (KILLS + 1)
        if wait_for_growth(folder, process, at_least):
            time.sleep(chance.uniform(0, 4.0 if is_starting else 0.1))
            process.kill()
        _, errors = process.communicate()
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, errors
            return kills
    assert resume(folder) == 0
    return KILLS


def wait_for_growth(folder: Path, process: subprocess.Popen[bytes], at_least: int) -> bool:
    """Wait until so many transitions are written; False when the process ended before.

    With 0 it does not wait at all: the process is just starting.
    """
    path = folder / "transitions.jsonl"
    while process.poll() is None:
        if not at_least or (path.exists() and path.read_bytes().count(b"\n") >= at_least):
            return True
        time.sleep(0.01)
    return False


def test_a_full_disk_stops_the_run_which_goes_on_when_there_is_room_again(
    simulator: EmbeddedServer, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file may grow much beyond the checkpoint's size: the log of replies and policy.zip do not fit."""
    folder = tmp_path / "run"
    room = (whole / "checkpoints" / "last.pt").stat().st_size + 2000
    assert room < (whole / "replies.sqlite").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        assert train(simulator.host, folder, *flags()) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    *_, how, line = capsys.readouterr().err.strip().splitlines()
    assert how == f"to go on: mutagym train --resume {folder} --ollama-host {simulator.host}"
    assert line.startswith("mutagym: ")
    assert line.endswith(": mend that, then go on")
    assert 0 < len(lines(folder)) < ALL
    assert resume(folder) == 0
    assert same(folder, whole)


@pytest.mark.slow
@pytest.mark.timeout(100 + 30 * KILLS)
def test_a_trainer_killed_again_and_again_ends_as_one_that_was_not(whole: Path, tmp_path: Path) -> None:
    with EmbeddedServer(Settings(slots=8, time_scale=0.2)) as server:
        kills = killed_and_resumed(server, tmp_path / "run", random.Random(7))
        stats = server.stats()
    assert kills == KILLS
    assert same(tmp_path / "run", whole)
    paid_for_nothing = stats["calls"] - summary(tmp_path / "run")["llm_calls"]
    assert 0 <= paid_for_nothing <= 8 * kills  # what was under way when the process died
