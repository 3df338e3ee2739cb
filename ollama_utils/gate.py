"""A gate that lets so many calls through at once, in the order in which they came."""

from __future__ import annotations

import math
import threading
import time
from collections import deque

from ollama_utils.errors import CallCancelledError


class Gate:
    """A first-in, first-out semaphore whose limit can be moved while calls wait.

    Args:
        limit: the most calls inside at once.

    Raises:
        ValueError: the limit is less than 1.
    """

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._queue: deque[_Turn] = deque()
        self._in_flight = 0
        self._max_in_flight = 0
        self.closing = threading.Event()
        """Set once the gate is closed, for those inside who wait for something else."""
        self._open = True
        self._limit = _checked(limit)

    @property
    def limit(self) -> int:
        """The most calls inside at once; after a cut, those inside finish first."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._lock:
            self._limit = _checked(limit)
            self._admit()

    @property
    def open(self) -> bool:
        """Whether anybody is let in; while it is False, those inside finish and the others wait."""
        return self._open

    @open.setter  # noqa: A003 - the property, not the builtin
    def open(self, is_open: bool) -> None:
        with self._lock:
            self._open = is_open
            self._admit()

    @property
    def closed(self) -> bool:
        """Whether nobody will ever be let in again."""
        return self.closing.is_set()

    @property
    def in_flight(self) -> int:
        """The calls inside now."""
        return self._in_flight

    @property
    def max_in_flight(self) -> int:
        """The most calls that were inside at once."""
        return self._max_in_flight

    @property
    def waiting(self) -> int:
        """The calls outside now."""
        return len(self._queue)

    @property
    def room(self) -> int:
        """The places free now, none while it is shut; below 0 when calls wait."""
        with self._lock:
            free = self._limit - self._in_flight if self._open else 0
            return free - len(self._queue)

    def close(self) -> None:
        """Turn away all who wait and all who come later; those inside are left alone."""
        with self._lock:
            self.closing.set()
            while self._queue:
                self._queue.popleft().decided.set()

    def enter(self) -> float:
        """Wait for a place; returns since when it is held, by the monotonic clock. Whoever enters leaves.

        Raises:
            CallCancelledError: the gate is closed.
        """
        with self._lock:
            if not self.closed and not self._queue and self._has_room():
                return self._let_in()
            turn = _Turn()
            if not self.closed:
                self._queue.append(turn)
                self._admit()
            else:
                turn.decided.set()
        try:
            turn.decided.wait()
        except BaseException:
            self._forget(turn)
            raise
        if not turn.admitted:
            raise CallCancelledError("the run was stopped before the call was made")
        return turn.admitted_s

    def leave(self) -> None:
        """Give the place back."""
        with self._lock:
            self._in_flight -= 1
            self._admit()

    def _has_room(self) -> bool:
        return self._open and self._in_flight < self._limit

    def _admit(self) -> None:
        """Let in whoever came first while there is room; the lock is held."""
        while self._queue and self._has_room():
            turn = self._queue.popleft()
            turn.admitted = True
            turn.admitted_s = self._let_in()
            turn.decided.set()

    def _let_in(self) -> float:
        """One more is inside; the moment, by the monotonic clock. The lock is held."""
        self._in_flight += 1
        self._max_in_flight = max(self._max_in_flight, self._in_flight)
        return time.monotonic()

    def _forget(self, turn: _Turn) -> None:
        """Undo the wait of a thread that was interrupted in it."""
        with self._lock:
            if turn.admitted:
                self._in_flight -= 1
                self._admit()
            elif turn in self._queue:
                self._queue.remove(turn)


class _Turn:
    """One call's place in the queue."""

    def __init__(self) -> None:
        self.decided = threading.Event()
        self.admitted = False
        self.admitted_s = math.nan


def _checked(limit: int) -> int:
    if limit < 1:
        raise ValueError(f"a gate's limit must be at least 1, got {limit!r}")
    return limit
