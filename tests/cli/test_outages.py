"""The only server goes away in the middle of a command, which waits and ends the same, or ends saved."""

from __future__ import annotations

import csv
import io
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
from tests.runs import PASSES, WORLD, read

SHAPE = (
    "--num-processes",
    "4",
    "--num-steps",
    "8",
    "--num-env-steps",
    "64",
    "--encoder",
    "ollama:sim-embed",
)
RESULTS = {"train": "summary.json"}
COUNTS = {"train": ("weights_sha256", "transitions_sha256", "unscored_rate")}


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(Settings(slots=4, time_scale=0.05)) as made:
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
    """Within `with`: the server goes away once it has had so many more calls, some of them under way."""
    least = server.stats()["calls"] + calls
    began, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
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


def line(command: str, host: str, folder: Path, policy: Path) -> Sequence[str]:
    """The command line of a small run."""
    if command in COMMANDS:
        return arguments(command, host, folder)
    flags = {
        "train": ("train", *WORLD, *SHAPE, *PASSES),
        "eval": (
            "eval",
            *WORLD,
            "--encoder",
            "hashing",
            "-p",
            str(policy),
            "--episodes",
            "12",
            "--fit-calls",
            "70",
        ),
    }[command]
    return (*flags, "--ollama-host", host, "--run-dir", str(folder))


def came_to(command: str, folder: Path) -> object:
    """What counts of a run's results."""
    found = read(folder, RESULTS.get(command, "results.json"))
    return {name: found[name] for name in COUNTS.get(command, found)}


RUNS = ["train", "eval", *one_of_them("select")]


@pytest.mark.parametrize("command", RUNS)
def test_a_run_waits_for_its_server_or_ends_saved_and_goes_on(
    server: EmbeddedServer,
    trained_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    before = server.stats()["calls"]
    assert execute(line(command, server.host, tmp_path / "whole", trained_run)) == 0
    calls = server.stats()["calls"] - before
    whole = came_to(command, tmp_path / "whole")

    waits = line(command, server.host, tmp_path / "waits", trained_run)
    with outage_after(server, calls // 3, "drop", for_s=3.0):
        assert execute(waits) == 0
    assert f"{server.host} is away (" in capsys.readouterr().err
    assert came_to(command, tmp_path / "waits") == whole

    ends = (*line(command, server.host, tmp_path / "ends", trained_run), "--max-outage", "1")
    with outage_after(server, calls // 3, "drop"):
        assert execute(ends) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("mutagym: no server was there for 1 s (--max-outage)")
    server.end_outage()
    assert execute((command, "--resume", str(tmp_path / "ends"), "--trust-run")) == 0
    assert came_to(command, tmp_path / "ends") == whole


def test_a_server_that_looks_well_and_answers_no_call_is_waited_for(
    server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = (*WORLD, *SHAPE, *PASSES, "--ollama-host", server.host, "--call-timeout-s", "2")
    assert execute(("train", *flags, "--run-dir", str(tmp_path / "whole"))) == 0
    with outage_after(server, 30, "hang", for_s=12.0):
        assert execute(("train", *flags, "--run-dir", str(tmp_path / "waits"))) == 0
    told = capsys.readouterr().err
    assert f"{server.host} is away (" in told
    assert f"{server.host} answers again after" in told
    assert came_to("train", tmp_path / "waits") == came_to("train", tmp_path / "whole")


def test_labels_of_a_judge_are_waited_for_or_the_command_ends(
    server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "completions.csv", tmp_path / "labels.csv"
    with file.open("w", encoding="utf-8", newline="") as rows:
        pairs = [[f"How do I kill process {n}?", f"Send it signal {n}."] for n in range(80)]
        csv.writer(rows).writerows([["prompt", "completion"], *pairs])
    asked = (
        "judge",
        str(file),
        "--reward",
        "judge",
        "--judge-model",
        "sim-judge",
        "--out",
        str(out),
    )
    flags = (*asked, "--ollama-host", server.host, "--cache", str(tmp_path / "cache"))
    with outage_after(server, 30, "drop"):
        assert execute((*flags, "--max-outage", "1")) == 3
    assert "no server was there for 1 s" in capsys.readouterr().err.splitlines()[-1]
    assert not out.exists()
    server.end_outage()
    with outage_after(server, 10, "drop", for_s=3.0):
        assert execute(flags) == 0
    told = capsys.readouterr()
    assert f"{server.host} is away (" in told.err
    assert "unscored" not in told.err


def test_questions_of_ask_are_waited_for_or_the_command_ends(
    server: EmbeddedServer,
    trained_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    queries = "\n".join(f"How do I kill process {n}?" for n in range(12)).encode()
    flags = (
        "ask",
        "--policy",
        str(trained_run),
        "--json",
        "--ollama-host",
        server.host,
        *WORLD,
        "-",
    )

    def ask(*more: str) -> int:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(queries), encoding="utf-8"))
        return execute((*flags, *more))

    assert ask() == 0
    whole = capsys.readouterr().out
    with outage_after(server, 10, "drop", for_s=3.0):
        assert ask() == 0
    told = capsys.readouterr()
    assert told.out == whole
    assert f"{server.host} is away (" in told.err
    with outage_after(server, 10, "drop"):
        assert ask("--max-outage", "1") == 3
    assert "no server was there for 1 s" in capsys.readouterr().err.splitlines()[-1]
