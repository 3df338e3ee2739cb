"""Files of queries as tables, read as the endings of their names say."""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
MOST_NAMED = 10
"""How many names or values an error lists."""

Cells = Mapping[str, object]
"""A row's values by column: texts, or whatever JSON and Parquet have."""
NumberedRows = Iterable[tuple[int, Cells]]
"""Rows with their numbers, as `Query.row` has them."""


class QueryFileError(UserError, ValueError):
    """A file of queries cannot be used; the message is one line."""


@dataclass(frozen=True)
class QueryTable:
    """A file and its columns, in the file's order and spelling."""

    path: Path
    columns: tuple[str, ...]
    rows: Callable[[Sequence[str]], NumberedRows]
    """The rows, with the values of these columns at least."""

    def find(self, asked: str | None, usual: Sequence[str], flag: str = "") -> str | None:
        """The column asked for, or else the first of the usual ones, or None; case does not matter.

        Raises:
            QueryFileError: there is no column of the name asked for; the message names the `flag`.
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
        """The same where there must be one; the error names the usual ones and the `flag`."""
        if (found := self.find(asked, usual, flag)) is None:
            raise QueryFileError(
                f"{self.path} has columns {quoted(self.columns)}; expected one of {quoted(usual)}: "
                f"name it with {flag}"
            )
        return found


def read_table(path: Path) -> QueryTable:
    """The file at `path` as a table, read as its ending says.

    Raises:
        QueryFileError: the file is missing, of an unknown format, damaged or empty.
    """
    suffix = path.suffix.lower()
    try:
        if not path.is_file():
            names = [] if path.exists() else [each.name for each in path.parent.glob("*")]
            near = difflib.get_close_matches(path.name, names)
            hint = f"; did you mean {quoted(near)}?" if near else ""
            raise QueryFileError(f"there is no regular file {str(path)!r}{hint}")
        if suffix == ".parquet":
            with _parquet_file(path) as file:
                names = file.schema_arrow.names
            return QueryTable(path, _distinct(names, path), partial(_parquet_rows, path))
        if suffix not in READERS:
            expected = quoted([*READERS, ".parquet"])
            raise QueryFileError(f"{path} ends in {suffix!r}; expected one of {expected}")
        rows = list(READERS[suffix](path, _text(path)))
    except OSError as error:
        raise QueryFileError(f"{path} cannot be read: {error.strerror}") from error
    if not rows:
        raise QueryFileError(f"{path} is empty: expected at least one prompt")
    columns = dict.fromkeys(key for _, row in rows for key in row)
    return QueryTable(path, tuple(columns), lambda _: rows)


def _text(path: Path) -> str:
    """A file in UTF-8, or in UTF-16 with its byte order mark."""
    content = path.read_bytes()
    encoding = "utf-16" if content[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig"
    do = "save the file as UTF-8 (in a spreadsheet: CSV UTF-8)"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = len(_lines(content[: error.start].decode(encoding, "ignore")))
        raise QueryFileError(f"{path}, line {line}: not UTF-8 text; {do}") from error
    if "\0" in text:
        line = len(_lines(text.partition("\0")[0]))
        raise QueryFileError(f"{path}, line {line}: a NUL character; {do}")
    return text


def _lines(text: str) -> list[str]:
    r"""The lines, which end at \n, \r\n and \r alone: there may be a U+2028 in a prompt."""
    return re.split(r"\r\n|\r|\n", text)


def _text_rows(_path: Path, text: str) -> NumberedRows:
    """A prompt a line; blank lines are skipped."""
    return [(row, {"prompt": line}) for row, line in enumerate(_lines(text), 1) if line.strip()]


def _delimited_rows(path: Path, text: str, delimiter: str) -> NumberedRows:
    """A header, then as many cells in each row; rows of blank cells are skipped."""
    header: tuple[str, ...] = ()
    row = 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row, cells in enumerate(reader, 1):
            if not any(map(str.strip, cells)):
                continue
            if not header:
                header = _distinct([name.strip() for name in cells], path)
                continue
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


def _json_line_rows(path: Path, text: str) -> NumberedRows:
    """An object a line; blank lines are skipped."""
    for row, line in enumerate(_lines(text), 1):
        if line.strip():
            place = f"{path}, row {row}"
            yield row, _json_object(read_json(line, place), place)


def _json_rows(path: Path, text: str) -> NumberedRows:
    """A list of objects or of prompts, or the queries.json of a run."""
    value = read_json(text, str(path))
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
    guards = frozenset(record.get("guards", ()))
    return [
        {
            "prompt": [*chats[text], {"role": "user", "content": text}] if text in chats else text,
            "category": categories.get(text),
            "group of the run": groups.get(text),
            "side of the run": side,
            "answers": answers.get(text),
            "guard of the run": text in guards,
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
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise QueryFileError(f"{path} cannot be read as Parquet ({why}); write it again") from error


def _parquet_rows(path: Path, columns: Sequence[str]) -> NumberedRows:
    with _parquet_file(path) as file:
        return list(enumerate(file.read(columns=list(dict.fromkeys(columns))).to_pylist(), 1))


READERS: dict[str, Callable[[Path, str], NumberedRows]] = {
    ".csv": partial(_delimited_rows, delimiter=","),
    ".tsv": partial(_delimited_rows, delimiter="\t"),
    ".jsonl": _json_line_rows,
    ".ndjson": _json_line_rows,
    ".json": _json_rows,
    ".txt": _text_rows,
}
"""The rows in a text by the ending of its file."""


def answers_in(value: object) -> tuple[str, ...]:
    """The right answers in a cell: its text or number, or those of a list, of which any is right.

    Those of an object stand under `text`, as in SQuAD. What is blank, no text or none of these is
    left out.
    """
    found = value.get("text") if isinstance(value, dict) else value
    texts = (
        str(one).strip()
        for one in (found if isinstance(found, list) else [found])
        if isinstance(one, str | int | float) and not isinstance(one, bool)
    )
    known = (text for text in texts if text and "\0" not in text and is_text(text))
    return tuple(dict.fromkeys(known))


def _distinct(names: Sequence[str], path: Path) -> tuple[str, ...]:
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise QueryFileError(f"{path} has several columns named {quoted(twice)}: rename them")
    return tuple(names)


def quoted(values: Iterable[str]) -> str:
    """Values for an error, in quotes: ten at most, the longest cut short."""
    named = [f"{value!r:.60}" for value in islice(values, MOST_NAMED + 1)]
    return ", ".join(named[:MOST_NAMED]) + (", ..." if named[MOST_NAMED:] else "")
