"""A server and its clients in virtual time: lanes in a closed loop through a limit, for minutes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from statistics import mean, median
from typing import Any, Self

from ollama_utils.limits import Limit
from ollama_utils.types import Usage

TOKENS = 50
"""Mean of a reply; 200 ms where a call is alone."""
_TOKEN_S = 0.004


class VirtualServer:
    """Slots that calls take in the order in which they come, on a clock of its own.

    Args:
        slots: calls served at once.
        slowing: what each other call in service when one begins adds to its time, as a share.
    """

    def __init__(self, slots: int, *, slowing: float = 0.0) -> None:
        self.now_s = 0.0
        self._slots = slots
        self._slowing = slowing
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

    def ask(self, tokens: int, ended: Callable[[Usage], None]) -> None:
        """A call comes; `ended` is called with what the server reports when the call was served."""
        self._line.append(partial(self._begin, tokens, self.now_s, ended))
        self._admit()

    def _admit(self) -> None:
        while self._line and self._in_service < self._slots:
            self._line.popleft()()

    def _begin(self, tokens: int, came_s: float, ended: Callable[[Usage], None]) -> None:
        decode_s = tokens * _TOKEN_S * (1 + self._slowing * self._in_service)
        total_s = self.now_s + decode_s - came_s
        usage = Usage(completion_tokens=tokens, decode_s=decode_s, total_s=total_s)
        self._in_service += 1
        self.at(self.now_s + decode_s, partial(self._end, usage, ended))

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
        sigma: of the log of a reply's length, whose mean is TOKENS.
        overhead_s: a call takes up to so much at the server before it asks for a slot.
    """

    def __init__(
        self,
        server: VirtualServer,
        limit: Limit,
        *,
        lanes: int = 64,
        travel_s: float = 0.0005,
        sigma: float = 1.0,
        overhead_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.limit = limit
        self.lanes = lanes
        self.replies: list[tuple[float, Usage]] = []
        """When each came back."""
        self.limits: list[tuple[float, int]] = []
        """The limit after each reply."""
        self._server = server
        self._travel_s = travel_s
        self._sigma = sigma
        self._overhead_s = overhead_s
        self._random = random.Random(seed)
        self._in(0.0, self._fill)

    def run(self, until_s: float) -> Self:
        """Let time pass."""
        self._server.advance(until_s)
        return self

    def rate(self, begin_s: float, end_s: float) -> float:
        """Tokens a second that came back in a window."""
        return sum(usage.completion_tokens for usage in self._within(begin_s, end_s)) / (
            end_s - begin_s
        )

    def wait(self, begin_s: float, end_s: float) -> float:
        """The median wait of the calls that came back in a window, in mean service times."""
        usages = self._within(begin_s, end_s)
        return median(u.queue_s for u in usages) / mean(u.prefill_s + u.decode_s for u in usages)

    def limits_within(self, begin_s: float, end_s: float) -> set[int]:
        """The limits that held in a window."""
        return {limit for moment_s, limit in self.limits if begin_s <= moment_s < end_s}

    def _within(self, begin_s: float, end_s: float) -> list[Usage]:
        return [usage for moment_s, usage in self.replies if begin_s <= moment_s < end_s]

    def _in(self, delay_s: float, action: Callable[[], Any]) -> None:
        self._server.at(self._server.now_s + delay_s, action)

    def _fill(self) -> None:
        while self.limit.in_flight < min(self.limit.value, self.lanes):
            self.limit.in_flight += 1
            number = self.limit.send(self._server.now_s)
            overhead_s = self._overhead_s and self._random.uniform(0, self._overhead_s)
            self._in(self._travel_s + overhead_s, partial(self._arrive, number, overhead_s))

    def _arrive(self, number: int, overhead_s: float) -> None:
        tokens = TOKENS * self._random.lognormvariate(-(self._sigma**2) / 2, self._sigma)
        self._server.ask(
            max(1, round(tokens)),
            lambda usage: self._in(self._travel_s, partial(self._back, number, usage, overhead_s)),
        )

    def _back(self, number: int, usage: Usage, overhead_s: float) -> None:
        now_s = self._server.now_s
        usage = replace(usage, total_s=usage.total_s + overhead_s)
        self.replies.append((now_s, usage))
        self.limit.answer(number, now_s, usage)
        self.limit.in_flight -= 1
        self.limits.append((now_s, self.limit.value))
        self._fill()
