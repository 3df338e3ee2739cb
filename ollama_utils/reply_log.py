"""Replies on disk: every reply of a run, and a cache that runs share. Both are one table in SQLite.

    replies(key, scope, server, model, digest, endpoint, request, reply, attempts, error, at_s)

`request` is the question as JSON, `reply` the reply as JSON, "" beside an `error`; `attempts` is
how many requests it took, 0 when it came with another reply or from another log. `key` is a hash of
all that decides the reply; it is NULL where an equal question need not get an equal reply: such a
row is written down and never found.

A log may be a stranger's. So a file is used only if its schema is ours letter for letter, which
leaves nothing in it that SQLite would run or compute; rows are bounded in size.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ollama_utils.errors import BadRequestError, ReplyLogError
from ollama_utils.types import Call, Completion, Usage, is_count, is_text, short_name

CACHE = "cache.sqlite"
"""The log in a folder that runs share."""
MOST_ROW_BYTES = 2**26
"""Bytes of a row, read or written: 64 MiB, more than the longest reply that is read."""
MOST_S = 60.0
"""Seconds that a statement waits for another process."""
_SCHEMA_STEPS = 1000
_PAUSES_S = (0.1, 0.3, 1.0, 3.0)
"""Steps of SQLite's machine: many more than our schema takes, few of one of a million tables."""
_ALONE = "mode=ro&vfs=unix-none"
"""Opens a log with a write-ahead log that no process has open."""
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_AS_JSON = json.JSONEncoder(default=dict, allow_nan=False)

_TABLE = """CREATE TABLE replies (
    key BLOB, scope TEXT, server TEXT, model TEXT, digest TEXT, endpoint TEXT, request TEXT,
    reply TEXT, attempts INTEGER, error TEXT, at_s REAL
)"""
_INDEX = "CREATE UNIQUE INDEX replies_by_key ON replies (key) WHERE error IS NULL"
_SCHEMA = [
    (b"table", b"replies", b"replies", _TABLE.encode()),
    (b"index", b"replies_by_key", b"replies", _INDEX.encode()),
]
_READ_SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_master"
_FIND = "SELECT coalesce(CAST(reply AS BLOB), x'') FROM replies WHERE key = ? AND error IS NULL"
_DELETE = "DELETE FROM replies WHERE key = ? AND error IS NULL"
_INSERT = "INSERT INTO replies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_FORGET = "UPDATE replies SET key = NULL WHERE model = ? AND at_s >= ?"
_LAST = "SELECT coalesce(max(rowid), 0) FROM replies"
_LATEST = """
SELECT CAST(error AS TEXT) FROM replies WHERE rowid > ? AND attempts > 0 ORDER BY rowid DESC LIMIT ?
"""
_TOKENS = tuple(each.name for each in fields(Usage) if each.name.endswith("_tokens"))
_SUMS = ", ".join(
    f"total(CASE WHEN {count} BETWEEN 0 AND 1e15 THEN {count} END)"
    for count in [f"json_extract(usage, '$.{name}')" for name in _TOKENS]
)
_TOTALS = f"""
SELECT total(attempts), total(attempts - 1), total(error IS NOT NULL), {_SUMS}
FROM (
    SELECT attempts, error,
        CASE WHEN endpoint <> 'embed' AND error IS NULL AND json_valid(reply)
             THEN json_extract(reply, '$.usage') END AS usage
    FROM replies WHERE attempts BETWEEN 1 AND 1e6
)
"""  # noqa: S608 - of names of our own


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
    """The reply to a question, or why there is none."""

    reply: str = ""
    """The reply as JSON; empty beside an error."""
    error: str | None = None
    """Why there is no reply, as "ErrorClass: message"."""
    server: str = ""
    """The server that replied."""
    attempts: int = 0
    """How many requests it took; 0 when it came along with another, or from another log."""


def question_of(call: Call) -> Question:
    """The question that a call is; equal calls are equal questions.

    Raises:
        BadRequestError: the call holds what JSON cannot.
    """
    parts = {name: value for name, value in vars(call).items() if name not in {"model", "role"}}
    try:
        parts["options"] = dict(sorted(call.options.items()))
        request = _AS_JSON.encode(parts)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequestError(
            f"the call to {call.model!r} cannot be written as JSON: {error}"
        ) from error
    return Question(
        endpoint="chat" if call.examples else "generate",
        model=short_name(call.model),
        request=request,
        repeatable=call.repeatable,
    )


def embed_question(model: str, text: str) -> Question:
    """The question that the embedding of a text is; its reply is the row as a JSON list."""
    return Question(endpoint="embed", model=short_name(model), request=json.dumps(text))


def as_json(completion: Completion) -> str:
    """A reply as a log keeps it, which `from_json` reads again."""
    usage = completion.usage
    kept = {
        "text": completion.text,
        "truncated": completion.truncated,
        "filtered": completion.filtered,
        "usage": None if usage is None else vars(usage),
    }
    return json.dumps(kept, ensure_ascii=False)


def from_json(reply: str) -> Completion:
    """The reply that a log kept, marked as one that an earlier call paid for.

    Raises:
        ValueError: it is none.
    """
    try:
        kept = json.loads(reply)
        text, counts = kept["text"], kept["usage"]
        ends = kept["truncated"], kept["filtered"]
        usage = None if counts is None else Usage(**counts)
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError("expected a text, how it ended, and its usage") from error
    if not is_text(text) or not all(isinstance(end, bool) for end in ends):
        raise ValueError("expected a text, and whether it was cut or filtered")
    if usage is not None and not all(map(is_count, vars(usage).values())):
        raise ValueError("expected counts and durations in its usage")
    truncated, filtered = ends
    return Completion(
        text=text, truncated=truncated, filtered=filtered, usage=usage, cached=True, attempts=0
    )


def _check_row(reply: str) -> None:
    """Check that a reply is a row of length 1.

    Raises:
        ValueError: it is none.
    """
    try:
        row = np.array(json.loads(reply))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    is_row = row.ndim == 1 and row.size > 0 and row.dtype.kind == "f"
    if not is_row or not (np.abs(row) < 1.001).all():  # noqa: PLR2004 - rounded up
        raise ValueError("expected the numbers of a row of length 1")


class _TooLongError(ReplyLogError):
    """A row is over MOST_ROW_BYTES."""


class ReplyLog(AbstractContextManager["ReplyLog"]):
    """One file of replies, written by many threads, and by several processes when it is a cache.

    A reply is in the file when `write` returns, so it survives the end of the process, however it
    ends. (It is not forced to the disk: the latest may be lost when the machine loses power.)

    Args:
        path: the file; it is made, but not its folder.
        digests: for each model that is called, by its name without `:latest`, what stands for its
            weights. A model that is not here has the digest "".
        scope: what else must be equal for a reply to be found: the servers' names for a cache that
            several runs share; "" for the log of one run, which may go on at another server with
            the same models.

    Raises:
        ReplyLogError: the file cannot be made, or is not a log; and by each method: it cannot be
            read or written, or is closed.
    """

    def __init__(self, path: Path, *, digests: Mapping[str, str], scope: str = "") -> None:
        self._path = path
        self._digests = dict(digests)
        self._scope = scope
        self._has_warned = False
        self._forgotten: dict[str, float] = {}
        self._lock = threading.Lock()
        self._database = _open(path, "mode=rwc")

    def find(self, question: Question) -> str | None:
        """The reply to an equal question, as JSON; None where there is none.

        A row that cannot be read is deleted, and the first of them named on stderr.
        """
        key = self._key(question)
        try:
            rows = self._execute(_FIND, (key,))
            if not rows:
                return None
            reply = str(rows[0][0], "utf-8")
            check = _check_row if question.endpoint == "embed" else from_json
            check(reply)
        except (ValueError, _TooLongError) as error:
            self._execute(_DELETE, (key,))
            self._warn_once(error)
            return None
        return reply

    def write(self, question: Question, outcome: CallOutcome) -> None:
        """Keep the outcome of a question; of two replies to equal questions the first one stays."""
        error = outcome.error
        if error is not None:  # it may quote half of a surrogate pair
            error = error.encode("utf-8", "backslashreplace").decode()
        row = (
            self._key(question) if question.repeatable else None,
            self._scope,
            outcome.server,
            question.model,
            self._digests.get(question.model, ""),
            question.endpoint,
            question.request,
            outcome.reply,
            outcome.attempts,
            error,
            time.time(),
        )
        self._execute(_INSERT, row)
        if question.model in self._forgotten:  # perhaps at this moment
            self._execute(_FORGET, (question.model, self._forgotten[question.model]))

    def forget(self, model: str, since_s: float) -> None:
        """Find none of a model's replies any more, from a moment on; their rows stay.

        Args:
            model: its name, without `:latest`.
            since_s: by `time.time`.
        """
        self._forgotten[model] = since_s
        self._execute(_FORGET, (model, since_s))

    def totals(self) -> dict[str, int]:
        """What all replies so far cost.

        Returns:
            `calls` (requests that ended, each attempt counted), `retries` (of these, repetitions),
            `failures` (questions that were given up), and the tokens that `Usage` names.
        """
        names = ("calls", "retries", "failures", *_TOKENS)
        return dict(zip(names, map(int, self._execute(_TOTALS)[0]), strict=True))

    def last(self) -> int:
        """The number of the row that was written last; 0 where there is none."""
        return int(self._execute(_LAST)[0][0])

    def latest(self, most: int, *, since: int = 0) -> list[str]:
        """The outcomes of the latest questions that were sent to a server, the newest first.

        Args:
            most: so many of them at most.
            since: only those whose row has a higher number.

        Returns:
            For each the error; "" where it has a reply.
        """
        rows = self._execute(_LATEST, (since, most))
        return [error.decode("utf-8", "replace") if error else "" for (error,) in rows]

    def close(self) -> None:
        """Close the file; a reply that comes later raises ReplyLogError."""
        with self._lock:
            self._database.close()

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _key(self, question: Question) -> bytes:
        digest = self._digests.get(question.model, "")
        parts = (self._scope, digest, question.endpoint, question.model, question.request)
        text = "\0".join(parts)  # in no name, and not in JSON
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._database.execute(statement, values).fetchall()
        except sqlite3.DataError as error:
            raise _TooLongError(f"{self._path}: a row is over {MOST_ROW_BYTES} bytes") from error
        except sqlite3.Error as error:
            raise _failure(self._path, error) from error

    def _warn_once(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            sys.stderr.write(
                f"note: {str(self._path)!r} has a reply that cannot be read ({error}): it counts "
                "as absent and is asked for again; further ones are not named\n"
            )


def find_in(logs: Sequence[ReplyLog], question: Question) -> str | None:
    """The reply that one of the logs holds, as JSON, now in all before it; None where none does."""
    for place, log in enumerate(logs):
        if (reply := log.find(question)) is not None:
            for earlier in logs[:place]:
                earlier.write(question, CallOutcome(reply=reply))
            return reply
    return None


@contextmanager
def open_readonly(path: Path) -> Iterator[sqlite3.Connection]:
    """Within `with`: anybody's log, to be queried, also while a run writes it; texts are bytes.

    Nothing is written, neither there nor beside it, so its folder need not be writable.

    Raises:
        ReplyLogError: there is none, or it cannot be read.
    """
    file = os.path.realpath(path)
    if not Path(f"{file}-wal").exists():
        mode = "immutable=1"
    elif Path(f"{file}-shm").exists():  # of a run that goes on or was killed
        mode = "mode=ro&readonly_shm=1"  # mode=ro alone would write its marks into the -shm
    else:  # a copy of one: nobody writes it
        mode = _ALONE
    for pause_s in (*_PAUSES_S, None):
        try:
            database = _open(path, mode)
            break
        except ReplyLogError as error:  # whoever writes it is just making its index anew
            if pause_s is None or "readonly" not in str(error.__cause__):
                raise
            time.sleep(pause_s)
    try:
        yield database
    except sqlite3.Error as error:
        raise _failure(path, error) from error
    finally:
        database.close()


def _open(path: Path, mode: str) -> sqlite3.Connection:
    """A connection to a log, which `mode=rwc` makes where there is none.

    Raises:
        ReplyLogError: it cannot be opened, or is not a log.
    """
    file = os.path.realpath(path)
    try:
        _check_files(file)
        database = sqlite3.connect(
            f"{Path(file).as_uri()}?{mode}",
            uri=True,
            timeout=MOST_S,
            isolation_level=None,
            check_same_thread=False,
        )
    except (OSError, sqlite3.Error) as error:
        raise _failure(path, error) from error
    try:
        database.text_factory = bytes
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_ROW_BYTES)
        database.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 2**14)
        database.set_progress_handler(lambda: 1, _SCHEMA_STEPS)
        database.execute("PRAGMA trusted_schema = OFF")
        if mode == _ALONE:  # its index is then in memory, not in a file beside it
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
        schema = database.execute(_READ_SCHEMA).fetchall()
        if not schema and mode == "mode=rwc":
            database.execute("BEGIN IMMEDIATE")  # waits while another process makes it
            schema = database.execute(_READ_SCHEMA).fetchall()
            if not schema:
                database.execute(_TABLE)
                database.execute(_INDEX)
                schema = _SCHEMA
            database.execute("COMMIT")
        if schema != _SCHEMA:
            raise sqlite3.DatabaseError("it is not a log of replies")
        database.set_progress_handler(None, 0)
        if mode == "mode=rwc":
            with suppress(sqlite3.OperationalError):  # another process does it
                database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error as error:
        database.close()
        raise _failure(path, error) from error
    return database


def _check_files(file: str) -> None:
    """Check what SQLite would read before it looks at the schema.

    A rollback journal can name another file, which SQLite then deletes; none of ours does.

    Raises:
        OSError: one of them is not what it should be.
    """
    for beside in (file, f"{file}-wal", journal := f"{file}-journal"):
        if Path(beside).exists() and not Path(beside).is_file():
            raise OSError(f"{beside!r} is not a regular file")
    with suppress(FileNotFoundError), Path(journal).open("rb") as opened:
        opened.seek(-min(len(_JOURNAL_MAGIC), Path(journal).stat().st_size), os.SEEK_END)
        if opened.read() == _JOURNAL_MAGIC:
            raise OSError(f"{journal!r} is not the journal of a log of replies")


def _failure(path: Path, error: Exception) -> ReplyLogError:
    why = getattr(error, "strerror", None) or str(error)
    if type(error) is sqlite3.DatabaseError:  # malformed, or not a log
        why = f"{why}; move it away, and what is in it is asked for again"
    elif getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
        why = "it is not a log of replies"
    return ReplyLogError(f"the log of replies {str(path)!r} cannot be used: {why}")
