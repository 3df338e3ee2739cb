"""Replies that are known already, or on their way: equal questions are one call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from hashlib import blake2b

from cachetools import LRUCache

from ollama_utils.errors import CallCancelledError
from ollama_utils.reply_log import Question
from ollama_utils.types import Completion


class ReplyCache:
    """The latest replies by question, and the questions under way.

    Args:
        size: how many replies are kept; the one unused for longest goes first.
    """

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._known: LRUCache[bytes, Completion] = LRUCache(size)
        self._pending: dict[bytes, Future[Completion]] = {}
        self._waiting = 0

    def known(self, key: bytes) -> Completion | None:
        """The reply to a question if it is known, as `reply` gives it; None where it is not."""
        with self._lock:
            found = self._known.get(key)
        return None if found is None else shared(found)

    @property
    def waiting(self) -> int:
        """The calls that wait now for an equal one."""
        return self._waiting

    def reply(self, key: bytes, ask: Callable[[], Completion]) -> Completion:
        """The reply to a question: known, or shared with an equal one under way, or asked for now.

        A reply that another call paid for comes with `cached=True` and `attempts=0`. Errors are
        shared with `attempts=0`, but not kept, and not marked as cached.

        Args:
            key: the question.
            ask: asks it; whatever it raises, those who share the question are told.
        """
        with self._lock:
            if (known := self._known.get(key)) is not None:
                return shared(known)
            pending = self._pending.get(key)
            if pending is None:
                mine = self._pending[key] = Future()
        if pending is not None:
            return self._await(pending)
        try:
            completion = ask()
        except BaseException as error:
            self._settle(key, mine, error)
            raise
        self._settle(key, mine, completion)
        return completion

    def cancel(self) -> None:
        """Let nobody wait any longer for a question under way: they get CallCancelledError."""
        with self._lock:
            for future in self._pending.values():
                _fulfil(future, _cancelled())
            self._pending.clear()

    def _await(self, pending: Future[Completion]) -> Completion:
        with self._lock:
            self._waiting += 1
        try:
            return shared(pending.result())
        finally:
            with self._lock:
                self._waiting -= 1

    def _settle(self, key: bytes, mine: Future[Completion], outcome: Completion | BaseException) -> None:
        with self._lock:
            if isinstance(outcome, Completion) and outcome.error is None:
                self._known[key] = outcome
            if self._pending.get(key) is mine:  # else it was cancelled, and those who waited were told
                del self._pending[key]
                _fulfil(mine, outcome)


def key_of(question: Question) -> bytes:
    """What stands for a question in the cache: every part of it decides."""
    return blake2b(repr(question).encode(), digest_size=16).digest()


def shared(completion: Completion) -> Completion:
    """An outcome as those get it who share it: a reply was paid for by another, a failure by nobody."""
    return replace(completion, cached=completion.error is None, attempts=0)


def _cancelled() -> Completion:
    return Completion(text="", attempts=0, error=CallCancelledError("the run was stopped before the reply"))


def _fulfil(future: Future[Completion], outcome: Completion | BaseException) -> None:
    """Tell those who wait; a Ctrl-C met by the one who asked is a stopped run to the others."""
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome if isinstance(outcome, Completion) else _cancelled())
