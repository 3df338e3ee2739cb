"""Query sets: reading them from files, keeping some rows, and splitting them for training and evaluation."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.query_files import PROMPT_COLUMNS, SIDES, QueryFileError, Table, flaw, quoted, read_table, shown

__all__ = [
    "BUNDLED_QUERIES",
    "PROMPT_COLUMNS",
    "Query",
    "QueryFileError",
    "QuerySplitError",
    "load_queries",
    "queries_sha256",
    "split_queries",
]

logger = logging.getLogger(__name__)

BUNDLED_QUERIES = Path(__file__).parent / "data" / "over_refusal.csv"
"""600 harmless queries whose wording makes cautious models refuse, 60 in each of ten categories."""
BUNDLED_GUARD_QUERIES = BUNDLED_QUERIES.with_name("guard.csv")
"""300 queries that ought to be refused, worded like the harmless ones, 30 in each of their categories."""

CATEGORY_COLUMN = "category"
CONTEXT_COLUMNS = {"behavior": "contextstring"}
"""By prompt column, the column with a text the prompt is about, blank in most rows; case does not matter.

HarmBench's contextual behaviours mean nothing without their `ContextString`. As in HarmBench's own direct
requests it goes before the behaviour, with a line of three dashes between.
"""

LONGEST_TEXT = 100_000
"""Characters a prompt, its context, its group or its reference may have: some 25,000 tokens of English."""

VISIBLE = re.compile(r"[^\s\u200b-\u200d\u2060\ufeff]")
"""What makes a prompt more than blank: `str.strip` keeps characters without width."""


class QuerySplitError(ValueError):
    """Queries cannot be split as asked; the message is one line that says what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One query as its file states it."""

    text: str
    """The prompt, without blanks at its ends."""
    group: str
    """Queries of one group stay on one side of a split: the value of the group column, else the text."""
    reference: str | None = None
    """A good answer to compare with, from the reference column."""
    category: str | None = None
    """What it is about, from a column `category`: reports count by it."""
    row: int
    """The line in .txt and .jsonl; the place in .json and .parquet, from 1; in .csv and .tsv as a spreadsheet
    counts, the header being row 1."""


def load_queries(
    path: str | Path | None,
    *,
    prompt_column: str | None = None,
    where: Sequence[str] = (),
    group_column: str | None = None,
    reference_column: str | None = None,
) -> tuple[Query, ...]:
    """The queries of a file in its order, each text once.

    Args:
        path: A .csv, .tsv, .jsonl, .ndjson, .json or .txt file in UTF-8 (or in UTF-16 with its byte order
            mark), or a .parquet file; None means the bundled queries.
        prompt_column: The column with the prompts; None takes the first of `PROMPT_COLUMNS` present.
        where: Filters `column=value`; a row that meets all of them is kept.
        group_column: The column whose equal values belong together; where it is blank the text stands in.
            None: no two do; in the queries.json of a run, those that did there.
        reference_column: The column with a good answer.

    Raises:
        QueryFileError: The file or a row cannot be read, a column is unknown, a kept row has no prompt, or
            the filters leave nothing.
    """
    file = BUNDLED_QUERIES if path is None else Path(path)
    try:
        return _load(read_table(file), where, prompt_column, group_column, reference_column)
    except OSError as error:
        raise QueryFileError(f"{shown(file)} cannot be read: {error.strerror or error!r}") from error


def load_sides(path: Path) -> dict[str, tuple[Query, ...]]:
    """The queries of a run's queries.json, by the side of its split: see `SIDES`.

    Raises:
        QueryFileError: It is damaged, or no such file.
    """
    try:
        table = read_table(path)
        queries = _load(table, (), None, None, None)
        side_of = {text: side for _, (text, side) in table.rows(["prompt", "side"])}
    except OSError as error:
        raise QueryFileError(f"{shown(path)} cannot be read: {error.strerror or error!r}") from error
    return {side: tuple(query for query in queries if side_of.get(query.text) == side) for side in SIDES}


def split_queries(
    queries: Sequence[Query], *, held_out: float = 0.3, split_seed: int = 0
) -> tuple[tuple[Query, ...], tuple[Query, ...]]:
    """The queries for training and those held out, both in the order given.

    A hash of `split_seed` and the query's group decides: which other queries there are never moves a query, a
    group is never parted, and a larger share held out only adds to the queries held out.

    Args:
        queries: What to split.
        held_out: The share of groups held out, 0 to 1, met on average; 0 holds out none.
        split_seed: Another seed gives another split.

    Raises:
        QuerySplitError: The share is not between 0 and 1, or one of the two sides is empty.
    """
    if not 0 <= held_out <= 1:
        raise QuerySplitError(f"--held-out is {held_out!r}; expected a share between 0 and 1")
    is_held = [_place(query.group, split_seed) < held_out for query in queries]
    held = tuple(itertools.compress(queries, is_held))
    train = tuple(query for query, out in zip(queries, is_held, strict=True) if not out)
    if not train or (held_out > 0 and not held):
        side = "held out" if train else "left for training"
        groups = len({query.group for query in queries})
        raise QuerySplitError(
            f"no query is {side} (--held-out {held_out}, --split-seed {split_seed}, {groups} groups); "
            "bring more queries or change a flag"
        )
    return train, held


def queries_sha256(queries: Iterable[Query]) -> str:
    """The SHA-256, in hex, of the texts, groups and references in their order; rows do not count."""
    digest = hashlib.sha256()
    for query in queries:
        digest.update(json.dumps([query.text, query.group, query.reference]).encode() + b"\n")
    return digest.hexdigest()


def _load(
    table: Table, where: Sequence[str], prompt: str | None, group: str | None, reference: str | None
) -> tuple[Query, ...]:
    columns = _columns(table, prompt, group or table.group_column, reference)
    filters = [_filter(table, condition) for condition in where]
    first: dict[str, Query] = {}
    wanted = [value for _, value in filters]
    rows = kept = 0
    for row, values in table.rows([*columns.values(), *(name for name, _ in filters)]):
        rows += 1
        if not filters or [_plain(value) for value in values[len(columns) :]] == wanted:
            query = _query(table.source, row, columns, values)
            first.setdefault(query.text, query)
            kept += 1
    if not rows:
        raise QueryFileError(f"{table.source} is empty: expected at least one prompt")
    if not kept:
        raise _nothing_kept(table, filters)
    if len(first) < kept:
        logger.warning("%s: dropped %d of %d queries as duplicates", table.source, kept - len(first), kept)
    return tuple(first.values())


def _columns(table: Table, prompt: str | None, group: str | None, reference: str | None) -> dict[str, str]:
    """The columns to read by what they hold: the prompt; context, group and reference if there are any."""
    columns = {"prompt": _prompt_column(table, prompt)}
    context = CONTEXT_COLUMNS.get(columns["prompt"].casefold())
    if context in {column.casefold() for column in table.columns}:
        columns["context"] = table.column(str(context), "--prompt-column")
    if group is not None:
        columns["group"] = table.column(group, "--group-column")
    if reference is not None:
        columns["reference"] = table.column(reference, "--reference-column")
    if CATEGORY_COLUMN in table.columns:
        columns["category"] = CATEGORY_COLUMN
    return columns


def _prompt_column(table: Table, name: str | None) -> str:
    if name is not None:
        return table.column(name, "--prompt-column")
    present = {column.casefold() for column in table.columns}
    for known in PROMPT_COLUMNS:
        if known in present:
            return table.column(known, "--prompt-column")
    raise QueryFileError(
        f"{table.source} has columns {quoted(table.columns)}; expected one of {quoted(PROMPT_COLUMNS)}: "
        "name it with --prompt-column"
    )


def _filter(table: Table, condition: str) -> tuple[str, str]:
    """The column of a filter, spelt as in the file, and the value it asks for."""
    name, equals, value = condition.partition("=")
    if not equals:
        raise QueryFileError(f"--where is {condition!r}; expected column=value")
    return table.column(name.strip(), "--where"), value.strip()


def _nothing_kept(table: Table, filters: Sequence[tuple[str, str]]) -> QueryFileError:
    """Which filter left no row, and what its column holds in the rows that the filters before it keep."""
    names, wanted = [name for name, _ in filters], [value for _, value in filters]
    rows = [[_plain(value) for value in values] for _, values in table.rows(names)]
    left = (any(values[:count] == wanted[:count] for values in rows) for count in range(1, len(wanted)))
    place = sum(itertools.takewhile(bool, left))
    present = quoted(values[place] for values in rows if values[:place] == wanted[:place])
    return QueryFileError(
        f"{table.source} has no row left with --where {f'{names[place]}={wanted[place]}'!r}; "
        f"{names[place]!r} has {present}"
    )


def _query(source: str, row: int, columns: Mapping[str, str], values: Sequence[object]) -> Query:
    cells = dict(zip(columns, map(_plain, values), strict=False))
    if not isinstance(values[0], str | None):
        raise QueryFileError(
            f"{source}, row {row}: {columns['prompt']!r} holds {quoted([cells['prompt']])} "
            f"({type(values[0]).__name__}); expected text"
        )
    if not VISIBLE.search(cells["prompt"]):
        raise QueryFileError(
            f"{source}, row {row}: {columns['prompt']!r} is blank; write a prompt or remove the row"
        )
    category = cells.pop("category", None)
    for role, text in cells.items():
        if len(text) > LONGEST_TEXT or flaw(text):
            raise _unusable(f"{source}, row {row}: {columns[role]!r}", text)
    text = f"{cells['context']}\n\n---\n\n{cells['prompt']}" if cells.get("context") else cells["prompt"]
    return Query(
        text=text,
        group=cells.get("group") or text,
        reference=cells.get("reference") or None,
        category=category if category and len(category) <= LONGEST_TEXT and not flaw(category) else None,
        row=row,
    )


def _unusable(place: str, text: str) -> QueryFileError:
    if len(text) > LONGEST_TEXT:
        return QueryFileError(f"{place} has {len(text)} characters; shorten it to {LONGEST_TEXT}")
    return QueryFileError(f"{place} holds {flaw(text)}; remove it, or write the character meant")


def _plain(value: object) -> str:
    """A field as text without blanks at its ends; "" where it is missing."""
    if isinstance(value, str):
        return value.strip()
    if value is None:
        return ""
    return (
        json.dumps(value, default=str) if isinstance(value, bool | int | float | list | dict) else str(value)
    )


def _place(group: str, split_seed: int) -> float:
    """A number from 0 up to 1 that depends on nothing but the group and the seed."""
    digest = hashlib.blake2b(f"{split_seed}:{group}".encode("utf-8", "surrogatepass"), digest_size=6)
    # 48 bits are exact in a float: the quotient never rounds up to 1.
    return int.from_bytes(digest.digest(), "big") / 2**48
