"""How many calls a server serves at once, measured from its replies, and the limit on calls in flight.

Ollama names its slots nowhere, but each reply says how long it was served and how long it waited before
(`Usage`). While any call waits, every slot is taken: the calls in service then are the slots, our share of
them where others use the server too. `Capacity` adds up for how long how many calls were served while others
waited; the median of that is the number of slots, and its spread is told beside it. A server that does tell
its slots (llama.cpp's `/props`) is believed.

The limit is generous, for a call too many waits at the server instead of here, and a call too few leaves a
slot idle: `START` before anything is known, more as long as a call that found the limit reached is served at
once, and half as many again as are served at once when calls wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush

from ollama_utils.types import Usage

START = 16
"""The limit before the first reply. It doubles with each round trip as long as no call waits."""
MOST = 1024
"""No limit is higher."""
_WAITED = 0.1
"""Who waited this share of the mean service has waited for a slot ..."""
_WAITED_S = 0.003
"""... if it is more than this. Less is a server's own overhead: some ms, tens of ms on a busy one."""
_SPARE = 2
"""One call waits at the server for so many that are served, and one at least: it takes a slot that falls free
before we have heard of it."""
_MEMORY = 10.0
"""Mean services after which what was seen while calls waited counts 1/e of what is seen now."""
_ENOUGH = 2.0
"""Mean services for which calls must have waited before the slots are told, or the limit is lowered."""
_LIKELY = (0.1, 0.5, 0.9)
"""The quantiles of calls in service that are the slots' lower end, the slots, and their upper end."""
_SHARE = 1 / 32
"""The weight of a new value in a mean of many."""


@dataclass(frozen=True)
class SentCall:
    """What is noted of a call when it is sent."""

    number: int
    """Calls are numbered as they are sent."""
    sent_s: float
    at_limit: bool
    """Whether no further call was allowed in flight."""


@dataclass(frozen=True, kw_only=True)
class CapacityEstimate:
    """What is known of a server's capacity for one model."""

    limit: int
    """The most calls that are sent at once."""
    slots: int | None
    """How many of them are served at once; None while that is not known."""
    least_slots: int | None
    most_slots: int | None
    """The lower and the upper end of what was measured; both are `slots` where the server tells them."""
    queue_s: float
    """The mean seconds that the last calls waited for a slot."""
    service_s: float
    """The mean seconds that the last calls held a slot."""


class Capacity:
    """Measures the slots of one model at one server; all times are one clock's seconds, never going back.

    Args:
        told: the slots, where the server tells them.
    """

    def __init__(self, told: int | None = None) -> None:
        self._told = told
        self._limit = START
        self._number = 0
        self._under_way: dict[int, float] = {}
        """When each call that is not back was sent, by its number: the first was sent first."""
        self._changes: list[tuple[float, int, int]] = []
        """A heap of moments at which more or fewer calls were in service, and waited."""
        self._seen_s = 0.0
        """Until when `_changes` have been counted."""
        self._in_service = 0
        self._waiting = 0
        self._served_s: dict[int, float] = {}
        """For how long so many calls were in service while others waited; what is long ago counts less."""
        self._fresh_s = 0.0
        """For how long calls have waited since the limit was raised."""
        self._service_s = _Mean()
        self._queue_s = _Mean()
        self._trip_s = _Mean()
        if told is not None:
            self._limit = self._with_spare(told)

    @property
    def limit(self) -> int:
        """The most calls to have in flight now."""
        return self._limit

    @property
    def slots(self) -> int | None:
        """Calls served at once, other clients' left out; None while that is not known."""
        return self.found.slots

    @property
    def found(self) -> CapacityEstimate:
        """All that is known."""
        least, slots, most = [self._told] * 3 if self._told else map(self._quantile, _LIKELY)
        return CapacityEstimate(
            limit=self.limit,
            slots=slots,
            least_slots=least,
            most_slots=most,
            queue_s=self._queue_s.value,
            service_s=self._service_s.value,
        )

    def sent(self, now_s: float) -> SentCall:
        """A call goes out."""
        self._number += 1
        self._under_way[self._number] = now_s
        return SentCall(self._number, now_s, at_limit=len(self._under_way) >= self.limit)

    def came_back(self, call: SentCall, now_s: float, usage: Usage | None) -> None:
        """A call is over; `usage` is None when it failed, or nothing was reported."""
        del self._under_way[call.number]
        if usage is None:
            return
        waited = self._note(call, now_s, usage)
        waiting_s = self._count(min(self._under_way.values(), default=now_s))
        if self._told is not None:
            self._limit = self._with_spare(self._told)
        elif call.at_limit and not waited:
            self._limit, self._fresh_s = min(self._limit + 1, MOST), 0.0
        elif waiting_s:
            self._fresh_s += waiting_s
            self._follow()

    def _note(self, call: SentCall, now_s: float, usage: Usage) -> bool:
        """Note when a call waited and was served; whether it waited for a slot."""
        serving_s = usage.prefill_s + usage.decode_s
        if serving_s <= 0 or usage.total_s <= 0:
            return False
        self._service_s.add(serving_s)
        self._queue_s.add(usage.queue_s)
        waited = usage.queue_s > max(_WAITED * self._service_s.value, _WAITED_S)
        trip_s = max(0.0, now_s - call.sent_s - usage.total_s)
        self._trip_s.add(trip_s)
        ended_s = now_s - trip_s / 2  # as long there as back
        began_s = max(call.sent_s, ended_s - serving_s)
        if waited:
            heappush(self._changes, (max(call.sent_s, began_s - usage.queue_s), 0, 1))
        heappush(self._changes, (began_s, 1, -waited))
        heappush(self._changes, (max(began_s, ended_s), -1, 0))
        return waited

    def _count(self, until_s: float) -> float:
        """Count the calls in service up to a moment; the seconds of that for which others waited.

        Nothing that happened before the first call was sent that is still under way can come up later.
        """
        waiting_s = 0.0
        while self._changes and self._changes[0][0] <= until_s:
            moment_s, served, waiting = heappop(self._changes)
            if self._waiting:
                waiting_s += moment_s - self._seen_s
                self._add(self._in_service, moment_s - self._seen_s)
            self._seen_s = moment_s
            self._in_service += served
            self._waiting += waiting
        return waiting_s

    def _add(self, served: int, seconds: float) -> None:
        memory_s = _MEMORY * self._service_s.value
        kept = math.exp(-seconds / memory_s)
        self._served_s = {number: kept * seen_s for number, seen_s in self._served_s.items()}
        self._served_s[served] = self._served_s.get(served, 0.0) + memory_s * (1 - kept)

    def _follow(self) -> None:
        """Let the limit follow what is served at once: up right away, down after a while."""
        most = self._quantile(_LIKELY[-1])
        if most is None:
            return
        limit = self._with_spare(most)
        if limit > self._limit or self._fresh_s >= _ENOUGH * self._service_s.value:
            self._limit = limit

    def _with_spare(self, slots: int) -> int:
        """The limit for so many slots: those, the calls that wait there, and those on their way."""
        on_the_way = (
            round(slots * self._trip_s.value / self._service_s.value) if self._trip_s.value else 0
        )
        return min(MOST, slots + max(1, slots // _SPARE) + on_the_way)

    def _quantile(self, share: float) -> int | None:
        """The calls that were in service for this share of the time while others waited, or fewer."""
        total_s = sum(self._served_s.values())
        if total_s < _ENOUGH * self._service_s.value or not total_s:
            return None
        below_s = 0.0
        for number in sorted(self._served_s):
            below_s += self._served_s[number]
            if below_s >= share * total_s:
                break
        return max(1, number)


class _Mean:
    """The mean of the last few values, the newest counting most; 0 before the first."""

    def __init__(self) -> None:
        self.value = 0.0
        self._share = 1.0

    def add(self, value: float) -> None:
        self.value += self._share * (value - self.value)
        self._share = max(_SHARE, self._share / (1 + self._share))
