"""Small runs of `mutagym train`, and what a run of any command left in its folder."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from records.json_lines import JsonLines
from simulator.process import EmbeddedServer

WORLD = (
    *("--target-model", "sim-target", "--mutator-model", "sim-mutator"),
    *("--intent-threshold", "0.1"),
)
PASSES = ("--ppo-epoch", "2")
"""Passes an update: enough for weights that differ where anything does."""
LASTING = {"kind": "status", "status": 500, "rate": 0.1, "first": 1_000_000}
"""Strikes an equal request each time or never, so that equal runs meet it in equal places."""
HASHES = ("transitions_sha256", "weights_sha256")


def train(host: str, folder: Path, *flags: str) -> int:
    """Begin a run; its exit code."""
    return execute(("train", "--ollama-host", host, "--run-dir", str(folder), *flags))


def resume(folder: Path, *flags: str) -> int:
    """Go on with a run of ours, at the host that it names."""
    return execute(("train", "--resume", str(folder), "--trust-run", *flags))


@contextmanager
def faults(server: EmbeddedServer, *played: dict[str, Any]) -> Iterator[None]:
    """Within `with`: the server plays these faults."""
    server.set_faults(played)
    try:
        yield
    finally:
        server.set_faults([])


@contextmanager
def before_call(
    owner: type, name: str, number: int, do: Callable[[], object], argument: str = ""
) -> Iterator[None]:
    """Within `with`: something is done, once, before a call of a method, on the thread of the call.

    Args:
        owner: the method's class.
        name: the method.
        number: which call it is, from 1 on.
        do: what is done.
        argument: a key that the first argument has in calls that count; "": all calls count.
    """
    method, numbers = getattr(owner, name), count(1)

    def counted(self: object, *args: Any, **options: Any) -> Any:
        if (not argument or argument in args[0]) and next(numbers) == number:
            do()
        return method(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, counted)
        yield


def at_line(number: int, do: Callable[[], object]) -> Any:
    """Within `with`: something is done before a line of transitions.jsonl is written, from 1 on.

    The lines of several runs are counted together.
    """
    return before_call(JsonLines, "write", number, do, argument="lane")


def send_signal(signum: int = signal.SIGINT) -> None:
    """Send this process a signal, as Ctrl-C does."""
    os.kill(os.getpid(), signum)


def interrupted_at(host: str, folder: Path, written: int, *flags: str) -> None:
    """A run that Ctrl-C stops once so many transitions are written."""
    with at_line(written + 1, send_signal):
        assert train(host, folder, *flags) == 130


def read(folder: Path, name: str = "results.json") -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / name).read_text())
    return data


def summary(folder: Path) -> dict[str, Any]:
    return read(folder, "summary.json")


def outcome(folder: Path, *names: str) -> dict[str, Any]:
    """What equal runs have in common: their hashes, and more of their summaries."""
    found = summary(folder)
    return {name: found[name] for name in (*HASHES, *names)}


def lines(folder: Path, name: str = "transitions.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without the numbers in which two equal runs may differ."""
    timed = ("time/", "calls/")
    return [
        {k: v for k, v in line.items() if not k.startswith(timed)}
        for line in lines(folder, "metrics.jsonl")
    ]
