"""A search that is broken off and resumed ends as one that is not, and asks nothing twice."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.cli.searches import COMMANDS, WholeSearches, arguments, one_of_them, replies, search
from tests.runs import metrics, read

AT_ONCE = 64
"""No search here has more calls under way."""


@pytest.fixture(scope="module")
def slow() -> Iterator[EmbeddedServer]:
    """A server that takes its time, so that a search can be caught in the middle."""
    with EmbeddedServer(Settings(slots=4, time_scale=0.05)) as server:
        yield server


def wait_for(folder: Path, least: int) -> None:
    """Wait until so many replies are written down."""
    while not (folder / "config.toml").exists() or replies(folder) < least:
        time.sleep(0.01)


@pytest.mark.parametrize("command", one_of_them("evolve"))
def test_a_search_killed_in_the_middle_and_resumed_is_the_search_that_was_not(
    slow: EmbeddedServer, whole: WholeSearches, tmp_path: Path, command: str
) -> None:
    folder, asked = tmp_path / "run", slow.stats()["calls"]
    least = replies(whole[command]) // 3
    line = [sys.executable, "-m", "cli.launch", *arguments(command, slow.host, folder)]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # noqa: S603 - ours
        wait_for(folder, least)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not (folder / "results.json").exists()
    assert execute((command, "--resume", str(folder), "--trust-run")) == 0
    for name in ("results.json", "parts.json"):
        assert read(folder, name) == read(whole[command], name)
    assert metrics(folder) == metrics(whole[command])
    paid_for_nothing = slow.stats()["calls"] - asked - replies(folder)
    assert 0 <= paid_for_nothing <= AT_ONCE  # what was under way when the process died
    assert replies(folder) == replies(whole[command])


@pytest.mark.parametrize("command", one_of_them("optimize"))
def test_ctrl_c_saves_the_search_and_says_how_to_go_on(
    slow: EmbeddedServer,
    whole: WholeSearches,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    folder, asked_before = tmp_path / "run", slow.stats()["calls"]
    least = replies(whole[command]) // 4

    def interrupt() -> None:
        wait_for(folder, least)
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    search(command, slow.host, folder, code=130)
    watcher.join()
    told = capsys.readouterr()
    assert f"to go on: mutagym {command} --resume {folder}" in told.err
    assert told.err.splitlines()[-1] == "mutagym: stopped by SIGINT"
    assert told.out == ""
    before, asked = replies(folder), slow.stats()["calls"]
    assert execute((command, "--resume", str(folder), "--trust-run")) == 0
    assert read(folder) == read(whole[command])
    assert slow.stats()["calls"] - asked == replies(folder) - before
    summary = read(folder, "summary.json")
    assert summary["calls"] == slow.stats()["calls"] - asked
    assert summary["whole_run"]["calls"] == slow.stats()["calls"] - asked_before


@pytest.mark.soak
def test_ctrl_c_before_the_first_call_says_how_to_go_on_too(
    slow: EmbeddedServer, whole: WholeSearches, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    line = [sys.executable, "-m", "cli.launch", *arguments("evolve", slow.host, folder)]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        while not (folder / "config.toml").exists():
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate()
    assert process.returncode == 130
    how = f"to go on: mutagym evolve --resume {folder} --ollama-host {slow.host}"
    assert told.splitlines()[-2] == how
    assert execute(("evolve", "--resume", str(folder), "--trust-run")) == 0
    assert read(folder) == read(whole["evolve"])


def test_a_search_killed_before_all_that_it_is_was_written_down_can_be_resumed(
    whole: WholeSearches, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(whole["evolve"] / "config.toml", folder)
    assert execute(("evolve", "--resume", str(folder), "--trust-run")) == 0
    assert read(folder, "parts.json") == read(whole["evolve"], "parts.json")
    assert read(folder) == read(whole["evolve"])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_search_that_is_complete_asks_nothing_more_and_says_nothing_of_the_time_that_is_left(
    simulator: EmbeddedServer,
    whole: WholeSearches,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    folder = whole.copy_of(command, tmp_path / "run")
    asked = simulator.stats()["calls"]
    assert execute((command, "--resume", str(folder), "--trust-run", "--max-in-flight", "3")) == 0
    assert simulator.stats()["calls"] == asked
    assert read(folder) == read(whole[command])
    told = capsys.readouterr().err
    assert " left" not in told
    if command == "evolve":
        assert "generations: 4 of 4, " in told
        assert "100 % cache hits" in told


def test_a_cache_that_runs_share_answers_a_second_search(
    simulator: EmbeddedServer, whole: WholeSearches, tmp_path: Path
) -> None:
    search("evolve", simulator.host, tmp_path / "a", "--cache", str(tmp_path / "cache"))
    asked = simulator.stats()["calls"]
    search("evolve", simulator.host, tmp_path / "b", "--cache", str(tmp_path / "cache"))
    assert simulator.stats()["calls"] == asked
    assert read(tmp_path / "b") == read(whole["evolve"])


@pytest.mark.parametrize("command", one_of_them("evolve"))
def test_a_server_that_stays_dead_stops_the_search_saved_and_it_goes_on_at_another(
    simulator: EmbeddedServer,
    whole: WholeSearches,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    folder = tmp_path / "run"
    with EmbeddedServer(Settings(slots=4, time_scale=0.05)) as dying:

        def kill() -> None:
            wait_for(folder, replies(whole[command]) // 4)
            os.kill(dying.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        search(command, dying.host, folder, "--max-outage", "1", code=3)
        killer.join()
    *_, hint, line = capsys.readouterr().err.splitlines()
    assert hint == f"to go on: mutagym {command} --resume {folder} --ollama-host {dying.host}"
    assert "no server was there for 1 s (--max-outage)" in line
    assert execute((command, "--resume", str(folder), "--ollama-host", simulator.host)) == 0
    assert read(folder) == read(whole[command])


@pytest.mark.parametrize("command", one_of_them("select"))
def test_a_full_disk_stops_the_search_which_goes_on_when_there_is_room_again(
    simulator: EmbeddedServer,
    whole: WholeSearches,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    """No file may grow so large as the whole log of replies."""
    folder = tmp_path / "run"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = (whole[command] / "replies.sqlite").stat().st_size // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        search(command, simulator.host, folder, code=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    *_, how, line = capsys.readouterr().err.splitlines()
    assert how.startswith(f"to go on: mutagym {command} --resume {folder} --ollama-host ")
    assert line.endswith(": mend that, then go on")
    assert execute((command, "--resume", str(folder), "--trust-run")) == 0
    assert read(folder) == read(whole[command])


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("evolve", ("--population-size", "8")),
        ("select", ("--selector", "brute_force")),
        ("optimize", ("--critic", "ridge")),
        ("evolve", ("--seed", "1")),
        ("evolve", ("--num-predict", "64")),
        ("select", ("--num-ctx", "2048")),
        ("optimize", ("--num-ctx", "2048")),
    ],
)
def test_a_resumed_search_is_the_same_search(
    simulator: EmbeddedServer,
    whole: WholeSearches,
    capsys: pytest.CaptureFixture[str],
    command: str,
    flags: tuple[str, ...],
) -> None:
    resumed = (command, "--resume", str(whole[command]), "--ollama-host", simulator.host)
    assert execute((*resumed, *flags)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    told = flags[1] if flags[1].isdigit() else repr(flags[1])
    assert line.startswith(f"mutagym: {flags[0]} is {told}, but the run began with ")
    assert len(line) <= 200


def test_an_evolution_may_be_made_longer_and_shorter(
    simulator: EmbeddedServer, whole: WholeSearches, tmp_path: Path
) -> None:
    folder = search("evolve", simulator.host, tmp_path / "run", "--max-generations", "1")
    assert execute(("evolve", "--resume", str(folder), "--trust-run", "--max-generations", "3")) == 0
    assert read(folder) == read(whole["evolve"])
    assert metrics(folder) == metrics(whole["evolve"])
    assert (
        execute(
            ("evolve", "--resume", str(folder), "--trust-run", "--max-generations", "0", "--patience", "1")
        )
        == 0
    )
    assert read(folder)["generations"] == len(metrics(folder)) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_resumed_search_stays_in_its_folder(
    simulator: EmbeddedServer,
    whole: WholeSearches,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    folder, host = str(whole[command]), ("--ollama-host", simulator.host)
    assert execute((command, "--run-dir", str(tmp_path / "other"), "--resume", folder, *host)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mutagym: --run-dir ")
    assert line.endswith("leave out --run-dir")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_search_is_gone_on_with_by_its_own_command(
    whole: WholeSearches, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for other in COMMANDS.keys() - {command}:
        assert execute((other, "--resume", str(whole[command]), "--trust-run")) == 2
        assert f"a run of `mutagym {command}`: go on with that command" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["one problem less", "another kind"])
def test_a_task_that_was_changed_is_another_search(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    task = tmp_path / "mine.jsonl"
    lines = [f'{{"question": "What is {k} + {k}?", "answer": {2 * k}, "kind": "sum"}}\n' for k in range(40)]
    task.write_text("".join(lines))
    folder = search("select", simulator.host, tmp_path / "run", "--task", str(task))
    lines[-1] = "" if change == "one problem less" else lines[-1].replace("sum", "product")
    task.write_text("".join(lines))
    assert execute(("select", "--resume", str(folder), "--trust-run")) == 2
    told = capsys.readouterr().err
    assert "'task mine' is not what the run" in told
    assert "hash" not in told
