"""The limits under which a call goes out: gates, what one server can take, and a rate.

- `Gate` lets so many calls in at once, in the order in which they came.
- `Server` has a gate for each model, whose limit is given or follows what the replies report (`capacity`);
  where models do not fit into its memory together, their gates open by turns (`swaps`).
- `TokenBucket` lets so many calls out a minute.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from ollama_utils.capacity import Capacity, CapacityEstimate, SentCall
from ollama_utils.errors import CallCancelledError, ServerOverloadedError, ServerUnreachableError
from ollama_utils.http import time_counts_from
from ollama_utils.swaps import Swaps
from ollama_utils.types import Usage, short_name
from ollama_utils.wires import ModelClient


class Gate:
    """A first-in, first-out semaphore whose limit can be moved while calls wait.

    Args:
        limit: the most calls inside at once.

    Raises:
        ValueError: the limit is less than 1.
    """

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._queue: deque[Future[None]] = deque()
        """Those who wait for a place."""
        self.in_flight = 0
        """The calls inside now."""
        self.max_in_flight = 0
        """The most calls that were inside at once."""
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
    def waiting(self) -> int:
        """The calls outside now."""
        return len(self._queue)

    @property
    def room(self) -> int:
        """The places free now, none while it is shut; below 0 when calls wait."""
        with self._lock:
            free = self._limit - self.in_flight if self._open else 0
            return free - len(self._queue)

    def close(self) -> None:
        """Turn away all who wait and all who come later; those inside are left alone."""
        with self._lock:
            self.closing.set()
            while self._queue:
                self._queue.popleft().cancel()

    def enter(self) -> None:
        """Wait for a place. Whoever enters leaves.

        Raises:
            CallCancelledError: the gate is closed.
        """
        with self._lock:
            if not self.closed and not self._queue and self._has_room():
                self._let_in()
                return
            waiter: Future[None] = Future()
            if self.closed:
                waiter.cancel()
            else:
                self._queue.append(waiter)
                self._admit()
        try:
            waiter.result()
        except CancelledError as error:
            raise CallCancelledError("the run was stopped before the call was made") from error
        except BaseException:
            self._forget(waiter)
            raise

    def leave(self) -> None:
        """Give the place back."""
        with self._lock:
            self.in_flight -= 1
            self._admit()

    def _has_room(self) -> bool:
        return self._open and self.in_flight < self._limit

    def _admit(self) -> None:
        """Let in whoever came first while there is room; the lock is held."""
        while self._queue and self._has_room():
            self._let_in()
            self._queue.popleft().set_result(None)

    def _let_in(self) -> None:
        """One more is inside; the lock is held."""
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)

    def _forget(self, waiter: Future[None]) -> None:
        """Undo the wait of a thread that was interrupted in it."""
        with self._lock:
            if waiter in self._queue:
                self._queue.remove(waiter)
            elif not waiter.cancelled():
                self.in_flight -= 1
                self._admit()


def _checked(limit: int) -> int:
    if limit < 1:
        raise ValueError(f"a gate's limit must be at least 1, got {limit!r}")
    return limit


_AWAY_S = 5.0
"""How long a server where nobody answered is the last to be chosen."""
MaxInFlight = int | Literal["auto"]
"""The most calls at once to one model of one server; `auto`: more than it serves, as its replies show."""


@dataclass
class Admission:
    """A call that was let out to a server; whoever made it notes here what the server reported."""

    sent_s: float = math.nan
    """When it was let out, by the monotonic clock."""
    usage: Usage | None = None
    """None when it failed, or nothing was reported."""


class Server:
    """One server as its callers see it: a place for each call, under limits that follow its replies.

    Args:
        client: the way to it.
        max_in_flight: the most calls at once to one of its models, or `auto`.
    """

    def __init__(self, client: ModelClient, *, max_in_flight: MaxInFlight) -> None:
        self.client = client
        self.swaps = Swaps(lambda: self.gates)
        self._max_in_flight = max_in_flight
        self._services: dict[str, _ModelLimit] = {}
        self._told_slots: int | None = None
        self._closed = False
        self._back_s = -math.inf
        self._lock = threading.Lock()

    @property
    def host(self) -> str:
        """The server's base URL."""
        return self.client.host

    @property
    def gates(self) -> Mapping[str, Gate]:
        """The gates of the models that were called so far, by short name."""
        with self._lock:
            return {name: service.gate for name, service in self._services.items()}

    @property
    def is_away(self) -> bool:
        """Whether nobody answered there a moment ago."""
        return time.monotonic() < self._back_s

    def note(self, error: BaseException) -> None:
        """Hear of a call that failed."""
        if isinstance(error, ServerUnreachableError):
            self._back_s = time.monotonic() + _AWAY_S

    def models(self) -> dict[str, str]:
        """The models it has, each with what stands for its weights; where it tells its slots, they are noted.

        Raises:
            OllamaError: it gives no list.
        """
        found = self.client.models()
        self._told_slots = self.client.slots()
        return found

    def gate(self, model: str) -> Gate:
        """The gate of a model; `x` and `x:latest` are one."""
        return self._service(short_name(model)).gate

    def capacities(self) -> dict[str, CapacityEstimate]:
        """What is known of its capacity for each model called so far, by short name."""
        with self._lock:
            services = dict(self._services)
        return {name: service.found() for name, service in services.items()}

    @contextmanager
    def admit(
        self, model: str, *, cap: Gate | None = None, wait_for_rate: Callable[[], object] | None = None
    ) -> Iterator[Admission]:
        """Within `with`: a place in a model's gate, after waiting for it.

        Args:
            model: the model's name.
            cap: a gate of the caller's own. It comes second: who waits for the model holds no place in it.
            wait_for_rate: waits until the rate allows the call. It comes last, so that calls go out at that
                rate.

        Raises:
            CallCancelledError: the server's gates are closed, or the caller's.
        """
        name = short_name(model)
        service = self._service(name)
        sent: SentCall | None = None
        admission = Admission()
        self.swaps.came(name)
        try:
            with ExitStack() as places:
                for gate in (service.gate,) if cap is None else (service.gate, cap):
                    gate.enter()
                    places.callback(gate.leave)
                if wait_for_rate is not None:
                    wait_for_rate()
                sent = service.sent()
                admission.sent_s = sent.sent_s
                with service.under_way(sent, admission):
                    yield admission
        finally:
            sent_s = None if sent is None else sent.sent_s
            self.swaps.left(name, sent_s, time.monotonic(), admission.usage)

    def cancel(self) -> None:
        """Turn away all who wait for a place and all who come later."""
        with self._lock:
            self._closed = True
            services = list(self._services.values())
        for service in services:
            service.gate.close()

    def close(self) -> None:
        """Cancel, and drop the idle connections."""
        self.cancel()
        self.client.close()

    def _service(self, name: str) -> _ModelLimit:
        with self._lock:
            if name not in self._services:
                self._services[name] = _ModelLimit(self._max_in_flight, self._told_slots)
                if self._closed:
                    self._services[name].gate.close()
            return self._services[name]


_REMEMBERED = 4096
"""Replies whose ends are kept, for the timeouts of the calls sent after them."""


_FEWER = 4
"""After a fault for want of memory, one call in so many goes out no more; one at least."""
_RECOVERY = 8
"""Rounds of replies without such a fault after which one call more goes out."""


class _ModelLimit:
    """One model at one server: its gate, whose limit is given or follows what its replies report."""

    def __init__(self, max_in_flight: MaxInFlight, told_slots: int | None) -> None:
        self._given = None if max_in_flight == "auto" else max_in_flight
        self._capacity = Capacity(told_slots)
        self._most = math.inf
        """No more go out at once: with more, the server dropped them all."""
        self._lowered_s = -math.inf
        self.gate = Gate(self._given or self._capacity.limit)
        self._replies: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)
        """Which calls were answered, by their numbers, and when."""
        self._lock = threading.Lock()

    def sent(self) -> SentCall:
        """A call that was let in goes out."""
        with self._lock:
            return self._capacity.sent(time.monotonic())

    @contextmanager
    def under_way(self, sent: SentCall, admission: Admission) -> Iterator[None]:
        """Within `with`: it is under way; what was noted of it in the end moves the limit.

        The time that its reply may take counts from when the last call that was sent before it was answered:
        until then it may have waited in the server's queue.
        """
        token = time_counts_from.set(partial(self._answered_before_s, sent))
        try:
            yield
        except ServerOverloadedError:
            self._lower(sent)
            raise
        finally:
            time_counts_from.reset(token)
            self._came_back(sent, admission.usage)

    def found(self) -> CapacityEstimate:
        """What is known of the capacity, with the limit that holds."""
        with self._lock:
            return replace(self._capacity.found, limit=self.gate.limit)

    def _came_back(self, sent: SentCall, usage: Usage | None) -> None:
        with self._lock:
            now_s = time.monotonic()
            self._capacity.came_back(sent, now_s, usage)
            if usage is not None:
                self._replies.append((sent.number, now_s))
                self._most += 1 / (_RECOVERY * self._most)
            self._follow()

    def _lower(self, sent: SentCall) -> None:
        """The server dropped all it was doing, for too many were under way: fewer from now on.

        Those that went out before the limit was lowered fell with this one, and tell nothing new.
        """
        with self._lock:
            if sent.sent_s > self._lowered_s:
                self._lowered_s = time.monotonic()
                under_way = self.gate.in_flight
                self._most = max(1, under_way - max(1, under_way // _FEWER))
                self._follow()

    def _follow(self) -> None:
        limit = int(min(self._given or self._capacity.limit, self._most))
        if limit != self.gate.limit:
            self.gate.limit = limit

    def _answered_before_s(self, sent: SentCall) -> float:
        """When the last reply came to a call that was sent before this one, by the monotonic clock."""
        with self._lock:
            return max((at_s for number, at_s in self._replies if number < sent.number), default=-math.inf)


_MINUTE_S = 60.0
_LOOK_S = 0.1
"""A changed rate wakes nobody who waits: each looks up as often."""


class Reservation:
    """One place in the row before a bucket."""

    def __init__(self, number: float, came_s: float) -> None:
        self.number = number
        """Its token is there once so many have fallen in, since the bucket was made."""
        self.came_s = came_s


class TokenBucket:
    """Tokens that fall in at a steady rate; who comes first gets the next one.

    Any number of limits hold at once, and the lowest is the rate, for all who take tokens. The bucket starts
    empty, so no window has more tokens than fall in while it lasts, at the rates that hold then, + burst; and
    the first has no burst.

    Args:
        per_minute: tokens a minute, the owner's own limit; None: this is none.
        burst: the most tokens that lie in it; those that fall in beside them are lost.
        clock: seconds from a fixed moment, never going back.

    Raises:
        ValueError: the rate is not above 0, or the burst below 1.
    """

    def __init__(
        self, per_minute: float | None = None, burst: int = 1, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if burst < 1:
            raise ValueError(f"burst must be at least 1, got {burst!r}")
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._limits: dict[object, float] = {}
        self._rate: float | None = None
        self._since_s = clock()
        self._fallen = 0.0
        """The tokens that had fallen in when the rate was changed last, at `_since_s`."""
        self._last = 0.0
        """The number of the last reservation; those between it and what has fallen in lie in the bucket."""
        self._waiting: deque[Reservation] = deque()
        self.per_minute = per_minute

    @property
    def per_minute(self) -> float | None:
        """The owner's own limit, in tokens a minute, beside those that others set with `limited`."""
        return self._limits.get(self)

    @per_minute.setter
    def per_minute(self, per_minute: float | None) -> None:
        self._limit(self, checked_rate(per_minute))

    @property
    def in_force_per_minute(self) -> float | None:
        """The rate that holds now, the lowest of all limits; None: nobody waits.

        Once it changes, the moments of those who wait are others (they see it within 0.1 s), and what they
        have waited counts. Where nobody waits, the bucket is empty then.
        """
        return self._rate

    def limited(self, per_minute: float | None) -> AbstractContextManager[object]:
        """A further limit from now until the end of `with`, for all who take tokens; None: none.

        Such limits may end in any order.

        Raises:
            ValueError: it is not above 0.
        """
        limit = ExitStack()
        self._limit(limit, checked_rate(per_minute))
        limit.callback(self._limit, limit, None)
        return limit

    def reserve(self) -> Reservation:
        """Take the next token, which is there now or later; whoever does not wait for it gives it up."""
        with self._lock:
            now_s = self._clock()
            fallen = self._fallen_by(now_s)
            if self._rate is None:
                return Reservation(-math.inf, now_s)
            while self._waiting and self._waiting[0].number <= fallen:
                self._waiting.popleft()
            self._last = max(self._last, fallen - self._burst) + 1.0
            reservation = Reservation(self._last, now_s)
            self._waiting.append(reservation)
            return reservation

    def due_s(self, reservation: Reservation) -> float:
        """The moment from which its token is there, as long as nothing changes."""
        with self._lock:
            left = reservation.number - self._fallen
            if self._rate is None or left <= 0:
                return max(reservation.came_s, self._since_s)
            return max(reservation.came_s, self._since_s + left * (_MINUTE_S / self._rate))

    def give_up(self, reservation: Reservation) -> None:
        """Pass the token of a reservation to the next one: all behind it move up."""
        with self._lock:
            # If it was there already, the time since then is lost: the next one goes out now, not earlier.
            moved = min(1.0, reservation.number + 1.0 - self._fallen_by(self._clock()))
            if moved <= 0:
                return
            self._waiting = deque(other for other in self._waiting if other is not reservation)
            for other in self._waiting:
                if other.number > reservation.number:
                    other.number -= moved
            self._last -= moved

    def wait(self, cancelled: threading.Event) -> float:
        """Wait for the next token; the moment from which it was there.

        Raises:
            CallCancelledError: `cancelled` was set before. It costs those who come later nothing.
        """
        reservation = self.reserve()
        with ExitStack() as unless_done:
            unless_done.callback(self.give_up, reservation)
            while (left_s := (due_s := self.due_s(reservation)) - self._clock()) > 0:
                if cancelled.wait(min(left_s, _LOOK_S)):
                    raise CallCancelledError("the run was stopped before the rate limit let the call out")
            unless_done.pop_all()
        return due_s

    def _limit(self, whose: object, per_minute: float | None) -> None:
        """Set one of the limits, or end it."""
        with self._lock:
            if per_minute is None:
                self._limits.pop(whose, None)
            else:
                self._limits[whose] = per_minute
            rate = min(self._limits.values(), default=None)
            if rate == self._rate:
                return
            now_s = self._clock()
            self._fallen, self._since_s, self._rate = self._fallen_by(now_s), now_s, rate
            if rate is None:  # all who wait may go
                self._fallen = max(self._fallen, self._last)
            self._last = max(self._last, self._fallen)

    def _fallen_by(self, now_s: float) -> float:
        """The tokens that have fallen in so far; the lock is held."""
        if self._rate is None:
            return self._fallen
        return self._fallen + (now_s - self._since_s) * self._rate / _MINUTE_S


def checked_rate(per_minute: float | None) -> float | None:
    """A rate limit as it was given.

    Raises:
        ValueError: it is neither a number above 0 nor None.
    """
    if per_minute is not None and not 0 < per_minute < math.inf:
        raise ValueError(f"a rate limit must be a number above 0 a minute, or None, got {per_minute!r}")
    return per_minute
