"""Small runs of `mutagym train`, and what a run of any command left in its folder."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

from cli.main import execute

WORLD = ("--target-model", "sim-target", "--mutator-model", "sim-mutator", "--intent-threshold", "0.1")
PASSES = ("--ppo-epoch", "2")
"""Passes an update: enough for weights that differ where anything does."""


def train(host: str, folder: Path, *flags: str) -> int:
    """Begin a run; its exit code."""
    return execute(("train", "--ollama-host", host, "--run-dir", str(folder), *flags))


def resume(folder: Path, *flags: str) -> int:
    """Go on with a run of ours, at the host that it names."""
    return execute(("train", "--resume", str(folder), "--trust-run", *flags))


def interrupted_at(host: str, folder: Path, written: int, *flags: str) -> None:
    """A run that a signal stops once so many transitions are written."""
    over = threading.Event()

    def watch() -> None:
        path = folder / "transitions.jsonl"
        while not over.wait(0.001):
            if path.exists() and path.read_bytes().count(b"\n") >= written:
                os.kill(os.getpid(), signal.SIGINT)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert train(host, folder, *flags) == 130
    finally:
        over.set()
        watcher.join()


def read(folder: Path, name: str = "results.json") -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / name).read_text())
    return data


def summary(folder: Path) -> dict[str, Any]:
    return read(folder, "summary.json")


def lines(folder: Path, name: str = "transitions.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what two equal runs may tell otherwise."""
    timed = ("time/", "calls/")
    return [
        {k: v for k, v in line.items() if not k.startswith(timed)} for line in lines(folder, "metrics.jsonl")
    ]
