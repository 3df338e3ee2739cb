"""Replies on disk: every reply of a run, and a cache that runs share; both are one table in SQLite.

    replies(key, scope, server, model, digest, endpoint, request, reply, attempts, error, at_s)

`request` is the question as JSON, `reply` what came of it as JSON, empty beside an `error`; `attempts`
says how often the server was asked for it, 0 when it came with another reply or from another log. `key`
stands for scope, digest, endpoint and request; it is NULL where an equal question need not get an equal
reply: such a reply is written down and never found again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

from ollama_utils.questions import Question
from ollama_utils.sqlite_file import SqliteFile

_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (
    key BLOB, scope TEXT, server TEXT, model TEXT, digest TEXT, endpoint TEXT, request TEXT,
    reply TEXT, attempts INTEGER, error TEXT, at_s REAL
);
CREATE UNIQUE INDEX IF NOT EXISTS replies_by_key ON replies (key) WHERE error IS NULL;
"""
_INSERT = "INSERT INTO replies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_FIND = "SELECT reply FROM replies WHERE key = ? AND error IS NULL"
_LAST = "SELECT coalesce(max(rowid), 0) FROM replies"
_LATEST = "SELECT error FROM replies WHERE rowid > ? AND attempts > 0 ORDER BY rowid DESC LIMIT ?"
_TOTALS = """
SELECT coalesce(sum(attempts), 0),
    coalesce(sum(max(attempts - 1, 0)), 0),
    coalesce(sum(error IS NOT NULL), 0),
    coalesce(sum(CASE WHEN attempts > 0 AND endpoint = 'generate' AND error IS NULL
                      THEN json_extract(reply, '$.usage.completion_tokens') END), 0)
FROM replies
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a question."""

    reply: str = ""
    """The reply as JSON; empty beside an error."""
    error: str | None = None
    """Why there is no reply, as "ErrorClass: message"."""
    server: str = ""
    """Where it came from."""
    attempts: int = 0
    """How often the server was asked for it; 0 when it came along with another, or from another log."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What a log's replies cost."""

    calls: int
    """Requests that came to an end, each attempt counted."""
    retries: int
    """How many of these repeated one that had failed."""
    failures: int
    """Questions that were given up."""
    completion_tokens: int


class ReplyLog:
    """One file of replies, written by many threads, and by several processes when it is a shared cache.

    A reply is in the file when `write` returns, so it survives the end of the process, however it ends. (It
    is not forced through to the disk: the latest replies may be lost when the machine loses power.)

    Args:
        path: the file; it is made, but not its folder.
        digests: for each model that is asked, by its name without `:latest`, what stands for its weights.
            A model that is not here has the digest "".
        scope: what else must be equal for a reply to be found: the servers' names for a cache that several
            runs share; "" for the log of one run, which may go on at another server with the same models.

    Raises:
        ReplyLogError: the file cannot be made, or is no log.
    """

    def __init__(self, path: Path, *, digests: Mapping[str, str], scope: str = "") -> None:
        self._digests = dict(digests)
        self._scope = scope
        self._file = SqliteFile(path, _SCHEMA, what="the log of replies", lost="asked", synchronous="NORMAL")

    def find(self, question: Question) -> str | None:
        """The reply to an equal question, as JSON; None where there is none.

        Raises:
            ReplyLogError: the file cannot be read.
        """
        rows = self._file.execute(_FIND, (self._key(question),))
        return str(rows[0][0]) if rows else None

    def write(self, question: Question, outcome: Outcome) -> None:
        """Keep what came of a question; of two replies to equal questions the first one stays.

        Raises:
            ReplyLogError: the file cannot be written: the reply is not kept.
        """
        key = self._key(question) if question.repeatable else None
        digest = self._digests.get(question.model, "")
        why = None if outcome.error is None else outcome.error.encode("utf-8", "backslashreplace").decode()
        row = (key, self._scope, outcome.server, question.model, digest, question.endpoint, question.request)
        self._file.execute(_INSERT, (*row, outcome.reply, outcome.attempts, why, time.time()))

    def totals(self) -> Totals:
        """What all replies so far cost.

        Raises:
            ReplyLogError: the file cannot be read.
        """
        ((calls, retries, failures, tokens),) = self._file.execute(_TOTALS, ())
        return Totals(calls=calls, retries=retries, failures=failures, completion_tokens=tokens)

    def last(self) -> int:
        """The number of the row that was written last; 0 where there is none.

        Raises:
            ReplyLogError: the file cannot be read.
        """
        ((number,),) = self._file.execute(_LAST, ())
        return int(number)

    def latest(self, most: int, *, since: int = 0) -> list[str]:
        """What came of the latest questions that a server was asked, the newest first.

        Args:
            most: so many of them at most.
            since: only those whose row has a higher number.

        Returns:
            For each why it has no reply; "" where it has one.

        Raises:
            ReplyLogError: the file cannot be read.
        """
        return [error or "" for (error,) in self._file.execute(_LATEST, (since, most))]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a reply that comes later raises ReplyLogError."""
        self._file.close()

    def _key(self, question: Question) -> bytes:
        digest = self._digests.get(question.model, "")
        parts = [self._scope, digest, question.endpoint, question.model, question.request]
        return blake2b(json.dumps(parts).encode(), digest_size=16).digest()


def find_in(logs: Sequence[ReplyLog], question: Question) -> str | None:
    """The reply that one of the logs holds, as JSON, now in all logs before it, too; None where none does."""
    for place, log in enumerate(logs):
        if (reply := log.find(question)) is not None:
            for earlier in logs[:place]:
                earlier.write(question, Outcome(reply=reply))
            return reply
    return None
