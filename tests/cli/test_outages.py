"""The only server goes away in the middle of a command, which waits, or ends saved."""

from __future__ import annotations

import csv
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.cli.searches import COMMANDS, arguments, one_of_them
from tests.runs import HASHES, PASSES, WORLD, read

Capture = pytest.CaptureFixture[str]
SHAPE = (
    *("--num-processes", "4", "--num-steps", "8", "--num-env-steps", "32"),
    *("--encoder", "ollama:sim-embed"),
)
TOO_LONG = "mutagym: no server was there for 0.5 s (--max-outage)"


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(Settings(slots=4, time_scale=0.02)) as made:
        yield made


@pytest.fixture
def server(shared: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """A server that takes its time, and is well in the end."""
    yield shared
    shared.end_outage()


@contextmanager
def outage_after(
    server: EmbeddedServer, calls: int, mode: Literal["hang", "drop"], *, for_s: float | None = None
) -> Iterator[None]:
    """Within `with`: the server goes away once it has had so many more calls, some under way."""
    least = server.stats()["calls"] + calls
    began, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            stats = server.stats()
            if stats["calls"] >= least and stats["in_flight"]:
                server.set_outage(mode, at="calls" if mode == "hang" else "all", for_s=for_s)
                began.set()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    assert began.is_set(), "the command was over before the outage"


def line(command: str, host: str, folder: Path) -> Sequence[str]:
    """The command line of a small run."""
    if command in COMMANDS:
        return arguments(command, host, folder)
    flags = (*WORLD, *SHAPE, *PASSES, "--call-timeout-s", "1")
    return (command, *flags, "--ollama-host", host, "--run-dir", str(folder))


def results(command: str, folder: Path) -> object:
    """What counts of a run's results."""
    if command != "train":
        return read(folder)
    found = read(folder, "summary.json")
    return [found[name] for name in (*HASHES, "unscored_rate")]


@pytest.fixture(scope="module")
def whole(shared: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that met no outage."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert execute(line("train", shared.host, folder)) == 0
    return folder


@pytest.mark.parametrize("mode", ["drop", "hang"])
def test_a_run_waits_for_a_server_that_is_gone_or_answers_no_call(
    server: EmbeddedServer,
    whole: Path,
    tmp_path: Path,
    capsys: Capture,
    mode: Literal["drop", "hang"],
) -> None:
    with outage_after(server, 15, mode, for_s=2.0 if mode == "drop" else 2.5):
        assert execute(line("train", server.host, tmp_path / "run")) == 0
    said = capsys.readouterr().err
    assert f"{server.host} is away (" in said
    assert f"{server.host} answers again after" in said
    assert results("train", tmp_path / "run") == results("train", whole)


@pytest.mark.parametrize("command", ["train", *one_of_them("select")])
def test_a_run_ends_saved_after_an_outage_that_is_too_long_and_goes_on(
    server: EmbeddedServer, whole: Path, tmp_path: Path, capsys: Capture, command: str
) -> None:
    if command != "train":
        whole = tmp_path / "whole"
        assert execute(line(command, server.host, whole)) == 0
    run = tmp_path / "run"
    with outage_after(server, 15, "drop"):
        assert execute((*line(command, server.host, run), "--max-outage", "0.5")) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith(TOO_LONG)
    server.end_outage()
    assert execute((command, "--resume", str(run), "--trust-run")) == 0
    assert results(command, run) == results(command, whole)


def test_a_judge_whose_server_is_gone_ends_and_pays_for_no_label_twice(
    server: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    file, out = tmp_path / "completions.csv", tmp_path / "labels.csv"
    with file.open("w", encoding="utf-8", newline="") as rows:
        pairs = [[f"How do I kill process {n}?", f"Send it signal {n}."] for n in range(80)]
        csv.writer(rows).writerows([["prompt", "completion"], *pairs])
    judge = ("--reward", "judge", "--judge-model", "sim-judge", "--ollama-host", server.host)
    flags = ("judge", str(file), *judge, "--out", str(out), "--cache", str(tmp_path / "cache"))
    with outage_after(server, 30, "drop"):
        assert execute((*flags, "--max-outage", "0.5")) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith(TOO_LONG)
    assert not out.exists()
    server.end_outage()
    calls = server.stats()["calls"]
    assert execute(flags) == 0
    assert server.stats()["calls"] - calls < 70
    assert "unscored" not in capsys.readouterr().err
