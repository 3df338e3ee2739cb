"""The text formats a file of queries can have, a reader for each.

A new format is one more function from a path to a `Table`, and its line in `query_files.READERS`. Readers
stream: a file is never in memory as a whole, except .json, which has to be.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TextIO

from envs.query_tables import (
    PROMPT_COLUMNS,
    QueryFileError,
    Row,
    Table,
    bare,
    flaw,
    quoted,
    shown,
    table_of,
)

LONGEST_LINE = 2**24
"""Characters a line may have; a longer one is refused before it fills the memory."""

ENCODINGS = {b"\xff\xfe": ("utf-16", "surrogatepass"), b"\xfe\xff": ("utf-16", "surrogatepass")}
"""Encoding and error handler by byte order mark; without one a file is UTF-8.

Both handlers turn bytes that are no text into lone surrogates, which `flaw` finds in their line.
"""


def read_delimited(path: Path, *, delimiter: str) -> Table:
    """A .csv or .tsv file: a header, then as many cells in each row; rows of blank cells are skipped."""
    with closing(_delimited(path, delimiter)) as rows:
        _, header = next(rows, (0, []))
    if len(header) == 1 and (other := next((d for d in ";\t,|" if d in header[0]), None)):
        raise QueryFileError(
            f"{shown(path)} has the one column {quoted(header)}; expected columns parted by {delimiter!r}, "
            f"not by {other!r}: save it so"
        )
    return table_of(shown(path), header, partial(_delimited_rows, path, delimiter, list(map(bare, header))))


def read_json_lines(path: Path) -> Table:
    """A .jsonl file: an object a line; blank lines are skipped; the columns are all keys met."""
    columns = dict.fromkeys(key for _, record in _json_lines(path) for key in record)

    def rows(wanted: Sequence[str]) -> Iterator[Row]:
        return ((row, [record.get(name) for name in wanted]) for row, record in _json_lines(path))

    return Table(source=shown(path), columns=tuple(columns), rows=rows)


def read_json(path: Path) -> Table:
    """A .json file: a list of objects, or of prompts; a row is the place in the list, from 1."""
    source = shown(path)
    with closing(_lines(path, longest=-1)) as lines:
        value = _json("".join(lines), source, "a list of objects or of prompts")
    if not isinstance(value, list):
        raise QueryFileError(
            f"{source}: a JSON {type(value).__name__}; expected a list of objects or of prompts"
        )
    records = [
        {"prompt": item}
        if isinstance(item, str)
        else _json_object(item, f"{source}, row {row}", "a prompt or an object")
        for row, item in enumerate(value, 1)
    ]
    columns = dict.fromkeys(key for record in records for key in record)

    def rows(wanted: Sequence[str]) -> Iterator[Row]:
        return ((row, [record.get(name) for name in wanted]) for row, record in enumerate(records, 1))

    return Table(source=source, columns=tuple(columns), rows=rows)


def read_plain_lines(path: Path) -> Table:
    """A .txt file: a prompt a line; blank lines are skipped; the one column is `prompt`."""
    with closing(_lines(path)) as lines:
        first = next(lines, "").strip()
    if {bare(name).casefold() for name in first.split("\t")} & set(PROMPT_COLUMNS):
        raise QueryFileError(
            f"{shown(path)}, line 1: {quoted([first])} is a header; expected a prompt a line: remove it, or "
            "rename a table to .tsv"
        )

    def rows(wanted: Sequence[str]) -> Iterator[Row]:
        return ((row, [line] * len(wanted)) for row, line in enumerate(_lines(path), 1) if line.strip())

    return Table(source=shown(path), columns=("prompt",), rows=rows)


def _opened(path: Path, newline: str | None) -> TextIO:
    with path.open("rb") as file:
        encoding, errors = ENCODINGS.get(file.read(2), ("utf-8-sig", "surrogateescape"))
    return path.open(encoding=encoding, errors=errors, newline=newline)


def _lines(
    path: Path, *, newline: str | None = None, longest: int = LONGEST_LINE
) -> Generator[str, None, None]:
    """The lines with their ends, checked to be text of at most `longest` characters (-1: of any length)."""
    # Lines end at \n, \r\n and \r alone: str.splitlines also cuts at U+2028 inside a prompt.
    number = 0
    with _opened(path, newline) as file:
        try:
            for number, line in enumerate(iter(partial(file.readline, longest), ""), 1):
                if len(line) == longest and line[-1] not in "\r\n":
                    raise QueryFileError(
                        f"{shown(path)}, line {number}: over {longest} characters; shorten it"
                    )
                if flaw(line):
                    raise QueryFileError(_not_text(path, number, line))
                yield line
        except UnicodeDecodeError as error:  # UTF-16 that ends within a character
            raise QueryFileError(_not_text(path, number + 1, "")) from error


def _not_text(path: Path, number: int, line: str) -> str:
    what = "a NUL character" if "\0" in line else "not UTF-8 text"
    return f"{shown(path)}, line {number}: {what}; save the file as UTF-8 (in a spreadsheet: CSV UTF-8)"


def _delimited(path: Path, delimiter: str) -> Generator[tuple[int, list[str]], None, None]:
    """The rows that are not blank, with their number as a spreadsheet counts."""
    row = 0
    with closing(_lines(path, newline="")) as lines:
        try:
            for row, cells in enumerate(csv.reader(lines, delimiter=delimiter, strict=True), 1):
                if any(map(str.strip, cells)):
                    yield row, cells
        except csv.Error as error:
            raise QueryFileError(
                f"{shown(path)}, row {row + 1}: {error}; close each quote, double it inside a quoted cell, "
                "and shorten a cell that is over the limit"
            ) from error


def _delimited_rows(
    path: Path, delimiter: str, columns: Sequence[str], wanted: Sequence[str]
) -> Iterator[Row]:
    places = [columns.index(name) for name in wanted]
    with closing(_delimited(path, delimiter)) as rows:
        next(rows, None)
        for row, cells in rows:
            if len(cells) != len(columns):
                raise QueryFileError(
                    f"{shown(path)}, row {row}: {len(cells)} cells under {len(columns)} columns; quote "
                    "a cell that holds the delimiter or a line break, and write blank cells too"
                )
            if bare(cells[0]) == columns[0] and list(map(bare, cells)) == columns:
                raise QueryFileError(f"{shown(path)}, row {row} is the header again; remove it")
            yield row, [cells[place] for place in places]


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    with closing(_lines(path)) as lines:
        for row, line in enumerate(lines, 1):
            if line.strip():
                place, expected = f"{shown(path)}, row {row}", "an object a line"
                yield row, _json_object(_json(line, place, expected), place, expected)


def _json_object(value: object, place: str, expected: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise QueryFileError(f"{place}: a JSON {type(value).__name__}; expected {expected}")
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key stands twice in an object")
    return record


DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _json(text: str, place: str, expected: str) -> object:
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise QueryFileError(f"{place}: not JSON; expected {expected} ({error})") from error
