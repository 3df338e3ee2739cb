"""What bounds the calls that are under way: a server's limit, a caller's cap, a rate."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ollama_utils.errors import CallCancelledError
from ollama_utils.types import Usage

_START, _MOST = 16, 1024
"""The limit before the first reply; the highest."""
_MEMORY = 24
"""Replies over which means are taken."""
_WAITED_SHARE, _WAITED_S = 0.1, 0.003
"""A call that waited for more than this share of a service, and these seconds, waited for one."""
_WAITS, _FEWEST_WAITS, _SERVICES = 64, 8, 512
"""The slots are counted at so many of the latest waits, among so many of the latest services."""
_COUNT_EVERY = 4
"""So many replies lie between two counts."""
_NEARLY_ALL = 0.9
"""The limit follows a higher quantile than the median: what seems a wait may be none."""
_AGREE = 0.5
"""The share of the counts that must be the median for the slots to be stated."""
_LONG_S = 5.0
"""A call that takes longer is streamed: its words show that the server is at work."""
_FEWER = 4
"""After a fault for want of memory, one call in so many goes out no more; one at least."""
_RECOVERY = 8
"""Rounds of replies without such a fault after which one call more goes out."""

_LOOK_S = 0.1
"""How often whoever waits for a cap or a rate looks whether that has changed, or is over."""
_MINUTE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What is known of how much one model of one server takes."""

    limit: int
    """The most calls that are sent at once."""
    slots: int | None
    """How many of them are served at once; None while that is not sure."""
    service_s: float
    """The mean seconds that the last calls held a slot."""


class Limit:
    """How many calls to one model go to one server at once: half as many again as it serves.

    Ollama names its slots nowhere, but each reply says for how long it was served and for how long
    it waited before. In the middle of a wait every slot is taken: so many calls as were in service
    then are the slots (ours of them, where others use the server, too). A call too many waits at
    the server instead of here, and a call too few leaves a slot idle; so some more are sent than
    there are slots, and one more with each reply that did not wait although no further call was
    allowed.

    Args:
        given: the limit that the user set; None: it is found.
        slots: those that the server is known to have; None: they are found.
    """

    def __init__(self, given: int | None = None, slots: int | None = None) -> None:
        self.in_flight = 0
        """The places that are taken."""
        self.service_s = 0.0
        self.slots = self._most_slots = slots
        """How many calls are served at once; None while the replies do not agree on it."""
        self._is_given, self._has_known_slots = given is not None, slots is not None
        self._value = given or _START
        self._overload_limit = math.inf
        """No more go out at once: with more, the server dropped them all."""
        self._lowered_s = -math.inf
        self._replies = 0
        self._overhead_s = 0.0
        """The mean seconds of a round trip that the server does not account for."""
        self._sent: dict[int, float] = {}
        """When each call that is not back was sent, by its number."""
        self._number = 0
        self._services: deque[tuple[float, float]] = deque(maxlen=_SERVICES)
        """When calls were served, from and to."""
        self._waits: deque[float] = deque(maxlen=_WAITS)
        """The middles of waits."""

    @property
    def value(self) -> int:
        """The most calls at once."""
        return max(1, int(min(self._value, self._overload_limit)))

    @property
    def has_answered(self) -> bool:
        """Whether any call got a reply."""
        return self._replies > 0

    @property
    def is_long(self) -> bool:
        """Whether calls take so long, or may, that they are streamed."""
        return not 0 < self.service_s <= _LONG_S

    @property
    def order(self) -> tuple[float, int]:
        """Least where one more call would end first, and of equals where most slots are free."""
        slots = self.slots or self.value
        return self.service_s * max(1.0, (self.in_flight + 1) / slots), self.in_flight - slots

    def send(self, now_s: float) -> int:
        """A call goes out; returns its number."""
        self._number += 1
        self._sent[self._number] = now_s
        return self._number

    def answer(self, number: int, now_s: float, usage: Usage | None) -> None:
        """A call ended with a reply."""
        was_full = len(self._sent) >= self.value
        sent_s = self._sent.pop(number)
        self._overload_limit += 1 / (_RECOVERY * self._overload_limit)
        waited = self._note(sent_s, now_s, usage or Usage())
        if not self._has_known_slots and self._replies % _COUNT_EVERY == 0:
            self._count(until_s=min(self._sent.values(), default=now_s))
        if self._is_given:
            return
        if self._most_slots is not None and (waited or self._has_known_slots):
            trip_share = 1 + self._overhead_s / max(self.service_s, 1e-9)
            wanted = max(self._most_slots + 1, round(1.5 * self._most_slots * trip_share))
            is_sure = self.slots is not None
            self._value = max(min(_MOST, wanted), self._value - 1 if is_sure else self._value)
        elif was_full and not waited:
            self._value = min(_MOST, self._value + 1)

    def fail(self, number: int, now_s: float, *, is_overload: bool) -> None:
        """A call ended with an error.

        Args:
            number: the call's.
            now_s: the moment.
            is_overload: the server dropped all that it did, for too much was under way: fewer
                calls go out from now on. Those that were sent before that count once.
        """
        sent_s = self._sent.pop(number)
        if is_overload and sent_s > self._lowered_s:
            self._lowered_s = now_s
            self._overload_limit = max(1, self.in_flight - max(1, self.in_flight // _FEWER))

    def _note(self, sent_s: float, now_s: float, usage: Usage) -> bool:
        """Note when a call waited and was served; returns whether it waited for a slot."""
        self._replies += 1
        weight = max(1 / _MEMORY, 1 / self._replies)
        service_s = usage.prefill_s + usage.decode_s
        if service_s <= 0 or usage.total_s <= 0:  # the server reports no times
            self.service_s += weight * (now_s - sent_s - self.service_s)
            return False
        overhead_s = max(0.0, now_s - sent_s - usage.total_s)
        self.service_s += weight * (service_s - self.service_s)
        self._overhead_s += weight * (overhead_s - self._overhead_s)
        to_s = now_s - overhead_s / 2  # as long on the way there as back
        from_s = max(sent_s, to_s - service_s)
        self._services.append((from_s, to_s))
        waited = usage.queue_s > max(_WAITED_SHARE * self.service_s, _WAITED_S)
        if waited:
            self._waits.append(from_s - usage.queue_s / 2)
        return waited

    def _count(self, until_s: float) -> None:
        """Count the calls in service at each wait before all calls that are under way were sent."""
        moments_s = np.array([moment_s for moment_s in self._waits if moment_s < until_s])
        if len(moments_s) < _FEWEST_WAITS:
            return
        from_s, to_s = np.array(self._services).T
        is_in_service = (from_s <= moments_s[:, None]) & (moments_s[:, None] < to_s)
        counts = np.sort(is_in_service.sum(axis=1))
        median = int(counts[len(counts) // 2])
        self.slots = median if np.mean(counts == median) >= _AGREE else None
        self._most_slots = int(counts[math.ceil(_NEARLY_ALL * len(counts)) - 1])


class Cap:
    """So many calls under way at most, of those that are made with it; see `Dispatcher.new_cap`.

    Raises:
        ValueError: the limit is less than 1.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a cap must be at least 1, got {limit!r}")
        self.in_flight = 0
        """The calls under way now."""
        self.max_in_flight = 0
        """The most that were under way at once."""
        self.closed = threading.Event()
        """Set once no call is made with it any more."""
        self._free = threading.Semaphore(limit)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Turn away the calls that wait for anything but a server, and all later ones."""
        self.closed.set()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Within `with`: one of the calls under way, after waiting for it.

        Raises:
            CallCancelledError: the cap is closed.
        """
        while not self._free.acquire(timeout=_LOOK_S):
            _check(self.closed)
        with self._lock:
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            _check(self.closed)
            yield
        finally:
            with self._lock:
                self.in_flight -= 1
            self._free.release()


class RateLimit:
    """The most calls that go out a minute, one after another: the lowest of any number of limits.

    Args:
        per_minute: one that always holds; None: none.

    Raises:
        ValueError: it is neither a number above 0 nor None.
    """

    def __init__(self, per_minute: float | None = None) -> None:
        self._limits = [_checked_rate(per_minute)]
        self._turn = threading.Lock()
        """Held by the one that goes next."""
        self._last_s = -math.inf

    @property
    def per_minute(self) -> float | None:
        """The limit that holds; None: there is none."""
        lowest = min(self._limits)
        return None if lowest == math.inf else lowest

    @contextmanager
    def limited(self, per_minute: float | None) -> Iterator[None]:
        """Within `with`: a further limit, for all who wait here; None: none.

        Raises:
            ValueError: it is neither a number above 0 nor None.
        """
        self._limits.append(further := _checked_rate(per_minute))
        try:
            yield
        finally:
            self._limits.remove(further)

    def wait(self, cancelled: threading.Event) -> None:
        """Wait until the rate allows the next call.

        Raises:
            CallCancelledError: `cancelled` was set before; others go in its place.
        """
        while not self._turn.acquire(timeout=_LOOK_S):
            _check(cancelled)
        try:
            while (left_s := self._last_s + _MINUTE_S / min(self._limits) - time.monotonic()) > 0:
                _check(cancelled)
                cancelled.wait(min(left_s, _LOOK_S))
            self._last_s = time.monotonic()
        finally:
            self._turn.release()


def _check(cancelled: threading.Event) -> None:
    if cancelled.is_set():
        raise CallCancelledError("the run was stopped before the call was made")


def _checked_rate(per_minute: float | None) -> float:
    if per_minute is None:
        return math.inf
    if not 0 < per_minute < math.inf:
        raise ValueError(
            f"a rate limit must be a number above 0 a minute, or None, got {per_minute!r}"
        )
    return per_minute
