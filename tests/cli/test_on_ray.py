"""`--engine ray` of eval, train --seeds and select: the results of one process, whoever dies."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cli.main import execute
from ollama_utils.on_ray import join_ray
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.clusters import installed, killing_a_worker, workers
from tests.ollama_utils.threads import start, wait_until
from tests.runs import HASHES, PASSES, WORLD, read, send_signal, summary

RAY = ("--engine", "ray")
COMMANDS = {
    "eval": (
        *("eval", *WORLD, "--encoder", "hashing", "-p", "random", "-p", "linucb", "--agents", "2"),
        *("--episodes", "8", "--fit-calls", "100"),
    ),
    "train": (
        *("train", *WORLD, *PASSES, "--encoder", "hashing:64", "--num-processes", "4"),
        *("--num-steps", "16", "--num-env-steps", "256", "--seeds", "2"),
    ),
    "select": ("select", "--models", "sim-solver-small,sim-solver,sim-solver-large"),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with join_ray(None):
        yield


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[str, ...]]:
    """The flags that name two servers."""
    with ExitStack() as stack:
        settings = Settings(slots=4, time_scale=0.1)
        servers = [stack.enter_context(EmbeddedServer(settings)) for _ in range(2)]
        yield tuple(word for server in servers for word in ("--ollama-host", server.host))


def has_written(folder: Path) -> bool:
    """Whether a task has kept a reply there."""
    logs = [*folder.glob("replies-*.sqlite-wal"), *folder.glob("seed-*/transitions.jsonl")]
    return any(log.stat().st_size for log in logs)


def run(command: str, folder: Path, *flags: str) -> int:
    return execute((*COMMANDS[command], "--run-dir", str(folder), *flags))


def results(command: str, folder: Path) -> object:
    """What equal runs have in common."""
    if command == "train":
        return [[each[name] for name in HASHES] for each in summary(folder)["runs"]]
    return (folder / "results.json").read_bytes()


def calls(command: str, folder: Path) -> int:
    """The requests of a run, those before it was resumed included."""
    found = summary(folder)
    count: int = found["llm_calls"] if command == "train" else found["whole_run"]["calls"]
    return count


@installed
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_worker_that_is_killed_changes_no_result(
    command: str, hosts: tuple[str, ...], tmp_path: Path
) -> None:
    assert run(command, tmp_path / "threads", *hosts) == 0
    with killing_a_worker(lambda: has_written(tmp_path / "ray")):
        assert run(command, tmp_path / "ray", *hosts, *RAY) == 0
    assert results(command, tmp_path / "ray") == results(command, tmp_path / "threads")


@installed
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("command", "then"), [("eval", "ray"), ("train", "threads"), ("select", "ray")]
)
def test_ctrl_c_ends_all_and_nothing_is_paid_for_twice(
    command: str, then: str, hosts: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "ray"

    def interrupt() -> None:
        wait_until(lambda: has_written(folder))
        send_signal(signal.SIGINT)

    interrupting = start(interrupt)
    assert run(command, folder, *hosts, *RAY) == 130
    interrupting.result(timeout=0)
    assert workers() == []
    assert execute((command, "--resume", str(folder), "--trust-run", "--engine", then)) == 0
    assert run(command, tmp_path / "whole", *hosts, *RAY) == 0
    assert results(command, folder) == results(command, tmp_path / "whole")
    assert calls(command, folder) == calls(command, tmp_path / "whole")


@installed
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_tasks_use_the_simulator_that_the_command_started(tmp_path: Path) -> None:
    for engine in ("threads", "ray"):
        assert run("eval", tmp_path / engine, "--time-scale", "0", "--engine", engine) == 0
    assert results("eval", tmp_path / "ray") == results("eval", tmp_path / "threads")
    assert read(tmp_path / "ray")["simulated"]
    config = (tmp_path / "ray" / "config.toml").read_text()
    assert f"ollama-host = {json.dumps(['embedded'])}" in config


@pytest.mark.parametrize("command", COMMANDS)
def test_without_ray_the_error_says_what_to_install(
    command: str,
    simulator: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run(command, tmp_path / "run", "--ollama-host", simulator.host, *RAY) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "mutagym: --engine ray needs Ray, which is not installed here: pip install 'mutagym[ray]'"
    )
    assert not (tmp_path / "run" / "config.toml").exists()


def test_one_run_is_not_spread_over_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(("train", *RAY)) == 2
    assert "--engine ray trains each of several seeds as a task" in capsys.readouterr().err
