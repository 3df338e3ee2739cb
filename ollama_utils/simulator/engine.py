"""Time: each model's slots in the order of arrival, and how long a call holds one.

A slot passes on at the moment its call was due to end, not when the event loop woke up for it, so
that late wake-ups do not add up: a queue of n calls of s seconds on one slot ends after n * s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ollama_utils.simulator.counters import Clock, Counters, Hold
from ollama_utils.simulator.profiles import Profile


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A call's time in its slot, in seconds on the engine's clock."""

    arrived_s: float
    started_s: float
    decoding_s: float
    """When the prompt is read and decoding begins."""
    due_s: float
    """When the last token is written and the slot passes on."""


class Slots:
    """A first-in, first-out semaphore whose size can move while calls wait."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._active = 0
        self._waiting: deque[asyncio.Future[float]] = deque()

    async def take(self) -> float:
        """Wait for a slot; gives the moment from which it is held."""
        if self._active < self._limit:
            self._active += 1
            return self._clock()
        arrived_s = self._clock()
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return max(arrived_s, await turn)
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(self._clock())
            raise

    def give_back(self, freed_s: float) -> None:
        """Pass a slot on to the next in line, as from `freed_s`."""
        self._active -= 1
        self._admit(freed_s)

    def resize(self, limit: int) -> None:
        """Let `limit` calls hold a slot from now on; calls under way finish."""
        self._limit = limit
        self._admit(self._clock())

    def _admit(self, from_s: float) -> None:
        while self._waiting and self._active < self._limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._active += 1
                turn.set_result(from_s)


class Engine:
    """The slots of every model and the clock they share.

    Args:
        slots: calls that a model serves at once.
        profile: how fast the hardware is.
        time_scale: every duration is multiplied by this.
        counters: is told who takes a slot and gives it back.
        clock: seconds, the event loop's own.
    """

    def __init__(
        self, *, slots: int, profile: Profile, time_scale: float, counters: Counters, clock: Clock
    ) -> None:
        self.slots = slots
        self.clock = clock
        self._profile = profile
        self._time_scale = time_scale
        self._counters = counters
        self._models: dict[str, Slots] = {}

    def models(self) -> list[str]:
        """The models that were called."""
        return list(self._models)

    def resize(self, slots: int) -> None:
        """Give every model `slots` slots from now on."""
        self.slots = slots
        for queue in self._models.values():
            queue.resize(slots)

    @asynccontextmanager
    async def turn(
        self, model: str, *, prompt_tokens: int, reply_tokens: int, arrived_s: float
    ) -> AsyncIterator[Turn]:
        """Hold one of the model's slots; leaving early gives it back at once."""
        queue = self._models.setdefault(model, Slots(self.slots, self.clock))
        started_s = await queue.take()
        turn = self._plan(prompt_tokens, reply_tokens, arrived_s, started_s)
        hold = Hold(model, turn.started_s, turn.due_s)
        self._counters.took(hold, turn.started_s - turn.arrived_s)
        try:
            yield turn
        finally:
            hold.end_s = min(turn.due_s, self.clock())
            self._counters.gave_back(hold)
            queue.give_back(hold.end_s)

    async def sleep_until(self, moment_s: float) -> None:
        """Sleep to a moment on the clock, so that delays before it do not add up."""
        rest_s = moment_s - self.clock()
        if rest_s > 0:
            await asyncio.sleep(rest_s)

    def _plan(self, prompt_tokens: int, reply_tokens: int, arrived_s: float, started_s: float) -> Turn:
        prefill_s = self._profile.prefill_s(prompt_tokens) * self._time_scale
        decode_s = self._profile.decode_s(reply_tokens) * self._time_scale
        decoding_s = started_s + prefill_s
        return Turn(
            arrived_s=min(arrived_s, started_s),
            started_s=started_s,
            decoding_s=decoding_s,
            due_s=decoding_s + decode_s,
        )
