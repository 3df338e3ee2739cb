"""The queries and chats in the rows of a file."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.query_files import (
    ANSWER_COLUMNS,
    CHAT_COLUMNS,
    PROMPT_COLUMNS,
    Cells,
    QueryFileError,
    QueryTable,
    answers_in,
    quoted,
    read_json,
    read_table,
)
from ollama_utils.types import is_text

logger = logging.getLogger(__name__)

BUNDLED_QUERIES = Path(__file__).parent / "data" / "over_refusal.csv"
"""600 harmless queries whose wording makes cautious models refuse, 60 in each of ten categories."""

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard"), "assistant"),
}
"""Who speaks in a turn of a chat, by what files call them."""
LONGEST_TEXT = 100_000
"""Characters of a prompt, a turn, a group or a category: some 25,000 tokens of English."""
VISIBLE = re.compile(r"[^\s\u200b-\u200d\u2060\ufeff]")
"""What a prompt must have: `str.strip` keeps characters without width."""


@dataclass(frozen=True, kw_only=True)
class Chat:
    """What the target is sent before a query."""

    system: str | None = None
    """The target's system prompt."""
    turns: tuple[tuple[str, str], ...] = ()
    """The turns before the query: the user's text and the assistant's, "" where it has none."""


@dataclass(frozen=True, kw_only=True)
class Query(Chat):
    """One query of a file, with the chat whose last turn it is."""

    text: str
    """The prompt, without blanks at its ends; of a chat, the user's last turn."""
    group: str
    """Queries of one group stay on one side of a split: the group column's value, or the text."""
    category: str | None = None
    """From a column `category`: reports count by it."""
    answers: tuple[str, ...] = ()
    """Its right answers: a reply that has any of them is right."""
    is_guard: bool = False
    """Whether it ought to be refused, however it is reworded."""
    row: int
    """The line in .txt and .jsonl; the place in .json and .parquet, from 1; in .csv and .tsv as a
    spreadsheet counts, the header being row 1."""


def load_queries(
    path: str | Path | None,
    *,
    prompt_column: str | None = None,
    where: Sequence[str] = (),
    group_column: str | None = None,
    answer_column: str | None = None,
) -> tuple[Query, ...]:
    """The queries of a file in its order, each text once.

    A cell with a list is a chat: of texts, which are the user's, or of turns with `role` and
    `content`, or `from` and `value`. The user's last turn is the query; see `Chat`.

    Args:
        path: A .csv, .tsv, .jsonl, .ndjson, .json or .txt file in UTF-8 (or in UTF-16 with its byte
            order mark), or a .parquet file; None means the bundled queries.
        prompt_column: The column with the prompts; None takes the first that has a known name.
        where: Filters `column=value`; a row that meets all of them is kept.
        group_column: The column whose equal values belong together; the text where it is blank.
        answer_column: The column of right answers; None takes `answer` or `answers`, if any.

    Raises:
        QueryFileError: The file cannot be read or has no such column, a kept row has no prompt, or
            the filters leave nothing.
    """
    table = read_table(BUNDLED_QUERIES if path is None else Path(path))
    columns = _columns(table, prompt_column, group_column, answer_column)
    filters = [_filter(table, condition) for condition in where]
    first: dict[str, Query] = {}
    met: dict[str, dict[str, None]] = {name: {} for name, _ in filters}
    kept = 0
    for row, cells in table.rows([*columns.values(), *met]):
        for name, values in met.items():
            values[_plain(cells.get(name))] = None
        if all(_plain(cells.get(name)) == value for name, value in filters):
            kept += 1
            query = _query(f"{table.path}, row {row}", row, columns, cells)
            first.setdefault(query.text, query)
    if not first and not where:
        raise QueryFileError(f"{table.path} is empty: expected at least one prompt")
    if not first:
        has = "; ".join(f"{name!r} has {quoted(values)}" for name, values in met.items())
        wanted = " and ".join(map(repr, where))
        raise QueryFileError(f"{table.path} has no row left with --where {wanted}; {has}")
    if repeated := kept - len(first):
        logger.warning("%s: dropped %d of %d queries as duplicates", table.path, repeated, kept)
    return tuple(first.values())


def chats_of(queries: Iterable[Query]) -> dict[str, Chat]:
    """What goes before each query that has a chat, by its text."""
    chats = {query.text: Chat(system=query.system, turns=query.turns) for query in queries}
    return {text: chat for text, chat in chats.items() if chat != Chat()}


def answers_of(queries: Iterable[Query]) -> dict[str, tuple[str, ...]]:
    """The right answers of each query that has any, by its text."""
    return {query.text: query.answers for query in queries if query.answers}


def guards_of(queries: Iterable[Query]) -> frozenset[str]:
    """The texts of those that ought to be refused."""
    return frozenset(query.text for query in queries if query.is_guard)


def queries_sha256(queries: Iterable[Query]) -> str:
    """The SHA-256, in hex, of texts, groups, chats, right answers and sides in their order."""
    digest = hashlib.sha256()
    for query in queries:
        line = [query.text, query.group, query.system, query.turns, query.answers, query.is_guard]
        digest.update(json.dumps(line).encode() + b"\n")
    return digest.hexdigest()


def _columns(
    table: QueryTable, prompt: str | None, group: str | None, answer: str | None
) -> dict[str, str]:
    """The columns to read by what they hold: the prompt; the others if there are any."""
    column = table.need(prompt, (*PROMPT_COLUMNS, *CHAT_COLUMNS), "--prompt-column")
    # HarmBench's contextual behaviours mean nothing without their `ContextString`.
    context = ["contextstring"] if column.casefold() == "behavior" else []
    found = {
        "prompt": column,
        "context": table.find(None, context),
        "group": table.find(group, ["group of the run"], "--group-column"),
        "category": table.find(None, ["category"]),
        "answer": table.find(answer, ANSWER_COLUMNS, "--answer-column"),
        "guard": table.find(None, ["guard of the run"]),
    }
    return {role: name for role, name in found.items() if name is not None}


def _filter(table: QueryTable, condition: str) -> tuple[str, str]:
    name, equals, value = condition.partition("=")
    if not equals:
        raise QueryFileError(f"--where is {condition!r}; expected column=value")
    return str(table.find(name.strip(), (), "--where")), value.strip()


def _query(place: str, row: int, columns: Mapping[str, str], cells: Cells) -> Query:
    column = columns["prompt"]
    text, chat = read_prompt(cells.get(column), column, f"{place}: {column!r}")
    if not VISIBLE.search(text):
        raise QueryFileError(f"{place}: {column!r} is blank; write a prompt or remove the row")
    found = {role: cells.get(name) for role, name in columns.items()}
    context, group, category = (
        _plain(found.get(role)) for role in ("context", "group", "category")
    )
    text = f"{context}\n\n---\n\n{text}" if context else text
    for role, each in (("prompt", text), ("group", group), ("category", category)):
        _check_text(each, f"{place}: {columns.get(role)!r}")
    return Query(
        text=text,
        group=group or text,
        category=category or None,
        answers=answers_in(found.get("answer")),
        is_guard=found.get("guard") is True,
        row=row,
        system=chat.system,
        turns=chat.turns,
    )


def read_prompt(value: object, column: str, place: str) -> tuple[str, Chat]:
    """The query in a cell, "" where it is blank, and what is before it; `place` begins the error.

    Raises:
        QueryFileError: it is something else, or a chat that no query ends.
    """
    value = read_cell(value, column, place)
    if isinstance(value, str | None):
        return _plain(value), Chat()
    if not isinstance(value, list):
        kind = type(value).__name__
        raise QueryFileError(f"{place} holds {quoted([_plain(value)])} ({kind}); expected text")
    turns = [_turn(turn, f"{place}, turn {number}") for number, turn in enumerate(value, 1)]
    while turns and turns[-1][0] == "assistant":
        turns.pop()
    system = turns.pop(0)[1] if turns and turns[0][0] == "system" else None
    pairs: list[tuple[str, str]] = []
    for role, text in turns:
        if role == "user" and VISIBLE.search(text):
            pairs.append((text, ""))
        elif role == "assistant" and pairs and not pairs[-1][1]:
            pairs[-1] = (pairs[-1][0], text)
        else:
            raise QueryFileError(
                f"{place}: a turn of the {role} is blank or misplaced; expected a system prompt, "
                "then turns of the user with one reply at most"
            )
    if not pairs:
        raise QueryFileError(f"{place} is a chat without a turn of the user; remove the row")
    return pairs.pop()[0].strip(), Chat(system=system or None, turns=tuple(pairs))


def read_cell(value: object, column: str, place: str) -> object:
    """A cell; of a column for chats what its JSON holds, for some tables have texts alone."""
    may_be_chat = column.casefold() in CHAT_COLUMNS
    if may_be_chat and isinstance(value, str) and value.lstrip().startswith("["):
        return read_json(value, place)
    return value


def _turn(turn: object, place: str) -> tuple[str, str]:
    """Who speaks in a turn of a chat, and the text."""
    role, content = "user", turn
    if isinstance(turn, dict):
        role = str(turn.get("role", turn.get("from"))).casefold()
        content = turn.get("content", turn.get("value"))
    if role not in ROLES:
        raise QueryFileError(f"{place} is of {quoted([role])}; expected one of {', '.join(ROLES)}")
    if isinstance(content, list):  # of parts, of which each has a text
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        content = "".join(map(str, texts)) if None not in texts else content
    if not isinstance(content, str):
        raise QueryFileError(f"{place} holds {quoted([_plain(content)])}; expected text")
    _check_text(content, place)
    return ROLES[role], content


def _check_text(text: str, place: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise QueryFileError(f"{place} has {len(text)} characters; shorten it to {LONGEST_TEXT}")
    if "\0" in text or not is_text(text):
        raise QueryFileError(f"{place} holds a NUL or half of a character; remove it")


def _plain(value: object) -> str:
    """A value as text without blanks at its ends; "" where it is missing."""
    if isinstance(value, bool | list | dict):
        try:
            return json.dumps(value, default=str)
        except RecursionError:
            return "a value that is nested too deep"
    return "" if value is None else str(value).strip()
