"""Which file holds queries, and which reader reads it: by its ending, and never against its first bytes."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from envs.query_formats import read_delimited, read_json, read_json_lines, read_plain_lines
from envs.query_parquet import PARQUET_MARK, read_parquet
from envs.query_tables import QueryFileError, Table, quoted, shown

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
            f"{shown(path)} is no Parquet file, or not a whole one: expected 'PAR1' at both ends"
        )
