"""What bounds the calls: the limit of a model at a server, a caller's cap, and a rate."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ollama_utils.errors import CallCancelledError
from ollama_utils.threads import POLL_S
from ollama_utils.types import Usage

_START, _MOST = 16, 1024  # the limit before the first reply, and the highest one
_MEMORY = 24  # means are taken over so many replies
# A call waited for a slot if its wait was longer than this share of a service, and than this.
_WAITED_SHARE, _WAITED_S = 0.1, 0.003
# The slots are counted at so many of the latest waits, once there are at least so many.
_WAITS, _FEWEST_WAITS = 64, 8
_SERVICES = 512  # so many of the latest services are kept, to be counted at each wait
_COUNT_EVERY = 4  # replies
_NEARLY_ALL = 0.9  # the limit follows this quantile of the counts: some waits have other causes
_AGREE = 0.5  # the slots are stated if at least this share of the counts equals the median
_LONG_S = 5.0  # calls that take longer are streamed: the words show that the server is at work
# After the server ran out of memory, the limit is lowered by one in so many, at least by one, and
# raised by one after so many rounds of replies without such a failure.
_FEWER, _RECOVERY = 4, 8
_MINUTE_S = 60.0


class Limit:
    """How many calls to one model go to one server at once: half as many again as it serves.

    Ollama does not say how many slots it has, but each reply says how long it was served, and how
    long it waited before. In the middle of a wait every slot is taken, so the calls in service at
    that moment are the slots (without those of others who use the server). A call too many only
    waits at the server instead of here, but a call too few leaves a slot idle. So more calls are
    sent than there are slots, and the limit rises by one with each reply that did not wait although
    the limit was reached.

    Args:
        given: the limit that the user set; None: it is found.
        slots: those that the server is known to have; None: they are found.
    """

    def __init__(self, given: int | None = None, slots: int | None = None) -> None:
        self.in_flight = 0
        """The places that are taken."""
        self.service_s = 0.0
        """The mean seconds for which the last calls held a slot."""
        self.slots = self._most_slots = slots
        """How many calls are served at once; None while the replies do not agree on it."""
        self._is_given, self._has_known_slots = given is not None, slots is not None
        self._value = given or _START
        self._overload_limit = math.inf  # with more calls the server dropped them all
        self._lowered_s = -math.inf
        self._replies = 0
        self._overhead_s = 0.0  # the mean of a round trip that the server does not account for
        self._sent_s: list[float] = []  # of the calls under way, the first one first
        self._services: deque[tuple[float, float]] = deque(maxlen=_SERVICES)  # starts and ends
        self._waits: deque[float] = deque(maxlen=_WAITS)  # their middles

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
        """A key: the least is where one more call would end first, or else has most free slots."""
        slots = self.slots or self.value
        return self.service_s * max(1.0, (self.in_flight + 1) / slots), self.in_flight - slots

    def send(self, now_s: float) -> None:
        """A call goes out now; `answer` or `fail` names it by this moment."""
        self._sent_s.append(now_s)

    def answer(self, sent_s: float, now_s: float, usage: Usage | None) -> None:
        """A call ended with a reply."""
        was_full = len(self._sent_s) >= self.value
        self._sent_s.remove(sent_s)
        self._overload_limit += 1 / (_RECOVERY * self._overload_limit)
        waited = self._note(sent_s, now_s, usage or Usage())
        if not self._has_known_slots and self._replies % _COUNT_EVERY == 0:
            self._count(until_s=self._sent_s[0] if self._sent_s else now_s)
        if self._is_given:
            return
        if self._most_slots is not None and (waited or self._has_known_slots):
            trip_share = 1 + self._overhead_s / max(self.service_s, 1e-9)
            wanted = max(self._most_slots + 1, round(1.5 * self._most_slots * trip_share))
            is_sure = self.slots is not None
            self._value = max(min(_MOST, wanted), self._value - 1 if is_sure else self._value)
        elif was_full and not waited:
            self._value = min(_MOST, self._value + 1)

    def fail(self, sent_s: float, now_s: float, *, is_overload: bool) -> None:
        """A call ended with an error.

        With `is_overload` the server dropped all its calls, since too many were under way: fewer
        are sent from now on. Calls that were dropped together lower the limit once.
        """
        self._sent_s.remove(sent_s)
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
        """Count the calls in service at each wait before `until_s`.

        Later waits are left out: calls that are still under way may have been in service then.
        """
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
    """Bounds how many of the calls made with it are under way at once; see `Servers.new_cap`.

    Raises:
        ValueError: the limit is less than 1.
    """

    def __init__(self, limit: float) -> None:
        if limit < 1:
            raise ValueError(f"a cap must be at least 1, got {limit!r}")
        self.limit = limit
        self.in_flight = self.max_in_flight = 0
        """The calls under way now, and the most that were."""
        self.closed = threading.Event()
        """Set once the cap is closed."""

    def close(self) -> None:
        """Turn away the calls that are not sent yet, and all later ones."""
        self.closed.set()

    def raise_if_closed(self) -> None:
        """Raise CallCancelledError where the cap is closed."""
        if self.closed.is_set():
            raise CallCancelledError("the run was stopped before the call was made")


class RateLimit:
    """The most requests a minute, evenly spaced. Of several limits the lowest one counts."""

    def __init__(self) -> None:
        self._limits = [math.inf]
        self._turn = threading.Lock()  # held by the call that is sent next
        self._last_s = -math.inf

    @contextmanager
    def limited(self, per_minute: float | None) -> Iterator[None]:
        """Within `with`: a further limit for all calls; None: none.

        Raises:
            ValueError: it is neither a number above 0 nor None.
        """
        limit = math.inf if per_minute is None else per_minute
        if per_minute is not None and not 0 < per_minute < math.inf:
            raise ValueError(
                f"a rate limit must be a number above 0 a minute, or None, got {per_minute!r}"
            )
        self._limits.append(limit)
        try:
            yield
        finally:
            self._limits.remove(limit)

    def wait(self, cap: Cap) -> None:
        """Wait until the rate allows the next call.

        Raises:
            CallCancelledError: the cap was closed before that.
        """
        while not self._turn.acquire(timeout=POLL_S):
            cap.raise_if_closed()
        try:
            while (left_s := self._last_s + _MINUTE_S / min(self._limits) - time.monotonic()) > 0:
                cap.raise_if_closed()
                cap.closed.wait(min(left_s, POLL_S))
            self._last_s = time.monotonic()
        finally:
            self._turn.release()
