"""Files of queries as tables, read row by row as the endings of their names say.

.json alone is in memory as a whole.
"""

from __future__ import annotations

import csv
import difflib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ollama_utils.types import is_text
from records.errors import UserError
from records.json_lines import parse_json

CHAT_COLUMNS = ("turns", "messages", "conversations")
"""Columns with chats: of MT-Bench and SORRY-Bench, OpenAI, ShareGPT."""
PROMPT_COLUMNS = (
    *("prompt", "query", "question", "forbidden_prompt", "prompt_text", "goal", "behavior"),
)
"""Columns with the prompt, the first one present counts: of XSTest and OR-Bench, StrongREJECT,
AILuminate, AdvBench and JailbreakBench (whose `Behavior` is a title), and HarmBench."""
ANSWER_COLUMNS = ("answer", "answers")
"""Columns with right answers, the first one present counts."""
SIDES = ("train", "kept", "held_out")
"""The sides of a run's split, as its queries.json names them."""
LONGEST_LINE = 2**24
"""Characters of a line of a file."""
MOST_TEXT = 2**28
"""Bytes of a .json file, and characters of all queries that are kept of a file."""
BATCH_BYTES = 2**24
"""Bytes of a Parquet file's rows that are in memory at a time, unless one row has more."""
MOST_NAMED, LONGEST_NAMED = 10, 60
"""How many names or values an error lists, and how many characters of each."""
MOST_SCANNED = 1000
"""Rows that are searched for the names of columns, and for the values that an error lists."""
BINARIES = {
    b"PK\x03\x04": "a ZIP archive or a workbook (.xlsx): unpack it, or save it as CSV UTF-8",
    b"\xd0\xcf\x11\xe0": "an old Office file (.xls): save it as CSV UTF-8",
    b"\x1f\x8b": "compressed (gzip): unpack it",
    b"PAR1\x15": "a Parquet file: rename it to .parquet",
}
"""What a file is that begins with these bytes, and what to do with it."""

Cells = Mapping[str, object]
"""A row's values by column: texts, or whatever JSON and Parquet have."""
Rows = Iterator[tuple[int, Cells]]
"""Rows with their numbers, as `Query.row` has them."""


class QueryFileError(UserError, ValueError):
    """A file of queries cannot be used; the message is one line."""


@dataclass(frozen=True)
class QueryTable:
    """A file and its columns, in the file's order and spelling."""

    path: Path
    columns: tuple[str, ...]

    def rows(self, columns: Sequence[str]) -> Rows:
        """The rows of the file, with the values of these columns at least.

        Raises:
            QueryFileError: A row cannot be read.
        """
        suffix = self.path.suffix.lower()
        if suffix == ".parquet":
            return _parquet_rows(self.path, list(dict.fromkeys(columns)))
        return READERS[suffix](self.path)

    def find(self, asked: str | None, usual: Sequence[str], flag: str = "") -> str | None:
        """The column asked for, or else the first of the usual ones, or None; case does not matter.

        Raises:
            QueryFileError: There is no column of the name asked for; the message names the `flag`.
        """
        spelt = {each.casefold(): each for each in reversed(self.columns)}
        spelt |= {each: each for each in self.columns}
        names = usual if asked is None else [asked, asked.casefold()]
        found = next((spelt[name] for name in names if name in spelt), None)
        if asked is not None and found is None:
            raise QueryFileError(
                f"{self.path} has columns {quoted(self.columns)}; {flag} names {asked!r}"
            )
        return found

    def need(self, asked: str | None, usual: Sequence[str], flag: str) -> str:
        """The same where there must be one.

        Raises:
            QueryFileError: There is none; the message names the usual ones and the `flag`.
        """
        if (found := self.find(asked, usual, flag)) is None:
            raise QueryFileError(
                f"{self.path} has columns {quoted(self.columns)}; expected one of {quoted(usual)}: "
                f"name it with {flag}"
            )
        return found


def read_table(path: Path) -> QueryTable:
    """The file at `path` as a table, read as its ending says.

    Raises:
        QueryFileError: The file is missing, of an unknown format, damaged or empty.
    """
    try:
        _check_file(path)
        rows = islice(READERS[path.suffix.lower()](path), MOST_SCANNED)
        columns = tuple(dict.fromkeys(key for _, cells in rows for key in cells))
    except OSError as error:
        raise QueryFileError(f"{path} cannot be read: {error.strerror}") from error
    if not columns:
        raise QueryFileError(f"{path} is empty: expected at least one prompt")
    return QueryTable(path, columns)


def _check_file(path: Path) -> None:
    if not path.is_file():
        names = [] if path.exists() else [each.name for each in path.parent.glob("*")]
        near = difflib.get_close_matches(path.name, names)
        hint = f"; did you mean {quoted(near)}?" if near else ""
        raise QueryFileError(f"there is no regular file {str(path)!r}{hint}")
    if not str(path).isprintable():
        raise QueryFileError(f"{str(path)!r} is not a name of one line; rename it")
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise QueryFileError(f"{path} ends in {suffix!r}; expected one of {quoted(READERS)}")
    with path.open("rb") as file:
        beginning = file.read(8)
    for mark, what in BINARIES.items():
        if beginning.startswith(mark) and suffix != ".parquet":
            raise QueryFileError(f"{path} is {what}")


def _lines(
    path: Path, newline: str | None = None, longest: int = LONGEST_LINE
) -> Generator[str, None, None]:
    r"""The lines, which end at \n, \r\n and \r alone: there may be a U+2028 in a prompt."""
    with path.open("rb") as file:
        is_utf16 = file.read(2) in {b"\xff\xfe", b"\xfe\xff"}
    # Bytes that are no text become lone surrogates, so that their line can be named.
    encoding, errors = ("utf-16", "surrogatepass") if is_utf16 else ("utf-8-sig", "surrogateescape")
    do = "save the file as UTF-8 (in a spreadsheet: CSV UTF-8)"
    number = 0
    try:
        with path.open(encoding=encoding, errors=errors, newline=newline) as text:
            for number, line in enumerate(iter(partial(text.readline, longest), ""), 1):
                if len(line) == longest and line[-1] not in "\r\n":
                    raise QueryFileError(f"{path}, line {number}: over {longest} characters")
                if "\0" in line or not is_text(line):
                    what = "a NUL character" if "\0" in line else "not UTF-8 text"
                    raise QueryFileError(f"{path}, line {number}: {what}; {do}")
                yield line
    except UnicodeDecodeError as error:  # UTF-16 that ends within a character
        raise QueryFileError(f"{path}, line {number + 1}: not UTF-8 text; {do}") from error


def _text_rows(path: Path) -> Rows:
    """A prompt a line; blank lines are skipped."""
    with closing(_lines(path)) as lines:
        for row, line in enumerate(lines, 1):
            names = {_bare(name).casefold() for name in line.split("\t")}
            if row == 1 and names & {*PROMPT_COLUMNS}:
                raise QueryFileError(
                    f"{path}, line 1: {line.strip()!r:.60} is a header; expected a prompt: remove "
                    "it, or rename a table to .tsv"
                )
            if line.strip():
                yield row, {"prompt": line}


def _delimited_rows(path: Path, delimiter: str) -> Rows:
    """A header, then as many cells in each row; rows of blank cells are skipped."""
    header: list[str] = []
    row = 0
    try:
        with closing(_lines(path, newline="")) as lines:
            for row, cells in enumerate(csv.reader(lines, delimiter=delimiter, strict=True), 1):
                names = list(map(_bare, cells))
                if not any(names):
                    continue
                if not header:
                    header = _distinct(names, path)
                    continue
                if names == header:
                    raise QueryFileError(f"{path}, row {row} is the header again; remove it")
                if len(cells) != len(header):
                    raise QueryFileError(
                        f"{path}, row {row}: {len(cells)} cells under {len(header)} columns; "
                        "quote a cell that holds the delimiter, and write blank cells too"
                    )
                yield row, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise QueryFileError(
            f"{path}, row {row + 1}: {error}; "
            "close each quote, double it in a quoted cell, and shorten a cell over the limit"
        ) from error


def _json_line_rows(path: Path) -> Rows:
    """An object a line; blank lines are skipped."""
    with closing(_lines(path)) as lines:
        for row, line in enumerate(lines, 1):
            if line.strip():
                place = f"{path}, row {row}"
                if line.lstrip().startswith("["):
                    raise QueryFileError(
                        f"{place}: a JSON list; expected an object a line: if the whole file is "
                        "one list, rename it to .json"
                    )
                yield row, _json_object(read_json(line, place), place)


def _json_rows(path: Path) -> Rows:
    """A list of objects or of prompts, or the queries.json of a run."""
    if path.stat().st_size > MOST_TEXT:
        raise QueryFileError(f"{path} has over {MOST_TEXT} bytes; save it as .jsonl")
    value = read_json("".join(_lines(path, longest=MOST_TEXT)), str(path))
    if isinstance(value, dict) and isinstance(value.get("train"), list):
        try:
            value = _rows_of_run(value)
        except (AttributeError, TypeError) as error:
            raise QueryFileError(f"{path} is a damaged queries.json of a run ({error})") from error
    if not isinstance(value, list):
        kind = type(value).__name__
        raise QueryFileError(f"{path}: a JSON {kind}; expected a list of objects or of prompts")
    for row, item in enumerate(value, 1):
        cells = {"prompt": item} if isinstance(item, str) else item
        yield row, _json_object(cells, f"{path}, row {row}")


def _rows_of_run(record: dict[str, Any]) -> list[object]:
    """The queries of a run, which `envs.query_sets.QuerySet.record` has written."""
    names = ("groups", "categories", "chats", "answers")
    groups, categories, chats, answers = (record.get(name, {}) for name in names)
    return [
        {
            "prompt": [*chats[text], {"role": "user", "content": text}] if text in chats else text,
            "category": categories.get(text),
            "group of the run": groups.get(text),
            "side of the run": side,
            "answers": answers.get(text),
        }
        for side in SIDES
        for text in record.get(side, ())
    ]


def _json_object(value: object, place: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise QueryFileError(f"{place}: a JSON {type(value).__name__}; expected an object")
    return value


def read_json(text: str, place: str) -> Any:  # noqa: ANN401 - whatever it holds
    """What a JSON text holds; where it is not JSON, a QueryFileError that begins with `place`."""
    try:
        return parse_json(text)
    except ValueError as error:
        raise QueryFileError(f"{place}: {error}; mend it, or leave it out") from error


@contextmanager
def _parquet_file(path: Path) -> Iterator[Any]:
    """The open file; an error of pyarrow's within `with` is a QueryFileError."""
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError as error:
        raise QueryFileError(
            f"{path} needs pyarrow to be read ({error}): pip install 'mutagym[parquet]'"
        ) from error
    try:
        with pq.ParquetFile(path, buffer_size=2**20) as file:
            yield file
    except (pa.ArrowException, OSError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise QueryFileError(f"{path} cannot be read as Parquet ({why}); write it again") from error


def _parquet_header(path: Path) -> Rows:
    """One row of the columns' names."""
    with _parquet_file(path) as file:
        names = file.schema_arrow.names
    yield 0, dict.fromkeys(_distinct(names, path))


def _parquet_rows(path: Path, columns: list[str]) -> Rows:
    row = 0
    with _parquet_file(path) as file:
        for group in range(file.num_row_groups):
            # One value may be repeated in all rows. It is no longer than its whole row group.
            longest = max(1, file.metadata.row_group(group).total_byte_size)
            size = max(1, min(1000, BATCH_BYTES // longest))
            for batch in file.iter_batches(size, row_groups=[group], columns=columns):
                for cells in batch.to_pylist():
                    row += 1
                    yield row, cells


READERS: dict[str, Callable[[Path], Rows]] = {
    ".csv": partial(_delimited_rows, delimiter=","),
    ".tsv": partial(_delimited_rows, delimiter="\t"),
    ".jsonl": _json_line_rows,
    ".ndjson": _json_line_rows,
    ".json": _json_rows,
    ".txt": _text_rows,
    ".parquet": _parquet_header,
}
"""All rows of a file by its ending; of Parquet the header alone."""


def answers_in(value: object) -> tuple[str, ...]:
    """The right answers in a cell: its text or number, or those of a list, of which any is right.

    Those of an object stand under `text`, as in SQuAD. What is blank or none of these is left out.
    """
    found = value.get("text") if isinstance(value, dict) else value
    each = found if isinstance(found, list) else [found]
    texts = [
        str(one).strip()
        for one in each
        if isinstance(one, str | int | float) and not isinstance(one, bool)
    ]
    return tuple(dict.fromkeys(text for text in texts if text and is_text(text)))


def _bare(name: str) -> str:
    """A column's name without blanks and the byte order marks of files that were joined."""
    return name.strip().strip("\ufeff")


def _distinct(names: list[str], path: Path) -> list[str]:
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise QueryFileError(f"{path} has several columns named {quoted(twice)}: rename them")
    return names


def quoted(values: Iterable[str]) -> str:
    """Values for an error, in quotes: ten at most, the longest cut short."""
    short = (v if len(v) <= LONGEST_NAMED else f"{v[: LONGEST_NAMED - 3]}..." for v in values)
    named = [repr(value) for value in islice(short, MOST_NAMED + 1)]
    return ", ".join(named[:MOST_NAMED]) + (", ..." if named[MOST_NAMED:] else "")
