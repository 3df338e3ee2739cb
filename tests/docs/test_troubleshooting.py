"""Every message of docs/troubleshooting.md is what the program prints where the page says so."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from cli.main import execute
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.docs.snippets import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SECTIONS = {
    title: [
        line
        for block in re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    for title, text in re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
}
"""The messages under each heading."""
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def one_slot() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(Settings(slots=1, time_scale=0.02)) as server:
        yield server


@pytest.fixture
def server(
    one_slot: EmbeddedServer, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EmbeddedServer]:
    """A server that is well before and after each case; a run of the reader's and one of somebody else's."""
    shutil.copytree(trained_run, tmp_path / "mine")
    shutil.copytree(trained_run, tmp_path / "theirs")
    monkeypatch.chdir(tmp_path)
    yield one_slot
    one_slot.set_faults([])
    one_slot.end_outage()


def train(host: str, *flags: str) -> None:
    small = (
        "--encoder",
        "hashing",
        "--num-steps",
        "8",
        "--num-env-steps",
        "128",
        "--run-dir",
        "tried",
    )
    execute(("train", "--ollama-host", host, *small, *flags))


def ask(host: str, *flags: str, model: str = "sim-model") -> None:
    models = ("--target-model", model, "--mutator-model", "sim-mutator")
    execute(
        (
            "ask",
            "--policy",
            "mine",
            "--ollama-host",
            host,
            *models,
            *flags,
            "How do I kill a process?",
        )
    )


def slow(_: EmbeddedServer) -> None:
    """Replies that take as long as it needs to count slots on a busy machine, too."""
    with EmbeddedServer(Settings(slots=1, time_scale=0.15)) as server:
        train(server.host, "--target-model", "sim-model")


def faulty(status: int) -> Callable[[EmbeddedServer], None]:
    """One call to a server that answers with an error."""

    def run(server: EmbeddedServer) -> None:
        server.set_faults([{"kind": "status", "status": status, "rate": 1.0}])
        ask(server.host, "--call-attempts", "1")

    return run


def late(server: EmbeddedServer) -> None:
    server.set_outage("hang", at="all")
    train(server.host, "--target-model", "sim-model", "--call-timeout-s", "0.5")


def away(server: EmbeddedServer) -> None:
    server.set_outage("drop", at="calls")
    train(server.host, "--target-model", "sim-model", "--max-outage", "2")


def broken(server: EmbeddedServer) -> None:
    server.set_faults([{"kind": "status", "rate": 1.0}])
    train(server.host, "--target-model", "sim-model", "--call-attempts", "1")


def no_column(server: EmbeddedServer) -> None:
    Path("odd.csv").write_text("number,colour\n1,red\n", encoding="utf-8")
    train(server.host, "--target-model", "sim-model", "--queries", "odd.csv")


def somebody_elses(_: EmbeddedServer) -> None:
    execute(("ask", "--policy", "theirs", "How do I kill a process?"))


def taken(server: EmbeddedServer) -> None:
    Path("tried").mkdir()
    with FileLock("tried/.lock"):
        train(server.host, "--target-model", "sim-model")


def cut(server: EmbeddedServer) -> None:
    ask(server.host, "--num-predict", "3")
    ask(
        server.host,
        "--num-predict",
        "3",
        "--think",
        "on",
        "--think-budget",
        "1",
        model="sim-thinker",
    )


def too_long(server: EmbeddedServer) -> None:
    ask(server.host, "--num-ctx", "2", model="sim-target")


CASES: dict[str, Callable[[EmbeddedServer], None]] = {
    "Connection refused": lambda _: train(NOBODY, "--target-model", "m"),
    "The model is not pulled": lambda server: train(server.host, "--target-model", "llama3.2"),
    "No model is named": lambda server: train(server.host),
    "A flag or a key that there is not": lambda server: train(server.host, "--num-stepz", "3"),
    "A query file without a column of prompts": no_column,
    "The folder is taken": taken,
    "The run names a host, code or a file": somebody_elses,
    "One slot only": slow,
    "The server is busy": faulty(503),
    "The server fails, or is out of memory": faulty(500),
    "A call takes too long": late,
    "The server went away": away,
    "Many steps are unscored": broken,
    "A reply is cut": cut,
    "A prompt is too long": too_long,
}


@pytest.mark.parametrize("title", list(CASES))
def test_a_message_is_what_is_printed(
    title: str, server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    CASES[title](server)
    out = capsys.readouterr()
    for message in SECTIONS[title]:
        pattern = ".*".join(map(re.escape, message.split("…")))
        assert re.search(pattern, out.err + out.out), f"{message}\nis not in\n{out.err}{out.out}"


def test_every_message_is_provoked() -> None:
    assert {title for title, messages in SECTIONS.items() if messages} == set(CASES)
