"""One run, one folder: what it was told, what happened, what was learned.

The two `.jsonl` files grow line by line; every other file is whole or absent.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from collections.abc import Iterator, Mapping
from hashlib import sha256
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from train.errors import RunStoppedError, UserError
from train.interrupt import Interrupted


class RunFolder:
    """`runs/<command>-<time>-<seed>/`, or the folder the user named: it must be new or empty.

    Raises:
        UserError: the folder holds something, or cannot be made.
    """

    def __init__(self, command: str, seed: int, path: Path | None = None) -> None:
        self.path = path or Path("runs") / f"{command}-{time.strftime('%Y%m%d-%H%M%S')}-{seed}"
        check_new_or_empty(self.path)
        try:
            (self.path / "checkpoints").mkdir(parents=True)
        except OSError as error:
            raise UserError(
                f"run folder {str(self.path)!r} cannot be made: {error.strerror}; name another with --run-dir"
            ) from error
        self.transitions = JsonLines(self.path / "transitions.jsonl")
        self.metrics = JsonLines(self.path / "metrics.jsonl")

    @property
    def tensorboard(self) -> Path:
        """Where TensorBoard's event files are."""
        return self.path / "tb"

    def write_json(self, name: str, data: Mapping[str, Any]) -> Path:
        """Write `name` as indented JSON; returns its path."""
        with replacing(self.path / name) as part:
            part.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return self.path / name

    def write_toml(self, name: str, table: Mapping[str, Any]) -> Path:
        """Write a flat `table` as TOML (None values left out); returns its path."""
        lines = [f"{key} = {_toml(value)}\n" for key, value in table.items() if value is not None]
        with replacing(self.path / name) as part:
            part.write_text("".join(lines), encoding="utf-8")
        return self.path / name

    def reported(self, ended: BaseException) -> BaseException:
        """What to say of the end of a run; the traceback of an unforeseen error goes to error.txt."""
        if isinstance(ended, Interrupted | RunStoppedError):
            return ended
        details = self.path / "error.txt"
        details.write_text("".join(traceback.format_exception(ended)), "utf-8", "backslashreplace")
        return RunStoppedError(f"{type(ended).__name__}: {ended} (details: {details})")

    def close(self) -> None:
        """Flush and close the files that grow."""
        self.transitions.close()
        self.metrics.close()


def check_new_or_empty(path: Path) -> None:
    """Check that a run may be put here.

    Raises:
        UserError: there is a file, or a folder that holds something.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        fault = "is not empty" if path.is_dir() else "is no folder"
        raise UserError(
            f"run folder {str(path)!r} {fault}; expected a new or empty folder: name another with --run-dir"
        )


def check_writable(path: Path | None) -> None:
    """Check, before the work is done, that its result can be written to the file `path`.

    Raises:
        UserError: it is a folder, or lies in none.
    """
    if path and (path.is_dir() or not path.parent.is_dir()):
        raise UserError(f"--json names {str(path)!r}; expected a file in a folder that exists")


class LinesHash:
    """The SHA-256 of records as lines of JSON, less their key `not_hashed`: what two equal runs share."""

    def __init__(self) -> None:
        self._hash = sha256()

    def update(self, record: Mapping[str, Any]) -> None:
        """Add one record."""
        self._hash.update(_line({k: v for k, v in record.items() if k != "not_hashed"}).encode())

    def hexdigest(self) -> str:
        """Of the records so far."""
        return self._hash.hexdigest()


class JsonLines:
    """A file of one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIOWrapper = path.open("w", encoding="utf-8")
        self._hash = LinesHash()
        self.count = 0

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record."""
        self._file.write(_line(record))
        self._hash.update(record)
        self.count += 1

    def read(self) -> Iterator[dict[str, Any]]:
        """The records so far."""
        self.flush()
        with self._path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._file.flush()

    @property
    def sha256(self) -> str:
        """See LinesHash."""
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path beside `path` to write to; it takes the place of `path` once it is whole and on disk.

    Its name ends as that of `path` does: SB3 adds an ending to a file that has none.
    """
    part = path.with_name(f".part-{path.name}")
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"


def _toml(value: Any) -> str:  # noqa: ANN401 - a TOML value
    """JSON writes strings, numbers, booleans and lists as TOML does."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False, default=str)
