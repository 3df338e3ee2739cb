"""The clock of the server: a call waits for its model, then for a slot, and holds it for its time.

Calls take slots first come, first served. Moments are planned, not measured: when a call comes it
is known when a slot is free for it and when it will end, so that a queue of n calls of s seconds on
one slot ends after n * s however late the event loop wakes. When a client leaves, those behind it
are planned anew. Models are loaded one at a time; where there is no room, the least recently used
one goes, once its calls have ended.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from simulator.settings import Settings

TOKEN_S, _PROMPT_TOKEN_S = 0.004, 1e-6
"""Seconds that a token takes to be written, and to be read, at a time scale of 1."""
_INSTANT_S = 1e-9
"""Less than a clock can tell."""


class BusyError(Exception):
    """As many calls wait for a model to load as may."""


@dataclass(eq=False, kw_only=True)
class Turn:
    """A call and its plan; moments in seconds on the server's clock."""

    arrived_s: float
    loaded_s: float
    """When the model was in memory for it."""
    reading_s: float
    """How long its prompt takes to be read."""
    writing_s: float
    """How long its tokens take to be written."""
    started_s: float = math.nan
    """When it gets its slot, as far as is known now."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Is set when its plan changes."""

    @property
    def read_s(self) -> float:
        """When its prompt is read."""
        return self.started_s + self.reading_s

    @property
    def due_s(self) -> float:
        """When its last token is written."""
        return self.read_s + self.writing_s


@dataclass(eq=False)
class Runner:
    """A model in memory, with its slots and the calls on them in the order in which they came."""

    num_ctx: int
    """Tokens of context that it was loaded with: another number loads it anew."""
    slots: int
    turns: list[Turn] = field(default_factory=list)
    free_s: list[float] = field(default_factory=list)
    """A heap: when each slot is free after all calls that are planned."""
    ended_s: float = -math.inf
    """When the last call ended."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.free_s = [-math.inf] * self.slots

    def enter(self, turn: Turn) -> None:
        """Plan a call behind all others."""
        self.idle.clear()
        self.turns.append(turn)
        self._plan(turn)

    def leave(self, turn: Turn, now_s: float) -> None:
        """Let a call go; one that is not over makes those behind it come sooner."""
        self.turns.remove(turn)
        self.ended_s = max(self.ended_s, min(turn.due_s, now_s))
        if turn.due_s > now_s:
            running = [each.due_s for each in self.turns if each.started_s <= now_s < each.due_s]
            self.free_s = [*running, *[now_s] * (self.slots - len(running))]
            heapq.heapify(self.free_s)
            for waiting in self.turns:
                if waiting.started_s > now_s:
                    self._plan(waiting)
                    waiting.moved.set()
        if not self.turns:
            self.idle.set()

    def _plan(self, turn: Turn) -> None:
        turn.started_s = max(turn.loaded_s, self.free_s[0])
        heapq.heapreplace(self.free_s, turn.due_s)


class Engine:
    """The models and slots of a server, and what was counted since the last reset.

    Args:
        settings: the server's.
        clock: seconds, never going back.
        one_slot: models that have one slot whatever is set, as those that only embed.
    """

    def __init__(
        self, settings: Settings, clock: Callable[[], float], one_slot: frozenset[str]
    ) -> None:
        self.running = asyncio.Event()
        """While it is not set, the server's clock stands still and no call ends."""
        self.running.set()
        self.runners: dict[str, Runner] = {}
        """The models in memory, the least recently used first."""
        self._settings, self._clock, self._one_slot = settings, clock, one_slot
        self._stood_still_s = 0.0
        self._stopped_s = math.nan
        self._loader = asyncio.Lock()
        self._loaded_s = -math.inf
        """When the last load ended."""
        self._waiting = 0
        self._active: set[Turn] = set()
        self.reset()

    def now_s(self) -> float:
        """The server's clock."""
        until_s = self._clock() if self.running.is_set() else self._stopped_s
        return until_s - self._stood_still_s

    def stop(self) -> None:
        """Have everything stand still."""
        if self.running.is_set():
            self._stopped_s = self._clock()
            self.running.clear()

    def go_on(self) -> None:
        """Have everything go on where it was."""
        if not self.running.is_set():
            self._stood_still_s += self._clock() - self._stopped_s
            self.running.set()

    def reset(self) -> None:
        """Count from zero on; the slots of calls under way count from now."""
        self._since_s = self.now_s()
        self._busy_s = 0.0
        self._loads = self._prompt_tokens = self._completion_tokens = 0

    def stats(self) -> dict[str, Any]:
        """What was counted since the last reset; durations in seconds."""
        busy_s = self._busy_s + sum(map(self._held_s, self._active))
        return {
            "window_s": self.now_s() - self._since_s,
            "busy_slot_s": busy_s,
            "loads": self._loads,
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
        }

    @asynccontextmanager
    async def turn(
        self, model: str, num_ctx: int, prompt_tokens: int, tokens: int, arrived_s: float
    ) -> AsyncIterator[Turn]:
        """Hold one of the model's slots until the last token is written, or the caller leaves.

        Args:
            model: its full name.
            num_ctx: tokens of context that it is to have.
            prompt_tokens: to be read.
            tokens: to be written.
            arrived_s: when the request came.

        Raises:
            BusyError: too many wait for a model.
        """
        runner, loaded_s = await self._in_memory(model, num_ctx, arrived_s)
        scale = self._settings.time_scale
        turn = Turn(
            arrived_s=arrived_s,
            loaded_s=loaded_s,
            reading_s=prompt_tokens * _PROMPT_TOKEN_S * scale,
            writing_s=tokens * TOKEN_S * scale,
        )
        runner.enter(turn)
        self._active.add(turn)
        try:
            await self.reach(turn, 0.0)
            yield turn
            await self.reach(turn, 1.0)
            self._prompt_tokens += prompt_tokens
            self._completion_tokens += tokens
        finally:
            self._active.discard(turn)
            self._busy_s += self._held_s(turn)
            runner.leave(turn, self.now_s())

    async def reach(self, turn: Turn, share: float) -> None:
        """Wait until a share of a call's tokens is written, whatever becomes of its plan."""
        await self.running.wait()
        while (left_s := turn.read_s + share * turn.writing_s - self.now_s()) > _INSTANT_S:
            turn.moved.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(turn.moved.wait(), left_s)
            await self.running.wait()

    def _held_s(self, turn: Turn) -> float:
        """Seconds since the last reset for which a call has held its slot."""
        until_s = min(turn.due_s, self.now_s())
        return max(0.0, until_s - max(turn.started_s, self._since_s))

    async def _in_memory(self, model: str, num_ctx: int, arrived_s: float) -> tuple[Runner, float]:
        """The model loaded with this context, and the moment from which on it is."""
        if (runner := self._used(model, num_ctx)) is not None:
            return runner, arrived_s
        if self._waiting >= max(1, self._settings.max_queue):
            raise BusyError
        self._waiting += 1
        try:
            async with self._loader:
                # Another call may have loaded it while this one waited.
                if (runner := self._used(model, num_ctx)) is None:
                    runner = await self._load(model, num_ctx, max(arrived_s, self._loaded_s))
                return runner, max(arrived_s, self._loaded_s)
        finally:
            self._waiting -= 1

    def _used(self, model: str, num_ctx: int) -> Runner | None:
        """The model in memory, now the last used; None where it is not, or has another context."""
        runner = self.runners.get(model)
        if runner is None or runner.num_ctx != num_ctx:
            return None
        self.runners[model] = self.runners.pop(model)
        return runner

    async def _load(self, model: str, num_ctx: int, moment_s: float) -> Runner:
        """Load a model, in the place of the one that was used least recently if there is no room.

        One that still answers calls goes once they have ended.
        """
        room = self._settings.max_loaded_models or math.inf
        oldest = next(iter(self.runners), model) if len(self.runners) >= room else model
        victim = self.runners.pop(model if model in self.runners else oldest, None)
        if victim is not None and victim.turns:
            await victim.idle.wait()
            moment_s = max(moment_s, victim.ended_s)
        moment_s += self._settings.load_s * self._settings.time_scale
        await self.running.wait()
        while moment_s - self.now_s() > _INSTANT_S:
            await asyncio.sleep(moment_s - self.now_s())
            await self.running.wait()
        self._loads += 1
        self._loaded_s = moment_s
        slots = 1 if model in self._one_slot else self._settings.slots
        self.runners[model] = Runner(num_ctx, slots)
        return self.runners[model]
