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
    return (command, *WORLD, *SHAPE, *PASSES, "--ollama-host", host, "--run-dir", str(folder))


def results(command: str, folder: Path) -> object:
    """What counts of a run's results."""
    if command != "train":
        return read(folder)
    found = read(folder, "summary.json")
    return [found[name] for name in (*HASHES, "unscored_rate")]


@pytest.mark.parametrize("command", ["train", *one_of_them("select")])
def test_a_run_waits_for_its_server_or_ends_saved_and_goes_on(
    server: EmbeddedServer, tmp_path: Path, capsys: Capture, command: str
) -> None:
    before = server.stats()["calls"]
    assert execute(line(command, server.host, tmp_path / "whole")) == 0
    calls = server.stats()["calls"] - before
    whole = results(command, tmp_path / "whole")

    waits = line(command, server.host, tmp_path / "waits")
    with outage_after(server, calls // 3, "drop", for_s=2.0):
        assert execute(waits) == 0
    assert f"{server.host} is away (" in capsys.readouterr().err
    assert results(command, tmp_path / "waits") == whole

    ends = line(command, server.host, tmp_path / "ends")
    with outage_after(server, calls // 3, "drop"):
        assert execute((*ends, "--max-outage", "0.5")) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith(TOO_LONG)
    server.end_outage()
    assert execute((command, "--resume", str(tmp_path / "ends"), "--trust-run")) == 0
    assert results(command, tmp_path / "ends") == whole


def test_a_server_that_looks_well_and_answers_no_call_is_waited_for(
    server: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    flags = (*WORLD, *SHAPE, *PASSES, "--ollama-host", server.host, "--call-timeout-s", "1")
    assert execute(("train", *flags, "--run-dir", str(tmp_path / "whole"))) == 0
    with outage_after(server, 15, "hang", for_s=2.5):
        assert execute(("train", *flags, "--run-dir", str(tmp_path / "waits"))) == 0
    said = capsys.readouterr().err
    assert f"{server.host} is away (" in said
    assert f"{server.host} answers again after" in said
    assert results("train", tmp_path / "waits") == results("train", tmp_path / "whole")


def test_labels_of_a_judge_are_waited_for_or_the_command_ends(
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
    with outage_after(server, 10, "drop", for_s=2.0):
        assert execute(flags) == 0
    said = capsys.readouterr().err
    assert f"{server.host} is away (" in said
    assert "unscored" not in said
