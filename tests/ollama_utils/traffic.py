"""Clients of a server in virtual time: lanes in a closed loop through a limit, for minutes on end."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from statistics import mean, median
from typing import Any, Self

from ollama_utils.capacity import Capacity, SentCall
from ollama_utils.types import Usage
from simulator.engine import Call, Turn
from tests.simulator.virtual import Scene

TOKENS = 50
"""Mean of a reply; 200 ms on the ideal profile."""


class Fixed(Capacity):
    """A limit that stays, whatever the replies tell."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.fixed = limit

    @property
    def limit(self) -> int:
        return self.fixed


class Traffic:
    """Lanes that each send their next call when the last is back, as far as the limit lets them.

    Args:
        scene: the server.
        capacity: whose limit is kept.
        lanes: the most calls there are to send.
        travel_s: from a client to the server, and as long back.
        sigma: of the log of a reply's length, whose mean is TOKENS.
        overhead_s: the most that a call takes at the server before it asks for a slot; each takes some of it.
    """

    def __init__(
        self,
        scene: Scene,
        capacity: Capacity,
        *,
        lanes: int = 64,
        travel_s: float = 0.0005,
        sigma: float = 1.0,
        overhead_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.capacity = capacity
        self.lanes = lanes
        self.replies: list[tuple[float, Usage]] = []
        """When each came back."""
        self.limits: list[tuple[float, int]] = []
        """The limit after each reply."""
        self._scene = scene
        self._travel_s = travel_s
        self._sigma = sigma
        self._overhead_s = overhead_s
        self._random = random.Random(seed)
        self._in_flight = 0
        self._in(0.0, self._fill)

    def run(self, until_s: float) -> Self:
        """Let time pass."""
        self._scene.agenda.advance(until_s)
        return self

    def rate(self, begin_s: float, end_s: float) -> float:
        """Tokens a second that came back in a window."""
        return sum(usage.completion_tokens for usage in self._within(begin_s, end_s)) / (end_s - begin_s)

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
        self._scene.agenda.at(self._scene.agenda.now_s + delay_s, action)

    def _fill(self) -> None:
        while self._in_flight < min(self.capacity.limit, self.lanes):
            self._in_flight += 1
            sent = self.capacity.sent(self._scene.agenda.now_s)
            overhead_s = self._overhead_s and self._random.uniform(0, self._overhead_s)
            self._in(self._travel_s + overhead_s, partial(self._arrive, sent, overhead_s))

    def _arrive(self, sent: SentCall, overhead_s: float) -> None:
        tokens = TOKENS * self._random.lognormvariate(-(self._sigma**2) / 2, self._sigma)
        call = Call(model="m", reply_tokens=max(1, round(tokens)))
        turns: list[Turn] = []

        def ended() -> None:
            self._in(self._travel_s, lambda: self._back(sent, turns[0], overhead_s))

        def started() -> None:
            self._in(0.0, lambda: turns[0].mark(call.reply_tokens, ended))

        turns.append(self._scene.server.begin(call, started=started))

    def _back(self, sent: SentCall, turn: Turn, overhead_s: float) -> None:
        now_s = self._scene.agenda.now_s
        usage = Usage(
            completion_tokens=turn.call.reply_tokens,
            load_s=turn.load_s,
            prefill_s=turn.prefill_s,
            decode_s=turn.decode_s,
            total_s=turn.total_s + overhead_s,
        )
        self._in_flight -= 1
        self.replies.append((now_s, usage))
        self.capacity.came_back(sent, now_s, usage)
        self.limits.append((now_s, self.capacity.limit))
        self._fill()
