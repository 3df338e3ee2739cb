"""Files of one JSON object a line: hashed as they grow, and taken up again where they were left."""

from __future__ import annotations

import json
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from records.errors import RunStoppedError, UserError
from records.reading import MOST_BYTES, parse_json

OnTorn = Callable[[int, bool], None]
"""Takes the number of a line that is torn, and whether it is the unfinished end of the file."""


class LinesHash:
    """The SHA-256 of records as lines of JSON, less their key `not_hashed`: what two equal runs share."""

    def __init__(self) -> None:
        self._hash = sha256()

    def update(self, record: Mapping[str, Any]) -> None:
        """Add one record."""
        self._hash.update(_hashed(record).encode())

    def hexdigest(self) -> str:
        """Of the records so far."""
        return self._hash.hexdigest()


class JsonLines:
    """A file of one JSON object a line, flushed row by row, so that the end of the process tears one at most.

    Args:
        path: the file.
        done: how many lines stay at most; what is behind them is cut off, if it is not played again.
        row: lines of a row; where it is given, all that are done must be there, the whole rows behind them
            stay, too, and what is written next must be equal to those.
        check: raises ValueError for a record that cannot be one of this file.

    Raises:
        UserError: lines that must be there are not.
    """

    def __init__(
        self,
        path: Path,
        *,
        done: int = 0,
        row: int = 0,
        check: Callable[[Mapping[str, Any]], None] = lambda _record: None,
    ) -> None:
        self._path = path
        self._check = check
        self._hash = LinesHash()
        self.count = 0
        self.ahead: deque[dict[str, Any]] = deque()
        """The records that are to be played again."""
        self.flaw = ""
        """What `check` has against the first record that it refuses; "" where there is none."""
        path.touch()
        self._take_up(done, row)
        self._file: TextIOWrapper = path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record.

        Raises:
            RunStoppedError: it is to be played again, and comes out otherwise.
        """
        if not self.ahead:
            self._file.write(_line(record))
        elif names := differing(self.ahead.popleft(), record):
            raise RunStoppedError(
                f"line {self.count + 1} of {str(self._path)!r} does not come out as it did: "
                f"{', '.join(names)} changed; the run can only go on with the program, "
                "the encoder and the mutators that it began with"
            )
        self._hash.update(record)
        self.count += 1

    def read(self) -> Iterator[dict[str, Any]]:
        """The records so far."""
        self.flush()
        with self._path.open(encoding="utf-8") as lines:
            yield from map(json.loads, islice(lines, self.count))

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._file.flush()

    def sync(self) -> None:
        """Have what was written on disk."""
        self.flush()
        os.fsync(self._file.fileno())

    @property
    def sha256(self) -> str:
        """See LinesHash."""
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _checked(self, record: Mapping[str, Any], number: int) -> None:
        try:
            self._check(record)
        except ValueError as error:
            self.flaw = self.flaw or (
                f"line {number} of {str(self._path)!r} is not one that a run writes: {error}; put back what "
                "was there, or begin a new run"
            )

    def _take_up(self, done: int, row: int) -> None:
        """Read the lines that stay, and cut off the rest, of which a line may be torn."""
        ends = [0]
        with self._path.open("rb") as lines:
            for record, line in _whole_lines(lines):
                if len(ends) > done and not row:
                    break
                self._checked(record, len(ends))
                ends.append(ends[-1] + len(line))
                if self.count < done:
                    self._hash.update(record)
                    self.count += 1
                else:
                    self.ahead.append(record)
        if self.count < done and row:
            raise UserError(
                f"{str(self._path)!r} has {self.count} whole lines; expected at least {done}: "
                "the run cannot go on without them"
            )
        for _ in range(len(self.ahead) % row if row else 0):
            self.ahead.pop()
        os.truncate(self._path, ends[self.count + len(self.ahead)])


def read_lines(
    path: Path,
    check: Callable[[Mapping[str, Any]], None] = lambda _record: None,
    on_torn: OnTorn = lambda _number, _is_last: None,
) -> Iterator[dict[str, Any]]:
    """The records of a file that anybody may have written or be writing, up to the first line that is torn.

    Args:
        path: the file.
        check: raises ValueError for a record that cannot be one of this file.
        on_torn: told of the torn line, where there is one.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a regular file, or `check` refuses a line.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{str(path)!r} is not a regular file")
    with path.open("rb") as lines:
        for number, (record, _) in enumerate(_whole_lines(lines, on_torn), start=1):
            try:
                check(record)
            except ValueError as error:
                raise ValueError(
                    f"line {number} of {str(path)!r} is not one that a run writes: {error}"
                ) from error
            yield record


def _whole_lines(
    lines: BinaryIO, on_torn: OnTorn = lambda _number, _is_last: None
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The records of an open file, each with its line; the first line that is torn ends it."""
    for number, line in enumerate(iter(partial(lines.readline, MOST_BYTES), b""), start=1):
        if (record := _record(line)) is None:
            on_torn(number, not line.endswith(b"\n") and not lines.read(1))
            return
        yield record, line


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys in which two records differ that two equal runs share; `not_hashed` is none of them."""
    if _hashed(before) == _hashed(now):
        return []
    keys = [key for key in {**before, **now} if key != "not_hashed"]
    changed = [key for key in keys if _line({key: before.get(key)}) != _line({key: now.get(key)})]
    return changed or ["the order of the keys"]


def _record(line: bytes) -> dict[str, Any] | None:
    """What a line holds; None when it is torn."""
    try:
        record: dict[str, Any] | None = parse_json(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _hashed(record: Mapping[str, Any]) -> str:
    """The part of a record that two equal runs share, as a line."""
    return _line({k: v for k, v in record.items() if k != "not_hashed"})


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
