"""JSON that anybody may have written, read within bounds, and files of one JSON object a line.

A run's own files of lines are hashed as they grow, and taken up where the process before left them.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from records.errors import RunStoppedError, UserError

MOST_BYTES = 2**24
"""Bytes of a file of settings or of one line: 16 MiB."""
MOST_QUERIES_BYTES = 2**28
"""Bytes of a file of queries, of which there may be a million."""

Record = Mapping[str, Any]
Check = Callable[[Record], None]
"""Raises ValueError for a record that cannot be one of the file."""


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """The text of a file or pipe in UTF-8, without its byte order mark.

    Raises:
        OSError: it cannot be read.
        ValueError: it has more than `most` bytes, or is not UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is over {most} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("it is not text in UTF-8") from error


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - whatever it holds
    """What a JSON text holds; raises ValueError where it is none, or nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error


def json_object(text: str | bytes) -> dict[str, Any]:
    """The JSON object in a text; raises ValueError where it holds something else."""
    found = parse_json(text)
    if isinstance(found, dict):
        return found
    raise ValueError(f"expected a JSON object, got a {type(found).__name__}")


def read_json_object(path: Path, most: int = MOST_BYTES) -> dict[str, Any]:
    """The JSON object in a file; raises what `read_text` and `json_object` do."""
    return json_object(read_text(path, most))


class LinesHash:
    """The SHA-256 of records as lines of JSON, less their key `not_hashed`: equal runs share it."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._hash = sha256()
        for record in records:
            self.update(record)

    def update(self, record: Record) -> None:
        """Add one record."""
        self._hash.update(_line(_hashed(record)).encode())

    def hexdigest(self) -> str:
        """Of the records so far."""
        return self._hash.hexdigest()


class JsonLines:
    """A file of one JSON object a line, whose last line a kill may tear.

    Args:
        path: the file.
        done: how many lines are kept. What follows them is cut off, unless `row` is given.
        row: how many lines a row has. If it is given, all lines that are done must be there, and
            the whole rows behind them are kept, too: what is written next must be equal to them.
        check: checks each line that stays.

    Raises:
        UserError: lines that must be there are not, or are damaged.
    """

    def __init__(
        self, path: Path, *, done: int = 0, row: int = 0, check: Check = lambda _record: None
    ) -> None:
        self._path = path
        self._hash = LinesHash()
        self.count = 0
        self.ahead: deque[dict[str, Any]] = deque()
        """The records that are to be played again."""
        path.touch()
        self._take_up(done, row, check)
        self._file = path.open("a", encoding="utf-8")

    def _take_up(self, done: int, row: int, check: Check) -> None:
        """Read the lines that stay, and cut off the rest."""
        ends, damage = [0], ""
        try:
            for record, end in islice(_lines(self._path, check), None if row else done):
                ends.append(end)
                if self.count < done:
                    self._hash.update(record)
                    self.count += 1
                else:
                    self.ahead.append(record)
        except ValueError as error:
            damage = f" ({error})"
        if row and self.count < done:
            raise UserError(
                f"{str(self._path)!r} has {self.count} whole lines; expected at least "
                f"{done}{damage}: put back what was there, or begin a new run"
            )
        for _ in range(len(self.ahead) % row if row else 0):
            self.ahead.pop()
        os.truncate(self._path, ends[self.count + len(self.ahead)])

    def write(self, record: Record) -> None:
        """Append one record; if it is to be played again, a RunStoppedError if it differs."""
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
        return islice(read_lines(self._path), self.count)

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


def read_lines(path: Path, check: Check = lambda _record: None) -> Iterator[dict[str, Any]]:
    """The records of a file that may be growing: an unfinished last line is left out.

    Raises:
        OSError: it cannot be read.
        ValueError: a line is damaged, or `check` refuses it.
    """
    return (record for record, _ in _lines(path, check))


def _lines(path: Path, check: Check) -> Iterator[tuple[dict[str, Any], int]]:
    """The records of a file, each with the place where its line ends."""
    with path.open("rb") as lines:
        for number, line in enumerate(iter(partial(lines.readline, MOST_BYTES), b""), start=1):
            if not line.endswith(b"\n") and len(line) < MOST_BYTES:
                return  # the end of the file, torn
            try:
                record = json_object(line)
                check(record)
            except ValueError as error:
                raise ValueError(
                    f"line {number} of {str(path)!r} is not one that a run writes: {error}"
                ) from error
            yield record, lines.tell()


def differing(before: Record, now: Record) -> list[str]:
    """The keys in which two records differ, `not_hashed` left out; equal runs have none."""
    before, now = _hashed(before), _hashed(now)
    if _line(before) == _line(now):
        return []
    keys = {**before, **now}
    changed = [key for key in keys if _line({key: before.get(key)}) != _line({key: now.get(key)})]
    return changed or ["the order of the keys"]


def _hashed(record: Record) -> Record:
    """The part of a record that two equal runs share."""
    return {key: value for key, value in record.items() if key != "not_hashed"}


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
