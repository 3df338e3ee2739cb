"""Replies in memory: equal questions are one call, the first answered or still under way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace

from cachetools import LRUCache

from ollama_utils.errors import CallCancelledError
from ollama_utils.reply_log import Question
from ollama_utils.types import Completion

_BYTES_BESIDE_TEXTS = 2**10
_POLL_S = 0.25
"""How often a call that waits for an equal one looks whether it was cancelled."""


class _Known:
    """A reply, which is as long as what it takes in memory, in bytes, its question included."""

    def __init__(self, question: Question, reply: Completion) -> None:
        self.reply = reply
        texts = sys.getsizeof(question.request) + sys.getsizeof(reply.text)
        self._bytes = _BYTES_BESIDE_TEXTS + texts

    def __len__(self) -> int:
        return self._bytes


class ReplyMemory:
    """The latest replies by question: equal questions are one call, answered or under way.

    Args:
        most_bytes: what replies and questions may take; those unused for longest go first.
    """

    def __init__(self, most_bytes: int) -> None:
        self._lock = threading.Lock()
        self._known: LRUCache[Question, _Known] = LRUCache(most_bytes, getsizeof=len)
        self._in_flight: dict[Question, Future[Completion]] = {}

    def known(self, question: Question) -> Completion | None:
        """The reply to a question, marked as cached; None where it is not known."""
        with self._lock:
            found = self._known.get(question)
        return None if found is None else replace(found.reply, cached=True, attempts=0)

    def ask(
        self, question: Question, answer: Callable[[], Completion], cancelled: threading.Event
    ) -> Completion:
        """The reply to a question: known, or of an equal call under way, or that of `answer`.

        A reply that another call paid for is marked as cached, with no attempt. Errors are shared,
        but not kept. Where a call was stopped, those that wait for it ask for themselves.

        Args:
            question: a repeatable one.
            answer: asks for the reply.
            cancelled: set once nobody waits here any more.
        """
        while True:
            with self._lock:
                if (known := self._known.get(question)) is not None:
                    return replace(known.reply, cached=True, attempts=0)
                future = self._in_flight.get(question)
                if future is None:
                    future = self._in_flight[question] = Future()
                    break
            while not wait([future], _POLL_S).done:
                if cancelled.is_set():
                    return _stopped()
            shared = future.result()
            if not isinstance(shared.error, CallCancelledError) or cancelled.is_set():
                return replace(shared, cached=shared.error is None, attempts=0)
        return self._answer(question, answer, future)

    def _answer(
        self, question: Question, answer: Callable[[], Completion], future: Future[Completion]
    ) -> Completion:
        """Call `answer`, and share what comes of it with those who wait for the future."""
        outcome: Completion | Exception = _stopped()  # by Ctrl-C, unless it ends otherwise
        try:
            outcome = answer()
        except Exception as error:
            outcome = error
            raise
        else:
            return outcome
        finally:
            with self._lock:
                del self._in_flight[question]
                if isinstance(outcome, Completion) and outcome.error is None:
                    with suppress(ValueError):  # longer than all that may be kept
                        self._known[question] = _Known(question, outcome)
            if isinstance(outcome, Completion):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)


def _stopped() -> Completion:
    return Completion(text="", error=CallCancelledError("the run was stopped"), attempts=0)
