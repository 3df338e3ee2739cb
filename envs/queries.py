"""Query sets: reading them from files, keeping some rows, and splitting them for training and evaluation."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.query_tables import QueryFileError, Record, Table, quoted, read_table

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

PROMPT_COLUMNS = ("prompt", "query", "question", "forbidden_prompt", "prompt_text", "goal", "behavior")
"""Headers that hold the prompt, the first one present wins; case does not matter.

XSTest and OR-Bench have `prompt`, StrongREJECT `forbidden_prompt`, AILuminate `prompt_text`, AdvBench `goal`,
HarmBench `Behavior`; JailbreakBench has both `Goal` (the request) and `Behavior` (a title for it).
"""


class QuerySplitError(ValueError):
    """Queries cannot be split as asked; the message is one line that says what to do."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query as its file states it."""

    text: str
    """The prompt, without blanks at its ends."""
    group: str
    """Queries of one group stay on one side of a split: the value of the group column, else the text."""
    reference: str | None = None
    """A good answer to compare with, from the reference column."""
    row: int
    """The line in .txt and .jsonl; in .csv and .tsv as a spreadsheet counts, the header being row 1."""


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
        path: A .csv, .tsv, .jsonl, .ndjson or .txt file in UTF-8; None means the bundled queries.
        prompt_column: The column with the prompts; None takes the first of `PROMPT_COLUMNS` present.
        where: Filters `column=value`; a row that meets all of them is kept.
        group_column: The column whose equal values belong together; where it is blank the text stands in.
        reference_column: The column with a good answer.

    Raises:
        QueryFileError: The file or a row cannot be read, a column is unknown, a kept row has no prompt, or
            the filters leave nothing.
    """
    table = read_table(BUNDLED_QUERIES if path is None else Path(path))
    prompts = _prompt_column(table, prompt_column)
    groups = _optional_column(table, group_column, "--group-column")
    references = _optional_column(table, reference_column, "--reference-column")
    records = _matching(table, where)
    return _without_duplicates(table, [_query(table, r, prompts, groups, references) for r in records])


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
    train = tuple(query for query in queries if _place(query.group, split_seed) >= held_out)
    held = tuple(query for query in queries if _place(query.group, split_seed) < held_out)
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


def _optional_column(table: Table, name: str | None, flag: str) -> str | None:
    return None if name is None else table.column(name, flag)


def _matching(table: Table, where: Sequence[str]) -> Sequence[Record]:
    """The rows that meet every filter `column=value`."""
    records: Sequence[Record] = table.records
    for condition in where:
        name, equals, value = condition.partition("=")
        if not equals:
            raise QueryFileError(f"--where is {condition!r}; expected column=value")
        column = table.column(name.strip(), "--where")
        kept = [record for record in records if _cell(record, column) == value.strip()]
        if not kept:
            present = quoted(_cell(record, column) for record in records)
            raise QueryFileError(
                f"{table.source} has no row left with --where {condition}; {column!r} has {present}"
            )
        records = kept
    return records


def _cell(record: Record, column: str | None) -> str:
    """A field as text without blanks at its ends; "" where the column or the field is missing."""
    value = record.fields.get(column) if column is not None else None
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value)


def _query(table: Table, record: Record, prompts: str, groups: str | None, references: str | None) -> Query:
    text = _prompt(table, record, prompts)
    group = _cell(record, groups) or text
    return Query(text=text, group=group, reference=_cell(record, references) or None, row=record.row)


def _prompt(table: Table, record: Record, column: str) -> str:
    value = record.fields.get(column)
    place = f"{table.source}, row {record.row}: {column!r}"
    if value is not None and not isinstance(value, str):
        raise QueryFileError(f"{place} holds a JSON {type(value).__name__}; expected text")
    text = _cell(record, column)
    if not text:
        raise QueryFileError(f"{place} is blank; write a prompt or remove the row")
    return text


def _without_duplicates(table: Table, queries: Sequence[Query]) -> tuple[Query, ...]:
    first: dict[str, Query] = {}
    for query in queries:
        first.setdefault(query.text, query)
    if len(first) < len(queries):
        dropped = len(queries) - len(first)
        logger.warning("%s: dropped %d of %d queries as duplicates", table.source, dropped, len(queries))
    return tuple(first.values())


def _place(group: str, split_seed: int) -> float:
    """A number from 0 up to 1 that depends on nothing but the group and the seed."""
    digest = hashlib.blake2b(f"{split_seed}:{group}".encode("utf-8", "surrogatepass"), digest_size=6)
    # 48 bits are exact in a float: the quotient never rounds up to 1.
    return int.from_bytes(digest.digest(), "big") / 2**48
