"""Replies on disk: every reply of a run, and a cache that runs share. Both are one table in SQLite.

    replies(key, scope, server, model, digest, endpoint, request, reply, attempts, error, at_s)

`request` is the question as JSON. `reply` is the reply as JSON, or "" if there is an `error`.
`attempts` is how many requests it took: 0 if it came with another reply, or from another log. `key`
is a hash of all that decides the reply. It is NULL where an equal question need not get an equal
reply; such a row is written but never found.

A log may come from a stranger. So a file is used only if its schema is exactly ours, which leaves
nothing in it that SQLite would run or compute.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ollama_utils.errors import BadRequestError, ReplyLogError
from ollama_utils.types import USAGE_TOKENS, Call, Completion, Usage, short_name

T = TypeVar("T")

CACHE = "cache.sqlite"
"""The log in a folder that runs share."""
_MOST_S = 60.0  # seconds for which a statement waits for another process
_MOVE = "; move it away, and what is in it is asked for again"
_AS_JSON = json.JSONEncoder(default=dict, allow_nan=False)

_TABLE = """CREATE TABLE replies (
    key BLOB, scope TEXT, server TEXT, model TEXT, digest TEXT, endpoint TEXT, request TEXT,
    reply TEXT, attempts INTEGER, error TEXT, at_s REAL
)"""
_INDEX = "CREATE UNIQUE INDEX replies_by_key ON replies (key) WHERE error IS NULL"
_SCHEMA = [(_TABLE,), (_INDEX,)]
_FIND = "SELECT reply FROM replies WHERE key = ? AND error IS NULL"
_INSERT = "INSERT INTO replies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_LAST_ROW = "SELECT coalesce(max(rowid), 0) FROM replies"
_LATEST = "SELECT error FROM replies WHERE rowid > ? AND attempts > 0 ORDER BY rowid DESC LIMIT ?"
_TOTALS = f"""
SELECT total(attempts), total(attempts - 1), total(error IS NOT NULL),
    {", ".join(f"total(json_extract(usage, '$.{name}'))" for name in USAGE_TOKENS)}
FROM (
    SELECT attempts, error, CASE WHEN endpoint <> 'embed' AND error IS NULL
        THEN json_extract(reply, '$.usage') END AS usage
    FROM replies WHERE attempts > 0
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


class _Kept(TypedDict):
    """A reply as a log keeps it."""

    text: str
    truncated: bool
    filtered: bool
    usage: Usage | None


_KEPT = TypeAdapter(_Kept)
_ROW = TypeAdapter(Annotated[list[FiniteFloat], Field(min_length=1)])


def question_of(call: Call) -> Question:
    """A call as a question; raises BadRequestError where it holds what JSON cannot."""
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
    kept = {name: getattr(completion, name) for name in _Kept.__annotations__}
    return json.dumps(kept, ensure_ascii=False, default=vars)


def from_json(reply: str) -> Completion:
    """The reply that a log kept, marked as paid for; raises ReplyLogError where it is none."""
    return Completion(**_read(_KEPT, reply), cached=True, attempts=0)


def row_from_json(reply: str) -> list[float]:
    """The embedding that a log kept; raises ReplyLogError where it is none."""
    return _read(_ROW, reply)


def _read(kind: TypeAdapter[T], reply: str) -> T:
    try:
        return kind.validate_json(reply)
    except ValidationError as error:
        raise ReplyLogError(
            f"the log has a reply that cannot be read: {reply!r:.80}{_MOVE}"
        ) from error


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
        self._lock = threading.Lock()
        self._database = _open(path, "mode=rwc")

    def find(self, question: Question) -> str | None:
        """The reply to an equal question, as JSON; None where there is none."""
        rows = self._execute(_FIND, (self._key(question),))
        return rows[0][0] if rows else None

    def write(
        self,
        question: Question,
        *,
        reply: str = "",
        error: str | None = None,
        server: str = "",
        attempts: int = 0,
    ) -> None:
        """Keep the outcome of a question; of two replies to equal questions the first one stays.

        Args:
            question: what was asked.
            reply: the reply as JSON; "" if there is an error.
            error: why there is no reply, as "ErrorClass: message".
            server: the server that replied.
            attempts: see the module.
        """
        row = (
            self._key(question) if question.repeatable else None,
            self._scope,
            server,
            _without_surrogates(question.model),
            self._digests.get(question.model, ""),
            question.endpoint,
            question.request,
            reply,
            attempts,
            None if error is None else _without_surrogates(error),
            time.time(),
        )
        self._execute(_INSERT, row)

    def totals(self) -> dict[str, int]:
        """What all replies so far cost: requests, and the tokens that `Usage` names.

        `calls` counts each attempt, `retries` the repetitions, `failures` questions given up.
        """
        names = ("calls", "retries", "failures", *USAGE_TOKENS)
        return dict(zip(names, map(int, self._execute(_TOTALS)[0]), strict=True))

    def last(self) -> int:
        """The number of the row that was written last; 0 where there is none."""
        return int(self._execute(_LAST_ROW)[0][0])

    def latest(self, most: int, *, since: int = 0) -> list[str]:
        """The errors of the latest questions that were sent, newest first; "" for a reply.

        So many at `most`, and only those whose row has a higher number than `since`.
        """
        return [error or "" for (error,) in self._execute(_LATEST, (since, most))]

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
        with _naming(self._path), self._lock:
            return self._database.execute(statement, values).fetchall()


def find_in(logs: Sequence[ReplyLog], question: Question) -> str | None:
    """The reply as JSON that one of the logs has; None where none does.

    It is copied to the logs before that one.
    """
    for place, log in enumerate(logs):
        if (reply := log.find(question)) is not None:
            for earlier in logs[:place]:
                earlier.write(question, reply=reply)
            return reply
    return None


@contextmanager
def open_readonly(path: Path) -> Iterator[sqlite3.Connection]:
    """Within `with`: a log, only to be read, which a run may be writing; its texts are bytes.

    Raises:
        ReplyLogError: there is none, or it cannot be read.
    """
    # SQLite's own log (-wal) is there while a run goes on, or if it was killed. Without that, the
    # file alone is whole, and may be opened in a folder where nothing can be written.
    is_whole = not Path(f"{os.path.realpath(path)}-wal").exists()
    with _naming(path), closing(_open(path, "immutable=1" if is_whole else "mode=ro")) as database:
        database.text_factory = bytes
        yield database


def _open(path: Path, mode: str) -> sqlite3.Connection:
    """A connection to a log, which `mode=rwc` makes where there is none."""
    uri, is_writer = f"{Path(os.path.realpath(path)).as_uri()}?{mode}", mode == "mode=rwc"
    with _naming(path):
        database = sqlite3.connect(
            uri, uri=True, timeout=_MOST_S, isolation_level=None, check_same_thread=False
        )
        try:
            database.execute("PRAGMA trusted_schema = OFF")
            # To write it waits while another process makes the table.
            database.execute("BEGIN IMMEDIATE" if is_writer else "BEGIN")
            schema = database.execute("SELECT sql FROM sqlite_master").fetchall()
            if is_writer and not schema:
                database.execute(_TABLE)
                database.execute(_INDEX)
                schema = _SCHEMA
            database.execute("COMMIT")
            if schema != _SCHEMA:
                raise sqlite3.DatabaseError("it is not a log of replies")
            if is_writer:
                with suppress(sqlite3.OperationalError):  # another process does it
                    database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.Error:
            database.close()
            raise
    return database


def _without_surrogates(text: str) -> str:
    """A text that UTF-8 can write: halves of surrogate pairs are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Within `with`: an error of SQLite is a ReplyLogError that names the file."""
    try:
        yield
    except sqlite3.Error as error:
        why = str(error)
        if type(error) is sqlite3.DatabaseError:  # malformed, or not a log
            why += _MOVE
        raise ReplyLogError(f"the log of replies {str(path)!r} cannot be used: {why}") from error
