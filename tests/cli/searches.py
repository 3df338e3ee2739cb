"""Small runs of `mutagym evolve`, `select` and `optimize`, and what is in their folders."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "evolve": (
        *("--population-size", "6", "--max-generations", "3", "--panel-size", "15"),
        *("--held-out", "0.2", "--elite-size", "2", "--rate-limit-per-minute", "0"),
    ),
    "select": ("--models", "sim-solver,sim-solver-large"),
    "optimize": (
        *("--steps", "20", "--num-candidates", "2", "--update-interval", "5", "--batch-size", "4"),
        *("--encoder", "hashing:32", "--held-out", "0.2"),
    ),
}
"""A small search of each command."""
ROLES = {"evolve": "target,mutator", "select": "mutator", "optimize": "target,mutator,judge"}
MODELS = {"target": "sim-solver", "mutator": "sim-mutator", "judge": "sim-judge"}


def one_of_them(kept: str) -> list[Any]:
    """The commands, of which `make test` runs this one and `make soak` the others."""
    others = (pytest.param(other, marks=pytest.mark.soak) for other in COMMANDS if other != kept)
    return [kept, *others]


def arguments(command: str, host: str, folder: Path, *flags: str) -> list[str]:
    """The command line of a small search, whose flags `flags` override."""
    roles = [f"--{role}-model={MODELS[role]}" for role in ROLES[command].split(",")]
    small = [*roles, *(f"{name}={value}" for name, value in pairs(COMMANDS[command]))]
    kept = [each for each in small if each.partition("=")[0] not in flags]
    return [command, "--ollama-host", host, *kept, "--run-dir", str(folder), *flags]


def pairs(flags: tuple[str, ...]) -> list[tuple[str, str]]:
    """Flags with their values."""
    return list(zip(flags[::2], flags[1::2], strict=True))


def search(command: str, host: str, folder: Path, *flags: str, code: int = 0) -> Path:
    """Run a small search; returns its folder."""
    assert execute(arguments(command, host, folder, *flags)) == code
    return folder


def resume(command: str, folder: Path, *flags: str) -> Path:
    """Go on with a search of ours; returns its folder."""
    assert execute((command, "--resume", str(folder), "--trust-run", *flags)) == 0
    return folder


class WholeSearches(dict[str, Path]):
    """The folders of small searches by their commands, each run when it is first wanted.

    Tests read them; what would write one goes on with a copy.
    """

    def __init__(self, host: str, folder: Path) -> None:
        super().__init__()
        self.host, self._folder = host, folder

    def __missing__(self, command: str) -> Path:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # no part of a test
            self[command] = search(command, self.host, self._folder / command)
        return self[command]

    def copy_of(self, command: str, to: Path) -> Path:
        """A folder of the test's own with all that the search left."""
        return Path(shutil.copytree(self[command], to))


def replies(folder: Path) -> int:
    """How many replies the run has."""
    with closing(sqlite3.connect(folder / "replies.sqlite")) as database:
        rows = database.execute("SELECT count(*) FROM replies WHERE error IS NULL")
        count: int = rows.fetchone()[0]
    return count


def requests(folder: Path, model: str = "") -> list[dict[str, Any]]:
    """The requests whose replies a run has, of models whose names begin so; there are some."""
    with closing(sqlite3.connect(folder / "replies.sqlite")) as database:
        rows = database.execute("SELECT model, request FROM replies").fetchall()
    found = [json.loads(request) for name, request in rows if name.startswith(model)]
    assert found
    return found
