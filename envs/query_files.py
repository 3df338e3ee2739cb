"""Files of queries as tables, whose columns are read row by row: .csv, .tsv, .jsonl, .json, .txt, .parquet.

The ending decides which reader reads a file, and never against its first bytes. A new format is one more
function from a path to a `Table`, and its line in `READERS`. Readers stream: a file is never in memory as a
whole, except .json, which has to be. Whatever is wrong with a file is a QueryFileError of one line.
"""

from __future__ import annotations

import csv
import difflib
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

SHOWN = 10
"""How many names or values an error lists before it says how many more there are."""
LONGEST_SHOWN = 60
"""Characters of one value that an error shows."""

PROMPT_COLUMNS = ("prompt", "query", "question", "forbidden_prompt", "prompt_text", "goal", "behavior")
"""Headers that hold the prompt, the first one present wins; case does not matter.

XSTest and OR-Bench have `prompt`, StrongREJECT `forbidden_prompt`, AILuminate `prompt_text`, AdvBench `goal`,
HarmBench `Behavior`; JailbreakBench has both `Goal` (the request) and `Behavior` (a title for it).
"""

SIDES = ("train", "kept", "held_out")
"""The sides of a run's split, as its queries.json names them."""
Row = tuple[int, Sequence[object]]
"""A row's number, and its values in the columns asked for: text, or as JSON and Parquet have it."""


class QueryFileError(ValueError):
    """A file of queries cannot be used as asked; the message is one line that says what to do."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a file holds before anything is picked from it."""

    source: str
    """The path, as errors name it."""
    columns: tuple[str, ...]
    """Column names in the file's order."""
    rows: Callable[[Sequence[str]], Iterator[Row]]
    """Reads the file again, in its order, with the values of the columns named; raises QueryFileError."""
    group_column: str | None = None
    """The column whose equal values belong together where the user names none: of a run's own queries."""

    def column(self, name: str, flag: str) -> str:
        """The column called `name`, spelt as in the file; upper and lower case do not matter.

        Raises:
            QueryFileError: There is none, or several that differ in case alone; the message names the
                columns and the `flag` to correct.
        """
        if name in self.columns:
            return name
        found = [column for column in self.columns if column.casefold() == name.casefold()]
        if len(found) == 1:
            return found[0]
        which = f", which could be {quoted(found)}" if found else ""
        raise QueryFileError(
            f"{self.source} has columns {quoted(self.columns)}; {flag} names {name!r}{which}"
        )


def table_of(source: str, names: Iterable[str], rows: Callable[[Sequence[str]], Iterator[Row]]) -> Table:
    """A table whose columns are `names`, without blanks at their ends.

    Raises:
        QueryFileError: Two columns have the same name.
    """
    columns = tuple(map(bare, names))
    twice = [name for name, count in Counter(columns).items() if name and count > 1]
    if twice:
        raise QueryFileError(f"{source} has several columns named {quoted(twice)}: rename all but one")
    return Table(source=source, columns=columns, rows=rows)


def quoted(values: Iterable[str]) -> str:
    """Distinct values for an error, in quotes: at most ten, the longest cut short."""
    distinct = list(dict.fromkeys(values))
    cut = (v if len(v) <= LONGEST_SHOWN else v[: LONGEST_SHOWN - 3] + "..." for v in distinct[:SHOWN])
    left_out = len(distinct) - SHOWN
    return ", ".join(map(repr, cut)) + (f" and {left_out} more" if left_out > 0 else "")


def shown(path: Path) -> str:
    """A path as errors name it: quoted where it holds characters that would not show on one line."""
    return str(path) if str(path).isprintable() else repr(str(path))


def bare(name: str) -> str:
    """A column's name without blanks, and without the byte order mark that joining files leaves inside."""
    return name.strip().strip("\ufeff")


def flaw(text: str) -> str | None:
    """What keeps `text` from being text: a NUL, or a code that is half of a character; None: nothing."""
    if "\0" in text:
        return "a NUL character"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"{text[error.start]!r}, which is not a character"
    return None


LONGEST_LINE = 2**24
"""Characters a line may have; a longer one is refused before it fills the memory."""

ENCODINGS = {b"\xff\xfe": ("utf-16", "surrogatepass"), b"\xfe\xff": ("utf-16", "surrogatepass")}
"""Encoding and error handler by byte order mark; without one a file is UTF-8.

Both handlers turn bytes that are not text into lone surrogates, which `flaw` finds in their line.
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
    """A .json file: a list of objects, or of prompts, or what a run keeps of its queries.

    A row is the place in the list, from 1.
    """
    source = shown(path)
    with closing(_lines(path, longest=-1)) as lines:
        value = _decoded("".join(lines), source, "a list of objects or of prompts")
    is_of_run = isinstance(value, dict) and isinstance(value.get(SIDES[0]), list)
    if is_of_run:
        value = _rows_of_run(cast("dict[str, Any]", value))
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

    return Table(
        source=source, columns=tuple(columns), rows=rows, group_column="group" if is_of_run else None
    )


def _rows_of_run(value: dict[str, Any]) -> list[object]:
    """The queries of a run's queries.json, on all sides of its split."""
    named = [value[side] if isinstance(value.get(side), list) else [] for side in SIDES]
    notes = [value[key] if isinstance(value.get(key), dict) else {} for key in ("groups", "categories")]
    return [
        {"prompt": text, "side": side, "group": notes[0].get(text), "category": notes[1].get(text)}
        if isinstance(text, str)
        else text
        for side, texts in zip(SIDES, named, strict=True)
        for text in texts
    ]


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


def _opened_text(path: Path, newline: str | None) -> TextIO:
    with path.open("rb") as file:
        encoding, errors = ENCODINGS.get(file.read(2), ("utf-8-sig", "surrogateescape"))
    return path.open(encoding=encoding, errors=errors, newline=newline)


def _lines(
    path: Path, *, newline: str | None = None, longest: int = LONGEST_LINE
) -> Generator[str, None, None]:
    """The lines with their ends, checked to be text of at most `longest` characters (-1: of any length)."""
    # Lines end at \n, \r\n and \r alone: str.splitlines also cuts at U+2028 inside a prompt.
    number = 0
    with _opened_text(path, newline) as file:
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
                if row == 1 and line.lstrip().startswith("["):
                    raise QueryFileError(f"{shown(path)} is a JSON list: rename it to .json")
                place, expected = f"{shown(path)}, row {row}", "an object a line"
                yield row, _json_object(_decoded(line, place, expected), place, expected)


def _json_object(value: object, place: str, expected: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise QueryFileError(f"{place}: a JSON {type(value).__name__}; expected {expected}")
    return value


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key appears twice in an object")
    return record


DECODER = json.JSONDecoder(object_pairs_hook=_without_doubles)


def _decoded(text: str, place: str, expected: str) -> object:
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise QueryFileError(f"{place}: not JSON; expected {expected} ({error})") from error


PARQUET_MARK = b"PAR1"
"""What a Parquet file begins and ends with."""

BATCH_ROWS = 8192
"""Rows decoded at a time."""


def read_parquet(path: Path) -> Table:
    """A .parquet file; a row is counted from 1; of nested columns the outermost are the columns."""
    with _opened_parquet(path) as file:
        names = file.schema_arrow.names

    def rows(wanted: Sequence[str]) -> Iterator[Row]:
        as_written = {bare(name): name for name in reversed(names)}
        return _parquet_rows(path, [as_written[column] for column in wanted])

    return table_of(shown(path), names, rows)


def _parquet_rows(path: Path, names: Sequence[str]) -> Iterator[Row]:
    row = 0
    with _opened_parquet(path) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=[*dict.fromkeys(names)], use_threads=False):
            values = [_parquet_values(batch.column(name)) for name in names]
            for row, cells in enumerate(zip(*values, strict=True), row + 1):  # noqa: B020 - counts on from batch to batch
                yield row, cells


def _parquet_values(column: Any) -> list[object]:  # noqa: ANN401 - pyarrow has no types
    """A column of one batch as Python values; in text, bytes that are not UTF-8 become lone surrogates."""
    try:
        values: list[object] = column.to_pylist()
    except UnicodeDecodeError:
        content = column.cast("binary").to_pylist()
        values = [text if text is None else text.decode(errors="surrogateescape") for text in content]
    return values


@contextmanager
def _opened_parquet(path: Path) -> Iterator[Any]:
    """The open file; whatever pyarrow says of it while it is open is said in one line."""
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError as error:
        raise QueryFileError(
            f"{shown(path)} needs pyarrow to be read ({error}): pip install 'mutagym[parquet]'"
        ) from error
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        raise QueryFileError(f"{shown(path)} cannot be read as Parquet ({said}); write it again") from error


READERS: Mapping[str, Callable[[Path], Table]] = {
    ".csv": partial(read_delimited, delimiter=","),
    ".tsv": partial(read_delimited, delimiter="\t"),
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json,
    ".parquet": read_parquet,
    ".txt": read_plain_lines,
}
"""The reader for each file ending, in lower case."""

BINARIES = {
    b"PK\x03\x04": "a ZIP archive (a workbook, .xlsx?): save it as CSV UTF-8, or unpack it",
    b"PK\x05\x06": "an empty ZIP archive: unpack what it should hold",
    b"\xd0\xcf\x11\xe0": "an old Office file (.xls?): save it as CSV UTF-8",
    b"\x1f\x8b": "compressed (gzip): unpack it",
    b"BZh91AY&SY": "compressed (bzip2): unpack it",
    b"\xfd7zXZ": "compressed (xz): unpack it",
    b"\x28\xb5\x2f\xfd": "compressed (zstd): unpack it",
    b"%PDF-": "a PDF: copy its prompts into a .txt or .csv file",
    b"SQLite format 3\0": "an SQLite database: export the table as CSV",
}
"""What a file is that begins with these bytes, whatever its name says, and what to do with it."""


def read_table(path: Path) -> Table:
    """The file at `path` as a table, read as its ending says.

    Raises:
        QueryFileError: The file is missing, not a regular file, of an unknown format, damaged or empty.
        OSError: The system does not let it be read.
    """
    _check_is_file(path)
    reader = _reader(path)
    _check_content(path)
    table = reader(path)
    if not table.columns:
        raise QueryFileError(f"{table.source} is empty: expected at least one prompt")
    return table


def _check_is_file(path: Path) -> None:
    if path.is_dir():
        raise QueryFileError(f"{str(path)!r} is a directory; expected a file of queries")
    if path.exists():
        if stat.S_ISREG(path.stat().st_mode):
            return
        raise QueryFileError(f"{str(path)!r} is a pipe, socket or device; expected a regular file of queries")
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside)
    hint = f"; did you mean {quoted(near)}?" if near else ""
    raise QueryFileError(f"there is no file {str(path)!r}{hint}")


def _reader(path: Path) -> Callable[[Path], Table]:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise QueryFileError(f"{shown(path)} ends in {path.suffix!r}; expected one of {quoted(READERS)}")
    return reader


def _check_content(path: Path) -> None:
    """Refuse what is not what its name says, by its first bytes (and last: a prompt may begin with PAR1)."""
    with path.open("rb") as file:
        beginning = file.read(16)
        file.seek(-min(4, len(beginning)), os.SEEK_END)
        end = file.read()
    if not beginning:
        raise QueryFileError(f"{shown(path)} is empty: expected at least one prompt")
    for mark, what in BINARIES.items():
        if beginning.startswith(mark):
            raise QueryFileError(f"{shown(path)} is {what}")
    is_parquet = beginning[:4] == end == PARQUET_MARK
    if is_parquet and path.suffix.lower() != ".parquet":
        raise QueryFileError(f"{shown(path)} is a Parquet file: rename it to .parquet")
    if not is_parquet and path.suffix.lower() == ".parquet":
        raise QueryFileError(
            f"{shown(path)} is not a Parquet file, or not a whole one: expected 'PAR1' at both ends"
        )
