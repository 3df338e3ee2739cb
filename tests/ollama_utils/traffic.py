"""A server and its clients in virtual time: lanes in a closed loop through a limit, for minutes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from statistics import mean, median
from typing import Any, Self

from ollama_utils.limits import Limit
from ollama_utils.types import Usage

SERVICE_S = 0.2
"""The mean of a reply."""


class VirtualServer:
    """Slots that calls take in the order in which they come, on a clock of its own."""

    def __init__(self, slots: int) -> None:
        self.now_s = 0.0
        self._slots = slots
        self._in_service = 0
        self._line: deque[Callable[[], None]] = deque()
        self._agenda: list[tuple[float, int, Callable[[], Any]]] = []
        self._number = 0

    def at(self, moment_s: float, action: Callable[[], Any]) -> None:
        """Have something happen at a moment, after what was to happen then before."""
        self._number += 1
        heappush(self._agenda, (moment_s, self._number, action))

    def advance(self, until_s: float) -> None:
        """Let time pass."""
        while self._agenda and self._agenda[0][0] <= until_s:
            self.now_s, _, action = heappop(self._agenda)
            action()
        self.now_s = until_s

    def resize(self, slots: int) -> None:
        """Serve so many at once from now on; who is in service stays."""
        self._slots = slots
        self._admit()

    def ask(self, service_s: float, ended: Callable[[Usage], None]) -> None:
        """A call comes; `ended` gets what the server reports when it was served."""
        self._line.append(partial(self._begin, service_s, self.now_s, ended))
        self._admit()

    def _admit(self) -> None:
        while self._line and self._in_service < self._slots:
            self._line.popleft()()

    def _begin(self, service_s: float, came_s: float, ended: Callable[[Usage], None]) -> None:
        usage = Usage(decode_s=service_s, total_s=self.now_s + service_s - came_s)
        self._in_service += 1
        self.at(self.now_s + service_s, partial(self._end, usage, ended))

    def _end(self, usage: Usage, ended: Callable[[Usage], None]) -> None:
        self._in_service -= 1
        self._admit()
        ended(usage)


class Traffic:
    """Lanes that each send their next call when the last is back, as far as the limit lets them.

    Args:
        server: where the calls go.
        limit: is kept.
        lanes: the most calls there are to send.
        travel_s: from a client to the server, and as long back.
        sigma: of the log of a service's length, whose mean is SERVICE_S.
        seed: of these lengths.
    """

    def __init__(
        self,
        server: VirtualServer,
        limit: Limit,
        *,
        lanes: int = 64,
        travel_s: float = 0.0005,
        sigma: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.limit, self.lanes = limit, lanes
        self.replies: list[tuple[float, Usage, int]] = []
        """When each came back, and the limit then."""
        self._server, self._travel_s, self._sigma = server, travel_s, sigma
        self._random = random.Random(seed)
        server.at(server.now_s, self._fill)

    def run(self, until_s: float) -> Self:
        """Let time pass."""
        self._server.advance(until_s)
        return self

    def rate(self, begin_s: float, end_s: float) -> float:
        """Seconds of service a second that came back in a window."""
        served = [usage.decode_s for at_s, usage, _ in self.replies if begin_s <= at_s < end_s]
        return sum(served) / (end_s - begin_s)

    def wait(self, begin_s: float) -> float:
        """The median wait of the calls that came back since then, in mean service times."""
        usages = [usage for at_s, usage, _ in self.replies if at_s >= begin_s]
        return median(u.queue_s for u in usages) / mean(u.decode_s for u in usages)

    def limits_within(self, begin_s: float, end_s: float) -> set[int]:
        """The limits that held in a window."""
        return {limit for at_s, _, limit in self.replies if begin_s <= at_s < end_s}

    def _fill(self) -> None:
        while self.limit.in_flight < min(self.limit.value, self.lanes):
            self.limit.in_flight += 1
            number = self.limit.send(self._server.now_s)
            self._server.at(self._server.now_s + self._travel_s, partial(self._arrive, number))

    def _arrive(self, number: int) -> None:
        service_s = SERVICE_S * self._random.lognormvariate(-(self._sigma**2) / 2, self._sigma)

        def ended(usage: Usage) -> None:
            self._server.at(self._server.now_s + self._travel_s, partial(self._back, number, usage))

        self._server.ask(service_s, ended)

    def _back(self, number: int, usage: Usage) -> None:
        now_s = self._server.now_s
        self.limit.answer(number, now_s, usage)
        self.limit.in_flight -= 1
        self.replies.append((now_s, usage, self.limit.value))
        self._fill()
