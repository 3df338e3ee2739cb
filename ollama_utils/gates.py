"""Places for calls: `Gate` lets so many in at once, `CallQueue` is where they wait for one.

A call to a model waits in one queue, in the order in which it came, whatever the number of servers; each
server has a gate for that model. A place that falls free anywhere goes to whoever came first, at the gate
where the call is expected to take least time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager

from ollama_utils.errors import CallCancelledError

_SLOWER = 2.0
"""A gate where calls take so many times as long as at the quickest is used only while a backlog lasts."""
_AGE_SHARE = 0.5
"""A backlog that has lasted so long lasts for this share of it more, as far as anyone can tell."""


class Gate:
    """Places whose number can be moved while calls wait.

    Args:
        limit: the most calls inside at once.
        host: whose places these are.
        queue: where calls wait; by default this gate has a queue of its own.

    Raises:
        ValueError: the limit is less than 1.
    """

    def __init__(self, limit: int, *, host: str = "", queue: CallQueue | None = None) -> None:
        self.host = host
        self.in_flight = 0
        """The calls inside now."""
        self.max_in_flight = 0
        """The most calls that were inside at once."""
        self.call_s = 0.0
        """The mean seconds that a call takes once it is served; 0 while that is not known."""
        self.slots: int | None = None
        """How many of those inside are served at once; None while that is not known."""
        self._limit = _checked(limit)
        self._open = True
        self._held = False
        self._queue = CallQueue() if queue is None else queue
        self._queue.add(self)

    @property
    def limit(self) -> int:
        """The most calls inside at once; after a cut, those inside finish first."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._queue.changed():
            self._limit = _checked(limit)

    @property
    def open(self) -> bool:
        """Whether it is this model's turn; while it is False, those inside finish and the others wait."""
        return self._open

    @open.setter  # noqa: A003 - the property, not the builtin
    def open(self, is_open: bool) -> None:
        with self._queue.changed():
            self._open = is_open

    @property
    def held(self) -> bool:
        """Whether the server is away: nobody is let in until it is back."""
        return self._held

    @held.setter
    def held(self, is_held: bool) -> None:
        with self._queue.changed():
            self._held = is_held

    @property
    def closed(self) -> bool:
        """Whether nobody will ever be let in again."""
        return self.closing.is_set()

    @property
    def closing(self) -> threading.Event:
        """Set once the queue is closed, for those inside who wait for something else."""
        return self._queue.closing

    @property
    def waiting(self) -> int:
        """The calls outside now."""
        return self._queue.waiting

    @property
    def has_room(self) -> bool:
        """Whether one more may come in now."""
        return self._open and not self._held and self.in_flight < self._limit

    @property
    def expected_s(self) -> float:
        """How long one more call would take here, once inside: its wait for a slot and its own time."""
        return self.call_s * max(1.0, (self.in_flight + 1) / (self.slots or self._limit))

    def close(self) -> None:
        """Turn away all who wait and all who come later; those inside are left alone."""
        self._queue.close()

    def enter(self) -> None:
        """Wait for a place. Whoever enters leaves.

        Raises:
            CallCancelledError: the queue is closed.
        """
        self._queue.enter()

    def leave(self) -> None:
        """Give the place back."""
        with self._queue.changed():
            self.in_flight -= 1

    def let_in(self) -> None:
        """One more is inside; the queue's lock is held."""
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)


class _Waiter(Future[Gate]):
    """A call that waits."""

    def __init__(self, avoid: Collection[str]) -> None:
        super().__init__()
        self.avoid = avoid


class CallQueue:
    """Calls in the order in which they came, and the gates through which they may go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gates: list[Gate] = []
        self._waiters: deque[_Waiter] = deque()
        self._since_s = 0.0
        """Since when there has always been somebody who waits."""
        self._ended: Exception | None = None
        self.closing = threading.Event()
        """Set once it is closed."""

    @property
    def waiting(self) -> int:
        """The calls that wait for a place."""
        return len(self._waiters)

    @property
    def has_gates(self) -> bool:
        """Whether anybody can ever be let in."""
        return bool(self._gates)

    def add(self, gate: Gate) -> None:
        """One more gate."""
        with self.changed():
            self._gates.append(gate)

    def remove(self, gate: Gate) -> None:
        """Let nobody in through this gate any more; those inside are left alone."""
        with self.changed():
            self._gates.remove(gate)

    @contextmanager
    def changed(self) -> Iterator[None]:
        """Within `with`: something about the gates changes; who can go in then, goes in."""
        with self._lock:
            yield
            self._admit()

    def close(self, error: Exception | None = None) -> None:
        """Turn away all who wait and all who come later.

        Args:
            error: is raised to them; None: CallCancelledError.
        """
        with self._lock:
            self._ended = self._ended or error
            self.closing.set()
            while self._waiters:
                self._turn_away(self._waiters.popleft())

    def enter(
        self, *, avoid: Collection[str] = (), waits: Callable[[], object] = lambda: None
    ) -> Gate:
        """The gate in which a place was found, after waiting for it.

        Args:
            avoid: hosts that are used only where there is no other.
            waits: is called once, before a wait.

        Raises:
            CallCancelledError: the queue is closed; or with what it was closed.
        """
        with self._lock:
            if not self.closing.is_set() and not self._waiters:
                self._since_s = time.monotonic()
                if (gate := self._best(avoid)) is not None:
                    gate.let_in()
                    return gate
            waiter = _Waiter(avoid)
            if self.closing.is_set():
                self._turn_away(waiter)
            else:
                self._waiters.append(waiter)
                self._admit()
        try:
            if not waiter.done():
                waits()
            return waiter.result()
        except CancelledError as error:
            raise CallCancelledError("the run was stopped before the call was made") from error
        except BaseException:
            self._forget(waiter)
            raise

    def _turn_away(self, waiter: _Waiter) -> None:
        if self._ended is None:
            waiter.cancel()
        else:
            waiter.set_exception(self._ended)

    def _admit(self) -> None:
        """Let in whoever came first while there is room; the lock is held."""
        while self._waiters and any(gate.has_room for gate in self._gates):
            for waiter in self._waiters:
                if (gate := self._best(waiter.avoid)) is not None:
                    break
            else:
                return
            gate.let_in()
            self._waiters.remove(waiter)
            waiter.set_result(gate)

    def _best(self, avoid: Collection[str]) -> Gate | None:
        """The gate through which a call goes now; None where it had better wait."""
        if len(self._gates) == 1:
            return self._gates[0] if self._gates[0].has_room else None
        allowed = [gate for gate in self._gates if not gate.held and gate.host not in avoid]
        allowed = allowed or [gate for gate in self._gates if not gate.held]
        ready = [gate for gate in allowed if gate.has_room]
        if not ready:
            return None
        best = min(
            ready, key=lambda gate: (gate.expected_s, gate.in_flight - (gate.slots or gate.limit))
        )
        quicker = [
            gate for gate in allowed if gate.in_flight and 0 < _SLOWER * gate.call_s < best.call_s
        ]
        return None if quicker and self._backlog_s(quicker) < best.call_s else best

    def _backlog_s(self, gates: Sequence[Gate]) -> float:
        """For how long these gates would keep busy with those who wait, and those who seem to come."""
        rate = sum((gate.slots or gate.limit) / gate.call_s for gate in gates)
        return max(len(self._waiters) / rate, _AGE_SHARE * (time.monotonic() - self._since_s))

    def _forget(self, waiter: _Waiter) -> None:
        """Undo the wait of a thread that was interrupted in it."""
        with self.changed():
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                waiter.result().in_flight -= 1


def _checked(limit: int) -> int:
    if limit < 1:
        raise ValueError(f"a gate's limit must be at least 1, got {limit!r}")
    return limit
