"""One run, one folder: its settings, what happened, what was learned.

transitions.jsonl and metrics.jsonl grow line by line; every other file is whole or absent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from records.errors import RunStoppedError, UserError, WrappedError
from records.interrupt import Interrupted
from records.json_lines import MOST_BYTES, JsonLines, read_json_object, read_lines
from records.outputs import PART, check_cache, check_writable, replacing
from records.terminal import write_stderr

CONFIG, LOCK, SERVERS, SUMMARY = "config.toml", ".lock", "servers.json", "summary.json"
MISSIONS, QUERIES, REPLIES = "missions.json", "queries.json", "replies.sqlite"
TRANSITIONS, METRICS, SCREEN = "transitions.jsonl", "metrics.jsonl", "screen.jsonl"
COPIED = frozenset(("queries", "guard-queries", "mission"))
"""Flags of files that a run folder has a copy of: on --resume the copy is read."""
COMMAND_KEYS = {
    "train": "num-env-steps",
    "eval": "agents",
    "evolve": "max-generations",
    "select": "selector",
    "optimize": "num-candidates",
}
"""For each command that writes a run folder, a key that its config.toml alone has."""


class ResumableError(UserError):
    """The user can mend it, and then go on with the run."""


class RecordedRun:
    """The folder of a run that is read; a file that is missing or damaged is a UserError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoint(self) -> Path:
        """All that a resumed run needs beside the files that grow."""
        return self.path / "checkpoints" / "last.pt"

    def read_json(self, name: str, most: int = MOST_BYTES) -> dict[str, Any]:
        """The object in a file of at most so many bytes."""
        with _reading(self.path / name) as path:
            return read_json_object(path, most)

    def read_transitions(
        self, check: Callable[[Mapping[str, Any]], None]
    ) -> Iterator[dict[str, Any]]:
        """The lines of transitions.jsonl, less an unfinished last one; see `read_lines`."""
        if not (self.path / TRANSITIONS).exists():
            raise UserError(
                f"{str(self.path / TRANSITIONS)!r} is not there; "
                "an evaluation keeps its steps with --save-transitions alone"
            )
        with _reading(self.path / TRANSITIONS) as path:
            yield from read_lines(path, check)

    def missing_lines(self, count: int) -> str:
        """What to say if summary.json counts more transitions than were read; else ""."""
        written = self.summary().get("env_steps")
        if not isinstance(written, int) or written <= count:
            return ""
        return (
            f"{str(self.path / TRANSITIONS)!r} has {count} whole lines, and {SUMMARY} counts "
            f"{written}: lines were cut off or damaged"
        )

    def summary(self) -> dict[str, Any]:
        """What summary.json says; nothing of a run that was killed before it wrote one."""
        return self.read_json(SUMMARY) if (self.path / SUMMARY).exists() else {}

    @property
    def simulated(self) -> bool:
        """Whether its servers are the simulator, as it wrote down when it began."""
        is_there = (self.path / SERVERS).exists()
        return is_there and self.read_json(SERVERS).get("simulated") is True


class RunFolder(RecordedRun):
    """The folder of one run, see `of`; one process at a time writes it.

    The folder is new or empty or, with `resume`, that of the run to go on with. One that cannot be
    used, or that another process writes, is a UserError. Where an error ends the run early, the way
    out of `with` prints how to go on.
    """

    transitions: JsonLines
    metrics: JsonLines

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        super().__init__(path)
        self.go_on = ""
        """The line of `records.resume.resume_line`, once it is known; "" prints none."""
        self._is_new = not path.exists()
        check = check_is_run if resume else check_new_or_empty
        check(path)
        with _making(path):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / LOCK).open("ab")
            _lock(self._lock, fcntl.LOCK_EX)
        try:
            check(path)  # another process may have been faster
        except UserError:
            self._unlock()
            raise

    @classmethod
    def of(
        cls,
        command: str,
        config: Any,  # noqa: ANN401 - of any command
        seed: str = "",
    ) -> Self:
        """The run that a config names by `resume` or `run_dir`, or `runs/<command>-<time>-<seed>`.

        `seed` stands in the place of the config's. Runs that begin in the same second are numbered:
        `…-2`.
        """
        if named := config.resume or config.run_dir:
            return cls(named, resume=config.resume is not None)
        first = Path("runs", f"{command}-{time.strftime('%Y%m%d-%H%M%S')}-{seed or config.seed}")
        with _making(first.parent):
            first.parent.mkdir(exist_ok=True)
        for number in count(1):
            path = first if number == 1 else first.with_name(f"{first.name}-{number}")
            with _making(path), contextlib.suppress(FileExistsError):
                path.mkdir()
                break
        folder = cls(path)
        folder._is_new = True
        return folder

    def open_lines(
        self,
        *,
        transitions: int = 0,
        sha256: str = "",
        metrics: int = 0,
        lanes: int = 0,
        check: Callable[[Mapping[str, Any]], None] = lambda _record: None,
    ) -> None:
        """Open the files that grow, of which so many lines are done; see `JsonLines`.

        `sha256` is the hash of those of transitions.jsonl [not checked]; whole rows of so many
        `lanes` behind them are played again [none are]. Lines that are not all there, or are
        others, are a UserError.
        """
        path = self.path / TRANSITIONS
        self.transitions = JsonLines(path, done=transitions, row=lanes, check=check)
        if sha256 and self.transitions.sha256 != sha256:
            raise UserError(
                f"the first {transitions} lines of {str(path)!r} are not those that the run wrote: "
                "put them back, or begin a new run"
            )
        self.metrics = JsonLines(self.path / METRICS, done=metrics)

    @property
    def tensorboard(self) -> Path:
        """Where TensorBoard's event files are."""
        return self.path / "tb"

    @property
    def closing_message(self) -> str:
        """Where it is and how to look at it: the last lines that a command prints."""
        ways = [f"tensorboard --logdir {self.path}"] if self.tensorboard.is_dir() else []
        ways += [f"mutagym report {self.path}"]
        return f"run folder: {self.path}\nlook at it: " + "\n        or: ".join(ways)

    def begin(self, table: Mapping[str, Any], *, simulated: bool) -> None:
        """Write config.toml, with which a run has begun, and whether the servers are the simulator.

        Settings that are None are left out.
        """
        lines = (f"{key} = {_toml(value)}\n" for key, value in table.items() if value is not None)
        self.write_text(CONFIG, "".join(lines))
        self.write_json(SERVERS, {"simulated": simulated})

    @property
    def has_begun(self) -> bool:
        """Whether it can be resumed."""
        return (self.path / CONFIG).exists()

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Write `name` as indented JSON."""
        self.write_text(name, json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a file in UTF-8."""
        with replacing(self.path / name) as part:
            part.write_text(text, encoding="utf-8")

    def reported(self, ended: BaseException) -> BaseException:
        """What to raise at the end of a run; an unforeseen error's traceback goes to error.txt."""
        if isinstance(ended, WrappedError) and ended.__cause__:
            return self.reported(ended.__cause__)
        if isinstance(ended, Interrupted | RunStoppedError | ResumableError):
            return ended
        if isinstance(ended, OSError):
            again = "go on" if self.has_begun else "try again"
            return ResumableError(f"{ended}: mend that, then {again}")
        details = self.path / "error.txt"
        details.write_text("".join(traceback.format_exception(ended)), "utf-8", "backslashreplace")
        return RunStoppedError(f"{type(ended).__name__}: {ended} (details: {details})")

    def close(self) -> None:
        """Close the files that grow, and leave the folder to others; a run may not have begun."""
        for lines in ("transitions", "metrics"):
            if hasattr(self, lines):
                with contextlib.suppress(OSError):  # a full disk, an error when it was met
                    getattr(self, lines).close()
        has_begun = self.has_begun
        for item in [] if has_begun else [item for item in self.path.iterdir() if item.is_file()]:
            item.unlink(missing_ok=True)  # all that is in it was made here
        self._unlock()
        if self._is_new and not has_begun:
            with contextlib.suppress(OSError):  # another process has it by now
                self.path.rmdir()

    def _unlock(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)  # a forked process may have the file open, too
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is None or isinstance(error, BrokenPipeError):
            return
        ended = self.reported(error) if isinstance(error, OSError) else error
        if self.go_on and (not isinstance(ended, UserError) or isinstance(ended, ResumableError)):
            write_stderr(self.go_on)
        if ended is not error:
            raise ended from error


def seed_folder(run: Path, seed: int) -> Path:
    """Where the run of one seed of a training of several is."""
    return run / f"seed-{seed}"


def seed_folders(run: Path) -> list[Path]:
    """Those that are there, in the order of their seeds; none where the run is of one alone."""
    seeds = [path.name.removeprefix("seed-") for path in run.glob("seed-*") if path.is_dir()]
    made = [int(seed) for seed in seeds if seed.isdecimal() and str(int(seed)) == seed]
    return [seed_folder(run, seed) for seed in sorted(made)]


@contextlib.contextmanager
def read_lock(run: Path) -> Iterator[None]:
    """Within `with`: no process writes the run or that of a seed; a UserError if one does."""
    with contextlib.ExitStack() as held:
        for path in (run, *seed_folders(run)):
            with contextlib.suppress(OSError):  # a copy without its lock, a share that has none
                _lock(held.enter_context((path / LOCK).open("rb")), fcntl.LOCK_SH)
        yield


def check_places(config: Any) -> None:  # noqa: ANN401 - of any command
    """Check `resume`, else `run_dir`, `json` and `cache` of a config, before anything is made."""
    if config.resume:
        check_is_run(config.resume)
    elif config.run_dir:
        check_new_or_empty(config.run_dir)
    check_writable(config.json, apart_from=config.resume or config.run_dir)
    check_cache(config.cache)


def check_is_run(path: Path, named_by: str = "--resume") -> None:
    """Check that there is a run, and that nothing in its folder stands for another place.

    No run, and links, pipes or devices in it, are a UserError; `named_by` is in the message.
    """
    if not (path / CONFIG).is_file():
        raise UserError(
            f"{named_by} names {str(path)!r}; expected the folder of a run, with its config.toml"
        )
    for item in path.rglob("*"):
        is_plain = item.is_file() or item.is_dir() or not item.exists()  # a run may be under way
        if item.is_symlink() or not is_plain:
            raise UserError(
                f"{str(item)!r} is a link, a pipe or a device, which no run makes: "
                "delete it, or put the file itself there"
            )


def check_new_or_empty(path: Path) -> None:
    """Check that a new run may be put here; what a run left that was killed early is nothing."""
    early = {LOCK, QUERIES, MISSIONS, REPLIES, f"{REPLIES}-wal", f"{REPLIES}-shm"}
    items = list(path.iterdir()) if path.is_dir() else []
    is_left_over = (path / LOCK).is_file() and all(
        (item.name in early or item.name.startswith(PART))
        and item.is_file()
        and not item.is_symlink()
        for item in items
    )
    if (items and not is_left_over) or path.is_file():
        fault = "is not a folder" if path.is_file() else "is not empty"
        raise UserError(
            f"run folder {str(path)!r} {fault}; expected a new or empty folder: "
            "name another with --run-dir"
        )


def _lock(file: IO[bytes], kind: int) -> None:
    """Lock the file of a run for its writer or a reader; a UserError if another process has it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        path = str(Path(file.name).parent)
        raise UserError(
            f"run folder {path!r} is in use by another process: wait for it, or stop it"
        ) from None


@contextlib.contextmanager
def _making(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"run folder {str(path)!r} cannot be written: {error.strerror}; "
            "make it writable, or name another with --run-dir"
        ) from error


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[Path]:
    try:
        yield path
    except (OSError, ValueError) as error:
        raise UserError(
            f"{str(path)!r} cannot be read ({error}): put it back, or begin a new run"
        ) from error


def _toml(value: Any) -> str:  # noqa: ANN401 - a TOML value
    """JSON writes strings, numbers, booleans and lists as TOML does, but for the character DEL."""
    plain = list(value) if isinstance(value, tuple) else value
    return json.dumps(plain, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
