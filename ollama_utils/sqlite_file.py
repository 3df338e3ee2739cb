"""One SQLite file, written by many threads, and by several processes."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any, Literal

from ollama_utils.errors import ReplyLogError

_BUSY_S = 60.0


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
        ReplyLogError: the file cannot be made, or is no database.
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
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute(f"PRAGMA synchronous = {synchronous}")
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

    def _failure(self, error: sqlite3.Error) -> ReplyLogError:
        hint = ""
        if type(error) is sqlite3.DatabaseError:  # malformed, or no database
            hint = f"; delete it: what is in it is {self._lost} again"
        return ReplyLogError(f"{self._what} {str(self._path)!r} cannot be used: {error}{hint}")
