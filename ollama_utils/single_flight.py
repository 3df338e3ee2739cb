"""Replies in memory: equal questions are one call, whether the first was answered or is under way.

The cache on disk, which outlives the process, is `reply_log`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b

from cachetools import LRUCache

from ollama_utils.errors import CallCancelledError
from ollama_utils.reply_log import Question
from ollama_utils.types import Completion

MOST_BYTES = 2**28
"""The memory that replies in a cache may take, unless another number is set: 256 MiB, or 65,536 of 4 KiB."""
_BYTES_BESIDE_TEXT = 1024
"""What a reply takes beside its text: its key, its usage, its place."""


@dataclass
class SharedReply:
    """What a question's equals are given together."""

    reply: Completion | None = None
    """None while nobody asked: whoever holds it then asks, and puts the outcome here."""


class ReplyCache:
    """The latest replies by question, and the questions under way.

    Args:
        size: how many replies are kept; the one unused for longest goes first.
        most_bytes: how much memory they may take. Each counts as at least its share of that, so both bounds
            are one: as many replies as `size` says are kept if none is longer than its share.
    """

    def __init__(self, size: int, *, most_bytes: int = MOST_BYTES) -> None:
        share = max(1, most_bytes // size)
        most = share * size

        def weight(completion: Completion) -> int:
            return min(max(share, _bytes_of(completion)), most)

        self._lock = threading.Lock()
        self._known: LRUCache[bytes, Completion] = LRUCache(most, getsizeof=weight)
        self._under_way: dict[bytes, Future[Completion]] = {}
        self._waiting = 0

    def known(self, key: bytes) -> Completion | None:
        """The reply to a question if it is known, marked as cached; None where it is not."""
        with self._lock:
            found = self._known.get(key)
        return None if found is None else shared(found)

    @property
    def waiting(self) -> int:
        """The calls that wait now for an equal one."""
        return self._waiting

    @contextmanager
    def asking(self, key: bytes, cancelled: threading.Event) -> Iterator[SharedReply]:
        """Within `with`: the reply to an equal question, known or waited for; or None, for the caller to ask.

        A reply that another call paid for comes with `cached=True` and `attempts=0`. Where there is none, the
        question is under way until the end of `with`, and its equals wait for the outcome that is put there.
        Errors are shared with `attempts=0`, but not kept, and not marked as cached. What is raised within
        `with` is raised to those who wait, too; a Ctrl-C is a stopped run to them.

        Args:
            key: the question.
            cancelled: set once this caller is stopped; an equal call that was stopped stops no other.
        """
        question = SharedReply(self._wait_or_claim(key, cancelled))
        if question.reply is not None:
            yield question
            return
        try:
            yield question
        except BaseException as error:
            self._settle(key, error)
            raise
        self._settle(key, question.reply)

    def cancel(self) -> None:
        """Let nobody wait any longer for a question under way: they get CallCancelledError."""
        with self._lock:
            for future in self._under_way.values():
                _fulfil(future, None)
            self._under_way.clear()

    def _wait_or_claim(self, key: bytes, cancelled: threading.Event) -> Completion | None:
        """The reply, waited for where it is under way; None: the question is the caller's to ask now."""
        while True:
            with self._lock:
                if (known := self._known.get(key)) is not None:
                    return shared(known)
                future = self._under_way.get(key)
                if future is None:
                    self._under_way[key] = Future()
                    return None
                self._waiting += 1
            try:
                completion = future.result()
            finally:
                with self._lock:
                    self._waiting -= 1
            if not isinstance(completion.error, CallCancelledError) or cancelled.is_set():
                return shared(completion)

    def _settle(self, key: bytes, outcome: Completion | BaseException | None) -> None:
        with self._lock:
            if isinstance(outcome, Completion) and outcome.error is None:
                self._known[key] = outcome
            future = self._under_way.pop(key, None)
            if future is not None:  # else it was cancelled, and those who waited have their outcome
                _fulfil(future, outcome)


def _bytes_of(completion: Completion) -> int:
    """What a reply takes in memory, about."""
    return sys.getsizeof(completion.text) + _BYTES_BESIDE_TEXT


def key_of(question: Question) -> bytes:
    """What stands for a question in the cache: every part of it decides."""
    return blake2b(repr(question).encode(), digest_size=16).digest()


def shared(completion: Completion) -> Completion:
    """An outcome as those get it who share it: a reply was paid for by another, a failure by nobody."""
    return replace(completion, cached=completion.error is None, attempts=0)


def _fulfil(future: Future[Completion], outcome: Completion | BaseException | None) -> None:
    """Give those who wait the outcome; None, or a Ctrl-C of the one who asked, is a stopped run to them."""
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    elif isinstance(outcome, Completion):
        future.set_result(outcome)
    else:
        stopped = CallCancelledError("the run was stopped before the reply")
        future.set_result(Completion(text="", attempts=0, error=stopped))
