"""Replies on disk: every reply of a run, and a cache that runs share. Both are one table in SQLite.

    replies(key, scope, server, model, digest, endpoint, request, reply, attempts, error, at_s)

`request` is the question as JSON in one fixed form, `reply` what came of it as JSON, empty beside an
`error`; `attempts` is how many requests it took, 0 when it came with another reply or from
another log. `key` stands for scope, digest, endpoint and request; it is NULL where an equal question need
not get an equal reply: such a reply is written down and never found again.

`Question` and `CallOutcome` are what is kept, `ReplyLog` is the table, `SqliteFile` the file under it.
Replies in memory are `single_flight`.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ollama_utils.errors import BadReplyError, BadRequestError, ReplyLogError
from ollama_utils.types import Call, Completion, Usage, is_count, is_text, short_name
from records.reading import parse_json

_AS_JSON = json.JSONEncoder(default=dict, allow_nan=False)
_LONGEST = 1.001
_USAGE = tuple(field.name for field in fields(Usage))
_BUSY_S = 60.0
_RETRY_S = 0.01
_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (
    key BLOB, scope TEXT, server TEXT, model TEXT, digest TEXT, endpoint TEXT, request TEXT,
    reply TEXT, attempts INTEGER, error TEXT, at_s REAL
);
CREATE UNIQUE INDEX IF NOT EXISTS replies_by_key ON replies (key) WHERE error IS NULL;
"""
_FORGET = "UPDATE replies SET key = NULL WHERE key = ? AND error IS NULL"
_INSERT = "INSERT INTO replies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_FIND = "SELECT reply FROM replies WHERE key = ? AND error IS NULL"
_FORGET_SINCE = "UPDATE replies SET key = NULL WHERE model = ? AND at_s >= ?"
_OF_OTHERS = "SELECT 1 FROM sqlite_master WHERE type IN ('trigger', 'view') LIMIT 1"
"""What no file of ours has, and what would be run at each reply: it may have no end."""
_LAST = "SELECT coalesce(max(rowid), 0) FROM replies"
_LATEST = "SELECT error FROM replies WHERE rowid > ? AND attempts > 0 ORDER BY rowid DESC LIMIT ?"
_TOTALS = """
SELECT coalesce(sum(attempts), 0),
    coalesce(sum(max(attempts - 1, 0)), 0),
    coalesce(sum(error IS NOT NULL), 0),
    total(CASE WHEN tokens BETWEEN 0 AND 1e15 THEN tokens END)
FROM (
    SELECT attempts, error,
        CASE WHEN attempts > 0 AND endpoint <> 'embed' AND error IS NULL AND json_valid(reply)
             THEN json_extract(reply, '$.usage.completion_tokens') END AS tokens
    FROM replies
)
"""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is sent to a model, as the log keeps it."""

    endpoint: Literal["generate", "chat", "embed"]
    model: str
    """The name, without the tag `:latest`."""
    request: str
    """Everything else that decides the reply, as JSON in one fixed form."""
    repeatable: bool = True
    """Whether an equal question gets an equal reply."""


@dataclass(frozen=True, kw_only=True)
class CallOutcome:
    """What came of a question."""

    reply: str = ""
    """The reply as JSON; empty beside an error."""
    error: str | None = None
    """Why there is no reply, as "ErrorClass: message"."""
    server: str = ""
    """Where it came from."""
    attempts: int = 0
    """How many requests it took; 0 when it came along with another, or from another log."""


def question_of(call: Call) -> Question:
    """The question that a call is; equal calls are equal questions.

    Without examples it is written as before there were any, so that older logs are found.

    Raises:
        BadRequestError: the call holds what JSON cannot.
    """
    fields = {name: value for name, value in vars(call).items() if name != "model"}
    if not call.examples:
        del fields["examples"]
    try:
        fields["options"] = dict(sorted(call.options.items()))
        request = _AS_JSON.encode(fields)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequestError(f"the call to {call.model!r} cannot be written as JSON: {error}") from error
    return Question(
        endpoint="chat" if call.examples else "generate",
        model=short_name(call.model),
        request=request,
        repeatable=call.repeatable,
    )


def as_json(completion: Completion) -> str:
    """A reply as a log keeps it, which `from_json` reads again.

    Raises:
        BadReplyError: it could not be read again.
    """
    kept = {
        "text": completion.text,
        "truncated": completion.truncated,
        "usage": None if completion.usage is None else vars(completion.usage),
    }
    try:
        _kept(kept)
    except ValueError as error:
        raise BadReplyError(f"a reply cannot be kept: {error}") from error
    return json.dumps(kept, ensure_ascii=False)


def from_json(reply: str) -> Completion:
    """The reply that a log kept, marked as one that an earlier call paid for.

    Raises:
        ValueError: it is none.
    """
    return _kept(parse_json(reply))


def _kept(kept: object) -> Completion:
    """The reply that is kept so.

    Raises:
        ValueError: it is none.
    """
    found = kept if isinstance(kept, dict) else {}
    text, truncated, told = found.get("text"), found.get("truncated"), found.get("usage")
    if not isinstance(text, str) or not is_text(text) or not isinstance(truncated, bool):
        raise ValueError("expected a text and whether it was cut")
    if told is None:
        return Completion(text=text, truncated=truncated, cached=True, attempts=0)
    usage = {name: told.get(name, 0) for name in _USAGE} if isinstance(told, dict) else {"": None}
    if not all(map(is_count, usage.values())):
        raise ValueError("expected counts and durations in its usage")
    return Completion(text=text, truncated=truncated, usage=Usage(**usage), cached=True, attempts=0)


def _check_readable(question: Question, reply: str) -> None:
    """Check what a log holds as the reply to a question.

    Raises:
        ValueError: it cannot be read.
    """
    if question.endpoint != "embed":
        from_json(reply)
        return
    try:
        row = np.asarray(parse_json(reply), dtype=np.float64)
    except (TypeError, OverflowError) as error:
        raise ValueError("expected numbers") from error
    if row.ndim != 1 or not row.size or not (np.abs(row) <= _LONGEST).all():
        raise ValueError("expected the numbers of a row of length 1")


def embed_question(model: str, text: str) -> Question:
    """The question that the embedding of a text is."""
    return Question(endpoint="embed", model=short_name(model), request=json.dumps(text))


@dataclass(frozen=True, kw_only=True)
class LogTotals:
    """What a log's replies cost."""

    calls: int
    """Requests that came to an end, each attempt counted."""
    retries: int
    """How many of these repeated one that had failed."""
    failures: int
    """Questions that were given up."""
    completion_tokens: int


class ReplyLog(AbstractContextManager["ReplyLog"]):
    """One file of replies, written by many threads, and by several processes when it is a shared cache.

    A reply is in the file when `write` returns, so it survives the end of the process, however it ends. (It
    is not forced through to the disk: the latest replies may be lost when the machine loses power.)

    Args:
        path: the file; it is made, but not its folder.
        digests: for each model that is called, by its name without `:latest`, what stands for its weights.
            A model that is not here has the digest "".
        scope: what else must be equal for a reply to be found: the servers' names for a cache that several
            runs share; "" for the log of one run, which may go on at another server with the same models.

    Raises:
        ReplyLogError: the file cannot be made, or is not a log.
    """

    def __init__(self, path: Path, *, digests: Mapping[str, str], scope: str = "") -> None:
        self._digests = dict(digests)
        self._scope = scope
        self._path = path
        self._told_of_damage = False
        self._file = SqliteFile(path, _SCHEMA, what="the log of replies", lost="asked", synchronous="NORMAL")

    def find(self, question: Question) -> str | None:
        """The reply to an equal question, as JSON; None where there is none.

        One that cannot be read counts as none and is found no more; the first of them is told on stderr.

        Raises:
            ReplyLogError: the file cannot be read.
        """
        key = self._key(question)
        rows = self._file.execute(_FIND, (key,))
        if not rows:
            return None
        reply = str(rows[0][0])
        try:
            _check_readable(question, reply)
        except ValueError as error:
            self._file.execute(_FORGET, (key,))
            self._tell_of_damage(error)
            return None
        return reply

    def write(self, question: Question, outcome: CallOutcome) -> None:
        """Keep what came of a question; of two replies to equal questions the first one stays.

        Raises:
            ReplyLogError: the file cannot be written: the reply is not kept.
        """
        key = self._key(question) if question.repeatable else None
        digest = self._digests.get(question.model, "")
        why = None if outcome.error is None else outcome.error.encode("utf-8", "backslashreplace").decode()
        row = (key, self._scope, outcome.server, question.model, digest, question.endpoint, question.request)
        self._file.execute(_INSERT, (*row, outcome.reply, outcome.attempts, why, time.time()))

    def forget(self, model: str, since_s: float) -> None:
        """Find none of a model's replies any more that came since a moment; they stay written down.

        Args:
            model: its name, without `:latest`.
            since_s: by `time.time`.

        Raises:
            ReplyLogError: the file cannot be written.
        """
        self._file.execute(_FORGET_SINCE, (model, since_s))

    def totals(self) -> LogTotals:
        """What all replies so far cost.

        Raises:
            ReplyLogError: the file cannot be read.
        """
        ((calls, retries, failures, tokens),) = self._file.execute(_TOTALS, ())
        return LogTotals(calls=calls, retries=retries, failures=failures, completion_tokens=int(tokens))

    def last(self) -> int:
        """The number of the row that was written last; 0 where there is none.

        Raises:
            ReplyLogError: the file cannot be read.
        """
        ((number,),) = self._file.execute(_LAST, ())
        return int(number)

    def latest(self, most: int, *, since: int = 0) -> list[str]:
        """What came of the latest questions that were sent to a server, the newest first.

        Args:
            most: so many of them at most.
            since: only those whose row has a higher number.

        Returns:
            For each the error; "" where it has a reply.

        Raises:
            ReplyLogError: the file cannot be read.
        """
        return [error or "" for (error,) in self._file.execute(_LATEST, (since, most))]

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a reply that comes later raises ReplyLogError."""
        self._file.close()

    def _tell_of_damage(self, error: ValueError) -> None:
        if not self._told_of_damage:
            self._told_of_damage = True
            why = " ".join(str(error).split())
            sys.stderr.write(
                f"note: {str(self._path)!r} holds a reply that cannot be read back ({why}): it counts as "
                "absent, and the call is made anew; more of them are not told of\n"
            )

    def _key(self, question: Question) -> bytes:
        digest = self._digests.get(question.model, "")
        parts = [self._scope, digest, question.endpoint, question.model, question.request]
        return blake2b(json.dumps(parts).encode(), digest_size=16).digest()


def find_in(logs: Sequence[ReplyLog], question: Question) -> str | None:
    """The reply that one of the logs holds, as JSON, now in all logs before it, too; None where none does."""
    for place, log in enumerate(logs):
        if (reply := log.find(question)) is not None:
            for earlier in logs[:place]:
                earlier.write(question, CallOutcome(reply=reply))
            return reply
    return None


def _text(stored: bytes) -> str:
    """A text as it is stored; what is not UTF-8 becomes what `is_text` refuses, not an error of SQLite's."""
    return stored.decode("utf-8", "surrogateescape")


def check_tables_alone(database: sqlite3.Connection) -> None:
    """Distrust what the schema of a file of anybody calls, and check that reading it runs nothing of theirs.

    Raises:
        sqlite3.Error: it has a trigger or a view, or is no database.
    """
    database.execute("PRAGMA trusted_schema = OFF")
    if database.execute(_OF_OTHERS).fetchone():
        raise sqlite3.DatabaseError("it has a trigger or a view")


class SqliteFile:
    """A file whose every failure is one error that says what to do.

    A statement that has returned survives the end of the process. What a power cut may take is up to
    `synchronous`, see SQLite's PRAGMA.

    Args:
        path: the file; it is made, but not its folder.
        schema: statements that make the tables where there are none.
        what: what the file is called in errors.
        lost: what happens to what is in it when it is deleted.
        synchronous: NORMAL, or OFF for what can be made again.

    Raises:
        ReplyLogError: the file cannot be made, or is not a database.
    """

    def __init__(
        self, path: Path, schema: str, *, what: str, lost: str, synchronous: Literal["NORMAL", "OFF"]
    ) -> None:
        self._path = path
        self._what = what
        self._lost = lost
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._failure(error) from error
        self._database.text_factory = _text
        try:
            self._use_a_write_ahead_log()
            self._database.execute(f"PRAGMA synchronous = {synchronous}")
            check_tables_alone(self._database)
            self._database.executescript(schema)
        except sqlite3.Error as error:
            self._database.close()
            raise self._failure(error) from error

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """The rows that a statement gives.

        Raises:
            ReplyLogError: the file cannot be read or written.
        """
        try:
            with self._lock:
                return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Close the file; what is executed later raises ReplyLogError."""
        with self._lock:
            self._database.close()

    def _use_a_write_ahead_log(self) -> None:
        """Wait for another process that makes the file just now: here SQLite does not wait by itself."""
        patience_ends = time.monotonic() + _BUSY_S
        while True:
            try:
                self._database.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > patience_ends:
                    raise
                time.sleep(_RETRY_S)
            else:
                return

    def _failure(self, error: sqlite3.Error) -> ReplyLogError:
        hint = ""
        if type(error) is sqlite3.DatabaseError:  # malformed, or not a database
            hint = f"; delete it: what is in it is {self._lost} again"
        return ReplyLogError(f"{self._what} {str(self._path)!r} cannot be used: {error}{hint}")
