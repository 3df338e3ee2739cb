"""How many calls a server serves at once, as its replies report: the least in flight that keeps it busy.

No endpoint of Ollama names its slots, but each reply says how long it was served and how long it waited
before (`Usage`). Slots are passed on first come, first served. So when a call's service began, those of our
calls that were sent before it and were not back yet were in service too: k calls with itself. If it had
waited, all slots were taken, and k of them were ours: a measurement, exact but for what the network blurs,
and our share where others use the server. If it had not, there are k slots or more. A reply's time also holds
what is neither (reading the prompt into tokens, a busy host); such a wait is known by its end, which is not
that of another call.

The limit follows (`Capacity`): it grows by one with each call that did not wait although the gate was full
when it was sent (so it doubles with each round trip), until calls wait; then it is the slots that the last
waits measured. With few slots a call too many waits long, so only every few replies one call over the limit
probes whether there are more. With many it waits little: one in eight stays in flight beyond them. Where the
throughput stops growing before all slots are busy (`Saturation`), the limit is lower.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass
from statistics import median_low

from ollama_utils.types import Usage

START = 4
"""The limit before the first reply, and for good where replies have no timings. Embeddings have none: Ollama
serves them on one slot, which stays busy if more are on their way."""
MOST = 1024
"""No limit is higher."""
_WAITS = 5
"""The slots are the median of what so many waits measured."""
_PROBE_EVERY = 8
"""Replies between two calls over the limit."""
_SPARE = 8
"""One call in so many is in flight beyond the slots: with fewer slots none, but for the probes."""
_IDLE = 0.04
"""The share of its time that a slot may idle while a reply is on its way and the next call on its own."""
_WAITED = 0.25
"""Who waited this share of the mean time between two free slots has waited for one ..."""
_WAITED_S = 0.003
"""... if it is more than a server's overhead varies by: an assumption, as is its lower part."""
_NEAR = 0.25
"""A call that ends within this share of the mean time until another ends has ended before: it made room."""
_TOGETHER = 0.03
"""A wait for a slot ends as another call does: no further apart than this share of that time ..."""
_TOGETHER_S = 0.002
"""... or than this. What a reply's time holds beside service (reading the prompt into tokens, a busy host) is
no wait for a slot, though it looks like one."""
_BEYOND_CHANCE = 0.15
"""Waits are for slots where the share of them that ends so exceeds chance by this. Beside another client's
calls about as many do as there are slots with ours."""
_AT_ONCE = 0.05
"""Who waited no longer than this share has not ..."""
_AT_ONCE_S = 0.001
"""... or no longer than this."""
_LATE = 2.0
"""A reply whose trips took so many times the mean was held up: when its service began is not known."""
_KEPT = 4096
"""Ends of calls that are kept; of who was in service for longer nothing is learned."""
_SHARE = 1 / 32
"""The weight of a new value in a mean of many."""
_WORTH = 0.97
"""The share of the most throughput that is as good as all of it."""
_MEMORY = 1 / 256
"""The weight of a new reply once there are many."""
_FEWEST = 8
"""Replies before which nothing is said."""
_SURE = 3.0
"""Standard errors by which calls must slow each other down before it counts."""


class Saturation:
    """Learns from replies how much slower each is served the more are served beside it.

    Reading a prompt and writing a token both take longer by about as much with each call beside it, so a
    service takes A + B n seconds among n, and n / (A + B n) calls are served in a second. B is taken to be as
    small as the replies allow: noise must not cost throughput.
    """

    def __init__(self) -> None:
        self._count = 0.0
        self._around = 0.0
        self._spread = 0.0
        self._tokens = 0.0
        self._prefill = _Line()
        self._token = _Line()

    def add(self, around: float, usage: Usage) -> None:
        """A reply came; `around` is the mean number of calls in service while it was, itself included."""
        if usage.completion_tokens < 1:
            return
        self._count = min(self._count + 1, 1 / _MEMORY)
        share, off = 1 / self._count, around - self._around
        self._prefill.add(share, off, usage.prefill_s)
        self._token.add(share, off, usage.decode_s / usage.completion_tokens)
        self._around += share * off
        self._spread = (1 - share) * (self._spread + share * off * off)
        self._tokens += share * (usage.completion_tokens - self._tokens)

    def least_in_flight(self, slots: int) -> int:
        """The least number of calls at once whose throughput is as good as that of all slots."""
        slowing_s = self._slope(self._prefill) + self._tokens * self._slope(self._token)
        if slowing_s <= 0:
            return slots
        service_s = self._prefill.mean_s + self._tokens * self._token.mean_s
        alone_s = max(0.0, service_s - slowing_s * self._around)
        least = _WORTH * slots * alone_s / (alone_s + (1 - _WORTH) * slots * slowing_s)
        return min(slots, max(1, math.ceil(least)))

    def _slope(self, line: _Line) -> float:
        """How many seconds each further call adds, at least."""
        if self._spread <= 0 or self._count < _FEWEST:
            return 0.0
        slope = line.both / self._spread
        error = math.sqrt(max(0.0, line.noise - slope * line.both) / self._spread / self._count)
        return max(0.0, slope - _SURE * error)


class _Line:
    """Running sums of seconds against the calls around: their mean, their variance and their covariance."""

    def __init__(self) -> None:
        self.mean_s = 0.0
        self.noise = 0.0
        self.both = 0.0

    def add(self, share: float, off: float, seconds: float) -> None:
        """One reply more, counted as this share; `off`: how far the calls around it are from their mean."""
        off_s = seconds - self.mean_s
        self.mean_s += share * off_s
        self.noise = (1 - share) * (self.noise + share * off_s * off_s)
        self.both = (1 - share) * (self.both + share * off * off_s)


@dataclass(frozen=True)
class SentCall:
    """What is noted of a call when it is sent."""

    sent_s: float
    waking_s: float
    """Seconds for which its place in flight had been free."""
    place: int
    """Its number among those in flight, from 1."""
    ended: int
    """How many calls had ended before."""
    area_s: float
    """The seconds in flight of all calls until now."""
    at_limit: bool
    """Whether no further call was allowed in flight."""


@dataclass(frozen=True, kw_only=True)
class CapacityEstimate:
    """What is known of a server's capacity for one model."""

    limit: int
    """The most calls that are sent at once."""
    slots: int | None
    """How many of them are served at once; None while no call has waited."""
    queue_s: float
    """The mean seconds that the last calls waited for a slot."""
    service_s: float
    """The mean seconds that the last calls held a slot."""


class Capacity:
    """Estimates slots from the timings of replies; all times are one clock's seconds, never going back."""

    def __init__(self) -> None:
        self._slots: int | None = None
        self._limit = START
        self._waits: deque[int] = deque(maxlen=_WAITS)
        self._ends: deque[float] = deque(maxlen=_KEPT)
        self._ended = 0
        self._in_flight = 0
        self._area_s = 0.0
        self._moved_s = 0.0
        self._since_probe = 0
        self._least_queue_s = math.inf
        self._service_s = _Mean()
        self._queue_s = _Mean()
        self._trip_s = _Mean()
        self._met = _Mean()
        self._waits_for_slots = True
        self._beside_s = _Mean()
        self._saturation = Saturation()

    @property
    def limit(self) -> int:
        """The most calls to have in flight now."""
        return self._limit + self._is_probing

    @property
    def slots(self) -> int | None:
        """Calls served at once, other clients' left out; None while none of ours has waited."""
        return self._slots

    @property
    def found(self) -> CapacityEstimate:
        """All that is known."""
        return CapacityEstimate(
            limit=self._limit,
            slots=self._slots,
            queue_s=self._queue_s.value,
            service_s=self._service_s.value,
        )

    def sent(self, now_s: float, *, waking_s: float = 0.0) -> SentCall:
        """A call goes out, so many seconds after there was a place for it."""
        self._move(now_s, 1)
        at_limit = self._in_flight >= self._limit
        if self._in_flight > self._limit:
            self._since_probe = 0
        return SentCall(now_s, waking_s, self._in_flight, self._ended, self._area_s, at_limit)

    def came_back(self, call: SentCall, now_s: float, usage: Usage | None) -> None:
        """A call is over; `usage` is None when it failed, or nothing was reported."""
        self._move(now_s, -1)
        self._ended += 1
        self._ends.append(now_s)
        if usage is None or usage.prefill_s + usage.decode_s <= 0 or usage.total_s <= 0:
            return
        serving_s = usage.prefill_s + usage.decode_s
        self._service_s.add(serving_s)
        self._queue_s.add(usage.queue_s)
        trip_s = max(0.0, now_s - call.sent_s - usage.total_s)
        self._trip_s.add(trip_s + call.waking_s)
        self._least_queue_s = min(self._least_queue_s, usage.queue_s)
        self._since_probe += 1
        around = (self._area_s - call.area_s) / max(now_s - call.sent_s, 1e-9)
        self._saturation.add(min(around, self._slots or math.inf), usage)
        if trip_s <= _LATE * self._trip_s.value + _WAITED * self._service_s.value / call.place:
            self._learn(call, now_s - serving_s, usage.queue_s - self._least_queue_s)

    @property
    def _is_probing(self) -> bool:
        """Whether one more call than the limit may go and see."""
        at_slots = self._slots is not None and self._limit <= self._slots
        return at_slots and self._since_probe >= _PROBE_EVERY

    def _learn(self, call: SentCall, began_s: float, waited_s: float) -> None:
        """Learn from one reply how many slots there are."""
        near_s = _NEAR * self._service_s.value / call.place
        served = self._served_with(call, began_s + near_s)
        if served is None:
            return
        apart_s = self._service_s.value / served
        if waited_s >= max(_WAITED * apart_s, _WAITED_S):
            if not self._is_for_slot(began_s, apart_s):
                if not self._waits_for_slots and call.at_limit:
                    self._beside_s.add(waited_s)
                    self._grow(served)
                return
            if self._slots is not None and call.place > self._slots:
                served = min(served, call.place - 1)  # one of ours made room, however late we heard of it
            self._waits.append(served)
            self._slots = median_low(self._waits)
            self._limit = self._target(self._slots)
        elif waited_s <= max(_AT_ONCE * apart_s, _AT_ONCE_S) and call.at_limit:
            self._beside_s.add(waited_s)
            self._grow(served)

    def _is_for_slot(self, began_s: float, apart_s: float) -> bool:
        """Whether a call that waited waited for a slot, which one of ours gave back.

        If hardly more waits end as a call of ours does than chance would have it, none is for a slot.
        """
        near_s = max(_TOGETHER_S, _TOGETHER * apart_s)
        place = bisect_left(self._ends, began_s - near_s)
        is_met = place < len(self._ends) and self._ends[place] <= began_s + near_s
        self._met.add(is_met)
        self._waits_for_slots = self._met.value > 1 - math.exp(-2 * near_s / apart_s) + _BEYOND_CHANCE
        return is_met and self._waits_for_slots

    def _grow(self, served: int) -> None:
        """A call was served at once although the gate was full."""
        if self._slots is not None and served > self._slots:
            self._slots = None
            self._waits.clear()
        if self._slots is None:
            self._limit = min(self._limit + 1, self._saturation.least_in_flight(MOST))

    def _served_with(self, call: SentCall, moment_s: float) -> int | None:
        """How many calls up to this one were under way at a moment; None when that is forgotten."""
        forgotten = self._ended - len(self._ends)
        ended = forgotten + bisect_right(self._ends, moment_s)
        if ended < call.ended or (forgotten and ended == forgotten):
            return None
        return max(1, call.place - (ended - call.ended))

    def _target(self, slots: int) -> int:
        """The least number in flight that keeps so many slots busy."""
        idle = (self._trip_s.value + self._beside_s.value) / self._service_s.value
        on_the_way = math.ceil(slots * max(0.0, idle - _IDLE))
        return min(self._saturation.least_in_flight(slots) + slots // _SPARE + on_the_way, MOST)

    def _move(self, now_s: float, change: int) -> None:
        self._area_s += self._in_flight * (now_s - self._moved_s)
        self._moved_s = now_s
        self._in_flight += change


class _Mean:
    """The mean of the last few values, the newest counting most; 0 before the first."""

    def __init__(self) -> None:
        self.value = 0.0
        self._share = 1.0

    def add(self, value: float) -> None:
        self.value += self._share * (value - self.value)
        self._share = max(_SHARE, self._share / (1 + self._share))
