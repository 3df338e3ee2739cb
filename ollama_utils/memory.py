"""Replies in memory: of equal questions one is sent, and the others get its reply."""

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
from ollama_utils.threads import POLL_S
from ollama_utils.types import Completion

_BYTES_BESIDE_TEXTS = 2**10


class ReplyMemory:
    """The latest replies by question, and the calls that are under way.

    Args:
        most_bytes: what replies and questions may take; those unused for longest go first.
    """

    def __init__(self, most_bytes: int) -> None:
        self._lock = threading.Lock()
        self._known: LRUCache[Question, tuple[Question, Completion]] = LRUCache(
            most_bytes,
            getsizeof=lambda kept: (
                _BYTES_BESIDE_TEXTS + sys.getsizeof(kept[0].request) + sys.getsizeof(kept[1].text)
            ),
        )
        self._in_flight: dict[Question, Future[Completion]] = {}

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
        stopped = Completion(text="", error=CallCancelledError("the run was stopped"), attempts=0)
        own: Future[Completion] = Future()
        while True:
            with self._lock:
                if (known := self._known.get(question)) is not None:
                    return replace(known[1], cached=True, attempts=0)
                future = self._in_flight.setdefault(question, own)
            if future is own:
                break
            while not wait([future], POLL_S).done and not cancelled.is_set():
                pass
            shared = future.result() if future.done() else stopped
            if not isinstance(shared.error, CallCancelledError) or cancelled.is_set():
                return replace(shared, cached=shared.error is None, attempts=0)
        reply = stopped  # what those who wait get after a Ctrl-C
        try:
            reply = answer()
        except Exception as error:
            own.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._in_flight[question]
                if reply.error is None:
                    with suppress(ValueError):  # longer than all that may be kept
                        self._known[question] = question, reply
            if not own.done():
                own.set_result(reply)
        return reply
