"""One run, one folder: its settings, what happened, what was learned.

The two `.jsonl` files grow line by line; every other file is whole or absent.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from records.errors import RunStoppedError, UserError, WrappedError
from records.interrupt import Interrupted
from records.json_lines import JsonLines, OnTorn, read_lines
from records.reading import MOST_BYTES, read_json_object
from records.seed_folders import seed_folders
from records.settings import STDOUT
from records.trust import CONFIG, MARK, marks_for, written_in

LOCK = ".lock"
"""Held by the process that writes the folder."""
REPLIES = "replies.sqlite"
"""Every reply of the run, see `ollama_utils.reply_log`."""
SERVERS = "servers.json"
"""Written when the run begins: whether its servers are the simulator."""
COMMAND_KEYS = {
    "train": "num-env-steps",
    "eval": "agents",
    "evolve": "max-generations",
    "select": "selector",
    "optimize": "num-candidates",
}
"""For each command that writes a run folder, a key that its config.toml alone has."""
MISSIONS = "missions.json"
"""The missions of an evaluation, each with all its settings."""
SUMMARY = "summary.json"
"""What a run came to, and what it cost."""
PART = ".part-"
"""Begins the name of a file that is not whole yet."""


def _in_use(path: Path) -> str:
    return f"run folder {str(path)!r} is in use by another process: wait for it, or stop it"


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
        self,
        check: Callable[[Mapping[str, Any]], None],
        on_torn: OnTorn = lambda _number, _is_last: None,
    ) -> Iterator[dict[str, Any]]:
        """The lines of transitions.jsonl, up to the first that is torn.

        Args:
            check: raises ValueError for what is no line of it.
            on_torn: told of the torn line, where there is one.

        Raises:
            UserError: the file is missing or damaged.
        """
        path = self.path / "transitions.jsonl"
        try:
            yield from read_lines(path, check, on_torn)
        except FileNotFoundError as error:
            raise UserError(
                f"{str(path)!r} is not there; an evaluation keeps its steps with --save-transitions alone"
            ) from error
        except OSError as error:
            raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UserError(str(error)) from error

    def missing_lines(self, count: int) -> str:
        """What to say where summary.json counts more lines of transitions.jsonl than were read, or "".

        Args:
            count: the lines that were read.

        Raises:
            UserError: summary.json is damaged.
        """
        written = self.summary().get("env_steps")
        if not isinstance(written, int) or written <= count:
            return ""
        return (
            f"{str(self.path / 'transitions.jsonl')!r} has {count} whole lines, and {SUMMARY} counts "
            f"{written}: lines were cut off or damaged"
        )

    def summary(self) -> dict[str, Any]:
        """What summary.json says; nothing of a run that was killed before it wrote one.

        Raises:
            UserError: the file is damaged.
        """
        return self.read_json(SUMMARY) if (self.path / SUMMARY).exists() else {}

    @property
    def simulated(self) -> bool:
        """Whether its servers are the simulator, which a run also says that was killed.

        Raises:
            UserError: a file is damaged.
        """
        told = self.read_json(SERVERS) if (self.path / SERVERS).exists() else self.summary()
        return told.get("simulated") is True


@contextlib.contextmanager
def read_lock(run: Path) -> Iterator[None]:
    """Within `with`: no process writes the run, or the run of one of its seeds; many may read it.

    Raises:
        UserError: one writes it just now.
    """
    with contextlib.ExitStack() as held:
        for path in (run, *seed_folders(run)):
            _share_lock(path, held)
        yield


def _share_lock(path: Path, held: contextlib.ExitStack) -> None:
    import fcntl

    try:
        lock = held.enter_context((path / LOCK).open("rb"))
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # FileLock itself would write the file
    except BlockingIOError:
        raise UserError(_in_use(path)) from None
    except OSError:  # a copy that came without its lock
        return


class RunFolder(RecordedRun):
    """The folder of one run, see `of`; one process at a time writes it.

    Args:
        path: the folder: new or empty, or that of the run to go on with.
        resume: whether it is the latter.

    Raises:
        UserError: another process writes the folder; it cannot be made; a new run's holds something
            already, or a resumed one's holds no run.
    """

    transitions: JsonLines
    metrics: JsonLines

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        super().__init__(path)
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
            do = "make it writable" if resume else "name another with --run-dir"
            raise UserError(f"run folder {str(path)!r} cannot be written: {error.strerror}; {do}") from error

    @classmethod
    def of(cls, command: str, *, resume: Path | None, run_dir: Path | None, seed: int | str) -> Self:
        """The run to resume, else the folder that the user named, else `runs/<command>-<time>-<seed>`.

        Of several seeds `seed` is a word. Runs that begin in the same second are numbered: `…-2`.

        Raises:
            UserError: see RunFolder.
        """
        named = resume or run_dir
        name = f"{command}-{time.strftime('%Y%m%d-%H%M%S')}-{seed}"
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        new = next(path for path in map(Path("runs").joinpath, names) if not path.exists())
        return cls(named or new, resume=resume is not None)

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
            transitions: lines of transitions.jsonl that are done; whole rows behind them are played again.
            sha256: the hash of these lines; "" where there are none.
            metrics: lines of metrics.jsonl that are done; the rest is dropped.
            lanes: lines of a row of transitions.jsonl; 0 where there is nothing to play again.
            check: raises ValueError for what is no line of transitions.jsonl.

        Raises:
            UserError: the lines that are done are not all there, or were changed; or one is no transition.
        """
        self.transitions = JsonLines(
            self.path / "transitions.jsonl", done=transitions, row=lanes, check=check
        )
        if sha256 and self.transitions.sha256 != sha256:
            raise UserError(
                f"the first {transitions} lines of {str(self.path / 'transitions.jsonl')!r} are not those "
                "that the run wrote: put them back, or begin a new run"
            )
        if self.transitions.flaw:
            raise UserError(self.transitions.flaw)
        self.metrics = JsonLines(self.path / "metrics.jsonl", done=metrics)

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

    def write_json(self, name: str, data: Mapping[str, Any]) -> Path:
        """Write `name` as indented JSON; returns its path."""
        return self.write_text(name, json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> Path:
        """Write a file in UTF-8; returns its path."""
        with replacing(self.path / name) as part:
            part.write_text(text, encoding="utf-8")
        return self.path / name

    def begin(self, table: Mapping[str, Any], *, simulated: bool) -> None:
        """Write config.toml, see `write_config`, and whether the servers are the simulator."""
        self.write_config(table)
        self.write_json(SERVERS, {"simulated": simulated})

    def write_config(self, table: Mapping[str, Any]) -> Path:
        """Write a flat `table` as config.toml (None left out), marked as made here; returns its path."""
        text = "".join(f"{key} = {_toml(value)}\n" for key, value in table.items() if value is not None)
        if marks := marks_for(self.path, text):
            self.write_json(MARK, marks)
        return self.write_text(CONFIG, text)

    def reported(self, ended: BaseException) -> BaseException:
        """What to say of the end of a run; the traceback of an unforeseen error goes to error.txt."""
        if isinstance(ended, WrappedError) and ended.__cause__:
            return self.reported(ended.__cause__)
        if isinstance(ended, Interrupted | RunStoppedError):
            return ended
        if isinstance(ended, OSError):
            again = f"go on with --resume {self.path}" if self._has_begun() else "try again"
            return UserError(f"{ended}: mend that, then {again}")
        details = self.path / "error.txt"
        details.write_text("".join(traceback.format_exception(ended)), "utf-8", "backslashreplace")
        return RunStoppedError(f"{type(ended).__name__}: {ended} (details: {details})")

    def close(self) -> None:
        """Close the files that grow, and leave the folder to others."""
        for lines in ("transitions", "metrics"):
            if hasattr(self, lines):
                with contextlib.suppress(OSError):  # a full disk, which was told when it was met
                    getattr(self, lines).close()
        self._lock.release()
        if not self._has_begun():
            self._forget()

    def _has_begun(self) -> bool:
        return (self.path / CONFIG).exists()

    def _forget(self) -> None:
        """Leave nothing of a run that never began."""
        for item in filter(_is_left_over, list(self.path.iterdir())):
            item.unlink(missing_ok=True)
        if self._is_new:
            self.path.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise self.reported(error) from error


def check_places(*, resume: Path | None, run_dir: Path | None, json: Path | None, cache: Path | None) -> None:
    """Check the folders and files that a command is given, before anything is made.

    Args:
        resume: the folder of the run to go on with.
        run_dir: that of a new run; it does not count beside `resume`.
        json: a file that is to hold the report.
        cache: a folder that runs share.

    Raises:
        UserError: one of them cannot be used.
    """
    if resume:
        check_is_run(resume)
    elif run_dir:
        check_new_or_empty(run_dir)
    check_writable(json)
    check_cache(cache)


def check_is_run(path: Path, named_by: str = "--resume") -> None:
    """Check that there is a run to go on with, and nothing that is waited for when it is opened.

    Args:
        path: the folder.
        named_by: what names it, for the error.

    Raises:
        UserError: there is none, or a pipe or a device in place of a file.
    """
    if not (path / CONFIG).is_file():
        raise UserError(f"{named_by} names {str(path)!r}; expected the folder of a run, with its config.toml")
    odd = (item for item in written_in(path) if item.exists() and not (item.is_file() or item.is_dir()))
    if found := next(odd, None):
        raise UserError(f"{str(found)!r} is neither a file nor a folder, which no run makes: delete it")


def check_outside(run: Path, path: Path | None, flag: str) -> None:
    """Check that what is written comes to lie outside the run that is read.

    Args:
        run: its folder.
        path: what `flag` names; None: it names nothing; `-` is standard output.
        flag: is named in the error.

    Raises:
        UserError: it would lie inside.
    """
    if path and path != STDOUT and path.resolve().is_relative_to(run.resolve()):
        raise UserError(f"{flag} names {str(path)!r}, in the run that is read: name another place")


def check_new_or_empty(path: Path) -> None:
    """Check that a new run may be put here.

    Raises:
        UserError: there is a file, or a folder that holds something.
    """
    if path.exists() and (not path.is_dir() or not all(map(_is_left_over, path.iterdir()))):
        fault = "is not empty" if path.is_dir() else "is not a folder"
        raise UserError(
            f"run folder {str(path)!r} {fault}; expected a new or empty folder: name another with --run-dir"
        )


def _is_left_over(item: Path) -> bool:
    """Whether a file may stand in an empty folder: a process was stopped before it wrote config.toml."""
    begun = (PART, REPLIES, "transitions.jsonl", "metrics.jsonl")
    is_plain = item.is_file() and not item.is_symlink()
    return is_plain and (item.name in {LOCK, MARK} or item.name.startswith(begun))


def check_cache(path: Path | None) -> None:
    """Make the folder of a cache, before anything else is made.

    Raises:
        UserError: it cannot be made, or not be written.
    """
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / PART).touch()
        (path / PART).unlink()
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        raise UserError(
            f"--cache names {str(path)!r}; expected a folder that can be written: {error}"
        ) from error


def check_writable(path: Path | None, flag: str = "--json") -> None:
    """Check, before the work is done, that its result can be written to the file `path`.

    Args:
        path: what `flag` names; None: it names nothing; of `--json`, `-` is standard output.
        flag: is named in the error.

    Raises:
        UserError: it is a folder, or lies in none, or may not be written.
    """
    if path is None or (path == STDOUT and flag == "--json"):
        return
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{flag} names {str(path)!r}; expected a file in a folder that exists")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{flag} names {str(path)!r}, which may not be written: name another file")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path beside `path` to write to; it takes the place of `path` once it is whole and on disk.

    Its name ends as that of `path` does: SB3 adds an ending to a file that has none. What has that name is
    deleted first, and no link there is followed: the folder may be anybody's.
    """
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f"{PART}{path.name}")
    part.unlink(missing_ok=True)
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _toml(value: Any) -> str:  # noqa: ANN401 - a TOML value
    """JSON writes strings, numbers, booleans and lists as TOML does, but for the one character DEL."""
    written = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False, default=str)
    return written.replace("\x7f", "\\u007f")
