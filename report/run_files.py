"""Reads a run folder, whoever wrote it: what is damaged or missing is left out, and said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from envs.transitions import check_transition
from records.errors import UserError
from records.json_lines import read_json_object, read_lines
from records.run_folder import (
    COMMAND_KEYS,
    CONFIG,
    METRICS,
    MISSIONS,
    SERVERS,
    SUMMARY,
    TRANSITIONS,
    check_is_run,
    seed_folders,
)
from records.settings import read_toml

T = TypeVar("T")
MOST_RESULTS_BYTES = 2**28
"""Bytes of results.json and report.json, which grow with the evaluation: 256 MiB."""
DAMAGED = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
"""What is raised where a file is not what a run writes."""


@dataclass(kw_only=True)
class RunFiles:
    """What is read of one run folder; see `read_run`."""

    path: Path
    name: str
    command: str
    config: dict[str, Any]
    summary: dict[str, Any] = field(default_factory=dict)
    servers: dict[str, Any] = field(default_factory=dict)
    missions: dict[str, Any] = field(default_factory=dict)
    """Those of an evaluation, by name and in their order."""
    results: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is left out, and why: a line each."""

    @property
    def simulated(self) -> bool | None:
        """Whether its figures are of the simulator; None where nothing says so."""
        for said in (self.servers, self.summary, self.results, self.report):
            if isinstance(told := said.get("simulated"), bool):
                return told
        return True if self.config.get("ollama-host") == ["embedded"] else None

    def note(self, text: str) -> None:
        """Say it, once."""
        if text not in self.notes:
            self.notes.append(text)

    def attempt(self, what: str, build: Callable[[], T], default: T) -> T:
        """What `build` returns; where a file is not what a run writes, the default and a note."""
        try:
            return build()
        except FileNotFoundError as error:
            self.notes.append(f"{what}: left out, there is no {Path(str(error.filename)).name}.")
        except DAMAGED as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            self.notes.append(f"{what}: left out, a file is damaged ({why:.200}).")
        return default

    def transitions(self) -> Iterator[dict[str, Any]]:
        """The lines of transitions.jsonl, an unfinished last one left out.

        Raises:
            OSError: there is no such file.
            ValueError: a line is no transition.
        """
        return read_lines(self.path / TRANSITIONS, check_transition)


def runs_in(folder: Path) -> list[Path]:
    """The runs of a folder: those of its seeds, where it is a training of several, else itself.

    Raises:
        UserError: it is no run folder.
    """
    check_is_run(folder, "RUN")
    return seed_folders(folder) or [folder]


def read_run(path: Path, name: str) -> RunFiles:
    """What a run folder holds, but for transitions and replies, which are read as they are needed.

    Raises:
        UserError: config.toml cannot be read, or is of no command that is known.
    """
    config = read_toml(path / CONFIG)
    command = next((command for command, key in COMMAND_KEYS.items() if key in config), None)
    if command is None:
        raise UserError(
            f"{str(path / CONFIG)!r} is of no command that writes run folders; expected one of train, eval, "
            "evolve, select and optimize"
        )
    run = RunFiles(path=path, name=name, command=command, config=config)
    run.summary = run.attempt("Summary", lambda: read_json_object(path / SUMMARY), {})
    if (path / SERVERS).exists():  # else killed before it was written
        run.servers = run.attempt("Servers", lambda: read_json_object(path / SERVERS), {})
    if command not in {"train", "eval"}:
        run.metrics = run.attempt("Metrics by round", lambda: list(read_lines(path / METRICS)), [])
    if command != "train":
        most = MOST_RESULTS_BYTES
        run.results = run.attempt("Results", lambda: read_json_object(path / "results.json", most), {})
    if command == "eval":
        run.missions = run.attempt("Missions", lambda: read_json_object(path / MISSIONS), {})
        run.report = run.attempt("Report", lambda: read_json_object(path / "report.json", most), {})
    return run
