"""One run, one folder: its settings, what happened, what was learned.

transitions.jsonl and metrics.jsonl grow line by line; every other file is whole or absent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from records.errors import RunStoppedError, UserError, WrappedError
from records.interrupt import Interrupted
from records.json_lines import MOST_BYTES, JsonLines, read_json_object, read_lines
from records.outputs import PART, check_cache, check_writable, replacing
from records.terminal import write_stderr

CONFIG, LOCK, SERVERS, SUMMARY = "config.toml", ".lock", "servers.json", "summary.json"
MISSIONS, QUERIES, REPLIES = "missions.json", "queries.json", "replies.sqlite"
TRANSITIONS, METRICS = "transitions.jsonl", "metrics.jsonl"
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
_ANOTHER = "name another with --run-dir"
_SEED = re.compile(r"seed-(0|[1-9][0-9]{0,9})")


class ResumableError(UserError):
    """The user can mend it, and then go on with the run."""


class RecordedRun:
    """The folder of a run that is read; nothing is written there.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoint(self) -> Path:
        """All that a resumed run needs beside the files that grow."""
        return self.path / "checkpoints" / "last.pt"

    def read_json(self, name: str, most: int = MOST_BYTES) -> dict[str, Any]:
        """What `RunFolder.write_json` wrote; at most so many bytes.

        Raises:
            UserError: the file is missing or damaged.
        """
        path = self.path / name
        try:
            return read_json_object(path, most)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{str(path)!r} cannot be read ({error}): the run cannot go on; begin a new one"
            ) from error

    def read_transitions(
        self, check: Callable[[Mapping[str, Any]], None]
    ) -> Iterator[dict[str, Any]]:
        """The lines of transitions.jsonl, an unfinished last one left out.

        Args:
            check: raises ValueError for what is no line of it.

        Raises:
            UserError: the file is missing or damaged.
        """
        path = self.path / TRANSITIONS
        try:
            yield from read_lines(path, check)
        except FileNotFoundError as error:
            raise UserError(
                f"{str(path)!r} is not there; "
                "an evaluation keeps its steps with --save-transitions alone"
            ) from error
        except (OSError, ValueError) as error:
            raise UserError(f"{str(path)!r} cannot be read: {error}") from error

    def missing_lines(self, count: int) -> str:
        """What to say if summary.json counts more transitions than were read; else "".

        Args:
            count: how many were read.
        """
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
        path = self.path / SERVERS
        return path.exists() and self.read_json(SERVERS).get("simulated") is True


class RunFolder(RecordedRun):
    """The folder of one run, see `of`; one process at a time writes it.

    Where an error ends the run early, the way out of `with` prints how to go on.

    Args:
        path: the folder: new or empty, or that of the run to go on with.
        resume: whether it is the latter.

    Raises:
        UserError: it cannot be used, or another process writes it.
    """

    transitions: JsonLines
    metrics: JsonLines

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        super().__init__(path)
        self.go_on = ""
        """The line of `records.resume.resume_line`, once it is known; "" prints none."""
        self._is_new = not path.exists()
        self._lock = FileLock(path / LOCK)
        check = check_is_run if resume else check_new_or_empty
        check(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            check(path)  # another process may have been faster
        except Timeout as error:
            raise UserError(_in_use(path)) from error
        except UserError:
            self._lock.release()
            raise
        except OSError as error:
            do = "make it writable" if resume else _ANOTHER
            raise UserError(_unwritable(path, error, do)) from error

    @classmethod
    def of(
        cls,
        command: str,
        config: Any,  # noqa: ANN401 - of any command
        seed: str = "",
    ) -> Self:
        """The run to resume, the folder that is named, or `runs/<command>-<time>-<seed>`.

        Runs that begin in the same second are numbered: `…-2`.

        Args:
            command: its name, as in `mutagym eval`.
            config: says `resume`, `run_dir` and `seed`.
            seed: a word in the place of the config's seed, for a run of several.

        Raises:
            UserError: see RunFolder.
        """
        if named := config.resume or config.run_dir:
            return cls(named, resume=config.resume is not None)
        name = f"{command}-{time.strftime('%Y%m%d-%H%M%S')}-{seed or config.seed}"
        path = Path("runs")
        try:
            path.mkdir(exist_ok=True)
            for number in count(1):
                path = Path("runs") / (name if number == 1 else f"{name}-{number}")
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    break
        except OSError as error:
            raise UserError(_unwritable(path, error, _ANOTHER)) from error
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
        """Open the files that grow.

        Args:
            transitions: lines of transitions.jsonl that are done; whole rows behind them are played
                again.
            sha256: the hash of these lines; "" where there are none.
            metrics: lines of metrics.jsonl that are done; the rest is dropped.
            lanes: lines of a row of transitions.jsonl; 0 where there is nothing to play again.
            check: raises ValueError for what is no line of transitions.jsonl.

        Raises:
            UserError: the lines that are done are not all there, or are others.
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
            again = "go on" if self._has_begun() else "try again"
            return ResumableError(f"{ended}: mend that, then {again}")
        details = self.path / "error.txt"
        details.write_text("".join(traceback.format_exception(ended)), "utf-8", "backslashreplace")
        return RunStoppedError(f"{type(ended).__name__}: {ended} (details: {details})")

    def close(self) -> None:
        """Close the files that grow, and leave the folder to others; a run may not have begun."""
        for lines in ("transitions", "metrics"):
            if hasattr(self, lines):
                with contextlib.suppress(OSError):  # a full disk, which was told when it was met
                    getattr(self, lines).close()
        begun = self._has_begun()
        for item in [] if begun else [item for item in self.path.iterdir() if item.is_file()]:
            item.unlink(missing_ok=True)  # all that is in it was made here
        self._lock.release()
        if self._is_new and not begun:
            with contextlib.suppress(OSError):  # another process has it by now
                self.path.rmdir()

    def _has_begun(self) -> bool:
        return (self.path / CONFIG).exists()

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
    found = [path for path in run.glob("seed-*") if _SEED.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("seed-")))


@contextlib.contextmanager
def read_lock(run: Path) -> Iterator[None]:
    """Within `with`: no process writes the run, or that of one of its seeds; many may read it.

    Raises:
        UserError: one writes it just now.
    """
    with contextlib.ExitStack() as held:
        for path in (run, *seed_folders(run)):
            try:
                lock = held.enter_context((path / LOCK).open("rb"))
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # FileLock itself would write it
            except BlockingIOError:
                raise UserError(_in_use(path)) from None
            except OSError:  # a copy without its lock
                continue
        yield


def check_places(config: Any) -> None:  # noqa: ANN401 - of any command
    """Check the folders and files that a command is given, before anything is made.

    Args:
        config: says `resume`, `run_dir` (which does not count beside `resume`), `json` and `cache`.

    Raises:
        UserError: one of them cannot be used.
    """
    if config.resume:
        check_is_run(config.resume)
    elif config.run_dir:
        check_new_or_empty(config.run_dir)
    check_writable(config.json, apart_from=config.resume or config.run_dir)
    check_cache(config.cache)


def check_is_run(path: Path, named_by: str = "--resume") -> None:
    """Check that there is a run, and that nothing in its folder stands for another place.

    Raises:
        UserError: there is none, or it holds links, pipes or devices; `named_by` is in the message.
    """
    if not (path / CONFIG).is_file():
        raise UserError(
            f"{named_by} names {str(path)!r}; expected the folder of a run, with its config.toml"
        )
    for run in (path, *seed_folders(path)):
        for folder in (run, run / "checkpoints", run / "tb"):
            for item in folder.iterdir() if folder.is_dir() else ():
                if item.is_symlink() or not (item.is_file() or item.is_dir()):
                    raise UserError(
                        f"{str(item)!r} is a link, a pipe or a device, which no run makes: "
                        "delete it, or put the file itself there"
                    )


def check_new_or_empty(path: Path) -> None:
    """Check that a new run may be put here; what a run left that was killed early is nothing.

    Raises:
        UserError: there is a file, or a folder that holds something.
    """
    left_over = {LOCK, QUERIES, MISSIONS, REPLIES, f"{REPLIES}-wal", f"{REPLIES}-shm"}

    def is_left_over(item: Path) -> bool:
        is_ours = item.name in left_over or item.name.startswith(PART)
        return is_ours and item.is_file() and not item.is_symlink()

    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not ((path / LOCK).is_file() and all(map(is_left_over, path.iterdir()))):
        fault = "is not empty" if path.is_dir() else "is not a folder"
        raise UserError(
            f"run folder {str(path)!r} {fault}; expected a new or empty folder: {_ANOTHER}"
        )


def _unwritable(path: Path, error: OSError, do: str) -> str:
    return f"run folder {str(path)!r} cannot be written: {error.strerror}; {do}"


def _in_use(path: Path) -> str:
    return f"run folder {str(path)!r} is in use by another process: wait for it, or stop it"


def _toml(value: Any) -> str:  # noqa: ANN401 - a TOML value
    """JSON writes strings, numbers, booleans and lists as TOML does, but for the character DEL."""
    plain = list(value) if isinstance(value, tuple) else value
    return json.dumps(plain, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
