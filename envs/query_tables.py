"""Files of queries as tables: columns that are read row by row, and the errors every format shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SHOWN = 10
"""How many names or values an error lists before it says how many more there are."""
LONGEST_SHOWN = 60
"""Characters of one value that an error shows."""

PROMPT_COLUMNS = ("prompt", "query", "question", "forbidden_prompt", "prompt_text", "goal", "behavior")
"""Headers that hold the prompt, the first one present wins; case does not matter.

XSTest and OR-Bench have `prompt`, StrongREJECT `forbidden_prompt`, AILuminate `prompt_text`, AdvBench `goal`,
HarmBench `Behavior`; JailbreakBench has both `Goal` (the request) and `Behavior` (a title for it).
"""

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
    """Reads the file anew, in its order, with the values of the columns named; raises QueryFileError."""

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
        return f"{text[error.start]!r}, which is no character"
    return None
