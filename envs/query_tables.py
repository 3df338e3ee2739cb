"""Files of queries as tables: one small reader for each format.

A new format is one more function from a path to a `Table`, and its line in `READERS`.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

SHOWN = 10
"""How many names or values an error lists before it says how many more there are."""
LONGEST_SHOWN = 60
"""Characters of one value that an error shows."""


class QueryFileError(ValueError):
    """A file of queries cannot be used as asked; the message is one line that says what to do."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One row of a file."""

    row: int
    """The line in .txt and .jsonl; in .csv and .tsv as a spreadsheet counts, the header being row 1."""
    fields: Mapping[str, object]
    """Value by column: text; in .jsonl whatever JSON value stood there."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a file holds before anything is picked from it."""

    source: str
    """The path, as errors name it."""
    columns: tuple[str, ...]
    """Column names in the file's order."""
    records: tuple[Record, ...]
    """The rows in the file's order."""

    def column(self, name: str, flag: str) -> str:
        """The column called `name`, spelt as in the file; upper and lower case do not matter.

        Raises:
            QueryFileError: There is none; the message names the columns and the `flag` to correct.
        """
        if name in self.columns:
            return name
        for column in self.columns:
            if column.casefold() == name.casefold():
                return column
        raise QueryFileError(f"{self.source} has columns {quoted(self.columns)}; {flag} names {name!r}")


def read_table(path: Path) -> Table:
    """The file at `path` as a table with at least one row, read as its ending says.

    Raises:
        QueryFileError: The file is missing, a directory, of an unknown format, unreadable or empty.
    """
    try:
        _check_is_file(path)
        table = _reader(path)(path)
    except OSError as error:
        raise QueryFileError(f"{path} cannot be read: {error.strerror}") from error
    if not table.records:
        raise QueryFileError(f"{path} is empty: expected at least one prompt")
    return table


def read_delimited(path: Path, *, delimiter: str) -> Table:
    """A .csv or .tsv file: a header, then a record a row; blank lines are skipped."""
    reader = csv.reader(io.StringIO(_text(path), newline=""), delimiter=delimiter, strict=True)
    try:
        rows = [(row, cells) for row, cells in enumerate(reader, 1) if cells]
    except csv.Error as error:
        raise QueryFileError(f"{path}, line {reader.line_num}: {error}") from error
    columns = _header(path, rows[0][1]) if rows else ()
    records = (_record(path, row, columns, cells) for row, cells in rows[1:])
    return Table(source=str(path), columns=columns, records=tuple(records))


def read_json_lines(path: Path) -> Table:
    """A .jsonl file: an object a line; blank lines are skipped; the columns are all keys met."""
    records = tuple(
        Record(row=row, fields=_json_object(path, row, line)) for row, line in _filled_lines(path)
    )
    columns = dict.fromkeys(key for record in records for key in record.fields)
    return Table(source=str(path), columns=tuple(columns), records=records)


def read_plain_lines(path: Path) -> Table:
    """A .txt file: a prompt a line; blank lines are skipped; the one column is `prompt`."""
    records = (Record(row=row, fields={"prompt": line}) for row, line in _filled_lines(path))
    return Table(source=str(path), columns=("prompt",), records=tuple(records))


READERS: Mapping[str, Callable[[Path], Table]] = {
    ".csv": partial(read_delimited, delimiter=","),
    ".tsv": partial(read_delimited, delimiter="\t"),
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".txt": read_plain_lines,
}
"""The reader for each file ending, in lower case."""


def quoted(values: Iterable[str]) -> str:
    """Distinct values for an error, in quotes: at most ten, the longest cut short."""
    distinct = list(dict.fromkeys(values))
    cut = (v if len(v) <= LONGEST_SHOWN else v[: LONGEST_SHOWN - 3] + "..." for v in distinct[:SHOWN])
    left_out = len(distinct) - SHOWN
    return ", ".join(map(repr, cut)) + (f" and {left_out} more" if left_out > 0 else "")


def _check_is_file(path: Path) -> None:
    if path.is_dir():
        raise QueryFileError(f"{str(path)!r} is a directory; expected a file of queries")
    if path.exists():
        return
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside)
    hint = f"; did you mean {quoted(near)}?" if near else ""
    raise QueryFileError(f"there is no file {str(path)!r}{hint}")


def _reader(path: Path) -> Callable[[Path], Table]:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise QueryFileError(f"{path} ends in {path.suffix!r}; expected one of {quoted(READERS)}")
    return reader


def _text(path: Path) -> str:
    """The whole file, decoded, with its line ends as they are."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise QueryFileError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from error


def _filled_lines(path: Path) -> list[tuple[int, str]]:
    # newline=None ends lines at \n, \r\n and \r alone: str.splitlines also cuts at U+2028 inside a prompt.
    lines = io.StringIO(_text(path), newline=None)
    return [(row, line) for row, line in enumerate(lines, 1) if line.strip()]


def _header(path: Path, cells: list[str]) -> tuple[str, ...]:
    columns = tuple(cell.strip() for cell in cells)
    twice = [name for name, count in Counter(columns).items() if name and count > 1]
    if twice:
        raise QueryFileError(f"{path} has several columns named {quoted(twice)}: rename all but one")
    return columns


def _record(path: Path, row: int, columns: tuple[str, ...], cells: list[str]) -> Record:
    """A row by column; cells missing at its end are missing fields."""
    if len(cells) > len(columns):
        raise QueryFileError(
            f"{path}, row {row}: {len(cells)} cells under {len(columns)} columns; "
            "quote a prompt that holds the delimiter"
        )
    return Record(row=row, fields=dict(zip(columns, cells, strict=False)))


def _json_object(path: Path, row: int, line: str) -> dict[str, object]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise QueryFileError(f"{path}, row {row}: not JSON; expected an object a line") from error
    if not isinstance(value, dict):
        raise QueryFileError(f"{path}, row {row}: a JSON {type(value).__name__}; expected an object a line")
    return value
