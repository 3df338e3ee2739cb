"""Laws of every search: stopped and resumed it finds the same, nothing is paid for twice."""

from __future__ import annotations

import json
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
"""No search here has more calls in flight."""
BROKEN = ("--call-attempts", "1")


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
    assert not (folder / "results.json").exists()
    assert execute((command, "--resume", str(folder), "--trust-run")) == 0
    for name in ("results.json", "parts.json"):
        assert read(folder, name) == read(whole[command], name)
    assert metrics(folder) == metrics(whole[command])
    paid_for_nothing = slow.stats()["calls"] - asked - replies(folder)
    assert 0 <= paid_for_nothing <= AT_ONCE  # what was in flight when the process died
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
    said = capsys.readouterr()
    assert f"to go on: mutagym {command} --resume {folder}" in said.err
    assert said.err.splitlines()[-1] == "mutagym: stopped by SIGINT"
    assert said.out == ""
    before, asked = replies(folder), slow.stats()["calls"]
    assert execute((command, "--resume", str(folder), "--trust-run")) == 0
    assert read(folder) == read(whole[command])
    assert slow.stats()["calls"] - asked == replies(folder) - before
    summary = read(folder, "summary.json")
    assert summary["calls"] == slow.stats()["calls"] - asked
    assert summary["whole_run"]["calls"] == slow.stats()["calls"] - asked_before


def test_a_search_killed_before_its_first_call_can_be_resumed(whole: WholeSearches, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(whole["evolve"] / "config.toml", folder)
    assert execute(("evolve", "--resume", str(folder), "--trust-run")) == 0
    assert read(folder, "parts.json") == read(whole["evolve"], "parts.json")
    assert read(folder) == read(whole["evolve"])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_complete_search_resumed_asks_nothing_and_says_where_to_look(
    simulator: EmbeddedServer,
    whole: WholeSearches,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    folder = whole.copy_of(command, tmp_path / "run")
    asked = simulator.stats()["calls"]
    resumed = (command, "--resume", str(folder), "--trust-run", "--max-in-flight", "3")
    assert execute(resumed) == 0
    assert simulator.stats()["calls"] == asked
    assert read(folder) == read(whole[command])
    said = capsys.readouterr()
    assert " left" not in said.err
    assert said.out.splitlines()[-3:] == [
        f"run folder: {folder}",
        f"look at it: tensorboard --logdir {folder}",
        f"        or: mutagym report {folder}",
    ]
    assert execute((*resumed, "--format", "json", "--json", str(tmp_path / "report.json"))) == 0
    assert json.loads(capsys.readouterr().out) == read(folder, "report.json")
    assert read(tmp_path, "report.json") == read(folder, "report.json")


def test_a_cache_that_runs_share_answers_a_second_search(
    simulator: EmbeddedServer, whole: WholeSearches, tmp_path: Path
) -> None:
    search("evolve", simulator.host, tmp_path / "a", "--cache", str(tmp_path / "cache"))
    asked = simulator.stats()["calls"]
    search("evolve", simulator.host, tmp_path / "b", "--cache", str(tmp_path / "cache"))
    assert simulator.stats()["calls"] == asked
    assert read(tmp_path / "b") == read(whole["evolve"])


@pytest.mark.parametrize("command", one_of_them("evolve"))
def test_a_server_that_stays_dead_stops_the_search_which_goes_on_at_another(
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
    ("command", "flag", "value"),
    [
        ("evolve", "--population-size", "8"),
        ("select", "--selector", "brute_force"),
        ("optimize", "--critic", "ridge"),
        ("evolve", "--seed", "1"),
        ("select", "--num-ctx", "2048"),
    ],
)
def test_a_resumed_search_is_the_same_search_in_the_same_folder(
    simulator: EmbeddedServer,
    whole: WholeSearches,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    flag: str,
    value: str,
) -> None:
    resumed = (command, "--resume", str(whole[command]), "--ollama-host", simulator.host)
    assert execute((*resumed, flag, value)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    given = value if value.isdigit() else repr(value)
    assert line.startswith(f"mutagym: {flag} is {given}, but the run began with ")
    assert execute((*resumed, "--run-dir", str(tmp_path / "other"))) == 2
    assert capsys.readouterr().err.endswith("leave out --run-dir\n")
    for other in COMMANDS.keys() - {command}:
        assert execute((other, *resumed[1:])) == 2
        assert f"a run of `mutagym {command}`: go on with that" in capsys.readouterr().err


def test_an_evolution_may_be_made_longer_and_shorter(
    simulator: EmbeddedServer, whole: WholeSearches, tmp_path: Path
) -> None:
    folder = search("evolve", simulator.host, tmp_path / "run", "--max-generations", "1")
    resumed = ("evolve", "--resume", str(folder), "--trust-run", "--max-generations")
    assert execute((*resumed, "3")) == 0
    assert read(folder) == read(whole["evolve"])
    assert metrics(folder) == metrics(whole["evolve"])
    assert execute((*resumed, "0", "--patience", "1")) == 0
    assert read(folder)["generations"] == len(metrics(folder)) == 1


def test_a_task_that_was_changed_is_another_search(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "mine.jsonl"
    lines = [f'{{"question": "What is {k} + {k}?", "answer": {2 * k}}}\n' for k in range(40)]
    task.write_text("".join(lines))
    folder = search("select", simulator.host, tmp_path / "run", "--task", str(task))
    task.write_text("".join(lines[:-1]))
    assert execute(("select", "--resume", str(folder), "--trust-run")) == 2
    assert "'task mine' is not what the run" in capsys.readouterr().err


FAULTS = [
    {"kind": "status", "status": 503, "rate": 0.005, "first": 3},
    {"kind": "garbage", "rate": 0.01},
    {"kind": "drop", "rate": 0.005, "at": "body"},
    {"kind": "hang", "rate": 0.003, "at": "start"},
]


@pytest.mark.slow
@pytest.mark.parametrize("command", one_of_them("evolve"))
def test_a_server_in_trouble_changes_no_result_and_its_retries_are_counted(
    whole: WholeSearches, tmp_path: Path, command: str
) -> None:
    with EmbeddedServer(Settings(slots=16, time_scale=0)) as troubled:
        troubled.set_faults(FAULTS)
        patience = ("--call-timeout-s", "1", "--call-attempts", "8")
        run = search(command, troubled.host, tmp_path / "run", *patience)
    assert read(run) == read(whole[command])
    summary = read(run, "summary.json")
    assert summary["retries"] == summary["failures"] > 0


@pytest.fixture(scope="module")
def lame() -> Iterator[EmbeddedServer]:
    """A server on which two models cannot run."""
    with EmbeddedServer(Settings(slots=16, time_scale=0)) as server:
        broken = ("sim-mutator", "sim-solver-small")
        server.set_faults([{"kind": "status", "rate": 1.0, "model": model} for model in broken])
        yield server


@pytest.fixture(scope="module")
def flaky() -> Iterator[EmbeddedServer]:
    """A server that fails at a twentieth of the calls to the target."""
    with EmbeddedServer(Settings(slots=16, time_scale=0)) as server:
        server.set_faults([{"kind": "status", "rate": 0.05, "model": "sim-solver"}])
        yield server


def test_an_evolution_whose_rewordings_fail_says_so_and_is_resumed_to_the_same_end(
    lame: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The calls that failed are all that is asked again, and they fail again."""
    run = search("evolve", lame.host, tmp_path / "run", *BROKEN)
    said, found = capsys.readouterr(), read(run)
    for record in found["history"]:
        assert record["failed_steps"] == record["model_steps"]
        assert f"{record['failed_steps']} of {record['model_steps']}" in said.out
    assert "rewordings by model failed: " in said.err
    before = (found, metrics(run), replies(run))
    assert execute(("evolve", "--resume", str(run), "--trust-run")) == 0
    assert (read(run), metrics(run), replies(run)) == before


def test_an_evolution_says_which_problems_its_comparison_leaves_out(
    flaky: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = search("evolve", flaky.host, tmp_path / "run", *BROKEN)
    held_out = read(run)["held_out"]
    assert held_out["left_out"] > 0
    assert held_out["best"] - held_out["seed"] == pytest.approx(held_out["difference"])
    assert f"the others, {held_out['left_out']} of 40" in " ".join(capsys.readouterr().out.split())


def test_a_model_that_never_answers_is_not_named_and_the_others_are_compared(
    lame: EmbeddedServer, tmp_path: Path
) -> None:
    models = ("--models", "sim-solver-large,sim-solver-small", "--selector", "brute_force")
    run = search("select", lame.host, tmp_path / "run", *models, *BROKEN)
    rows = {row["combination"]["model"]: row for row in read(run)["combinations"]}
    assert [model for model, row in rows.items() if row["is_best"]] == ["sim-solver-large"]
    assert rows["sim-solver-small"]["errors"] == rows["sim-solver-small"]["datapoints"] == 200


def test_where_no_model_can_be_named_the_exit_code_says_so_and_more_errors_may_be_allowed(
    lame: EmbeddedServer, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    models = ("--models", "sim-solver-small,sim-mutator", *BROKEN)
    flags = ("--ollama-host", lame.host, *models, "--run-dir", str(folder))
    assert execute(("select", *flags)) == 1
    verdicts = [row["verdict"] for row in read(folder)["combinations"]]
    assert verdicts == ["fails too often"] * 2
    assert execute(("select", "--resume", str(folder), "--trust-run", "--max-errors", "1")) == 0
    assert sum(row["is_best"] for row in read(folder)["combinations"]) == 1


def test_candidates_without_a_score_are_counted_and_shares_are_of_the_same_questions(
    flaky: EmbeddedServer, tmp_path: Path
) -> None:
    run = search("optimize", flaky.host, tmp_path / "run", "--held-out", "0.3", *BROKEN)
    results = read(run)
    seed, *others = results["held_out"]
    assert seed["left_out"] > 0
    for arm in others:
        assert (arm["queries"], arm["left_out"]) == (seed["queries"], seed["left_out"])
        assert arm["score"] - seed["score"] == pytest.approx(arm["difference"])
    assert 0 < results["unscored"] < results["candidates"] == 40
