"""The clock of the server: a call waits for its model, then for a slot, and holds it for its time.

Calls take slots first come, first served. Moments are planned, not measured: when a call comes it
is known when its model is loaded, when a slot is free for it and when it will end. So a queue of n
calls of s seconds on one slot ends after n * s however late the event loop wakes. When a client
leaves, the calls and loads behind it are planned anew. Models are loaded one at a time; where there
is no room, the least recently used one goes once its calls have ended.
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
"""Less than a clock can measure."""


@dataclass(eq=False, kw_only=True)
class Turn:
    """A call and its plan; moments in seconds on the server's clock."""

    arrived_s: float
    reading_s: float
    """How long its prompt takes to be read."""
    writing_s: float
    """How long its tokens take to be written."""
    loaded_s: float = math.nan
    """When the model is in memory for it, as planned now."""
    started_s: float = math.nan
    """When it gets its slot, as planned now."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Is set when its plan changes."""

    @property
    def due_s(self) -> float:
        """When its last token is written."""
        return self.started_s + self.reading_s + self.writing_s


class Runner:
    """A model in memory, with its slots and the calls on them in the order in which they came."""

    def __init__(self, *, num_ctx: int, slots: int) -> None:
        self.num_ctx = num_ctx
        """Tokens of context that it was loaded with: another number loads it anew."""
        self.begin_s = self.loaded_s = math.inf
        """When its load begins and ends, as planned now."""
        self.free_s = [math.inf] * slots
        """A heap: when each slot is free after all calls that are planned."""
        self.turns: list[Turn] = []

    def load(self, begin_s: float, load_s: float) -> None:
        """Plan its load, which has not begun, and all its calls."""
        self.begin_s, self.loaded_s = begin_s, begin_s + load_s
        self.free_s = [self.loaded_s] * len(self.free_s)
        for turn in self.turns:
            self._plan(turn)
            turn.moved.set()

    def enter(self, turn: Turn) -> None:
        """Plan a call behind all others."""
        self.turns.append(turn)
        self._plan(turn)

    def leave(self, turn: Turn, now_s: float) -> None:
        """Let a call go; one that is not over makes those behind it come sooner."""
        self.turns.remove(turn)
        if turn.due_s <= now_s:
            return
        running = [each.due_s for each in self.turns if each.started_s <= now_s < each.due_s]
        self.free_s = [*running, *[now_s] * (len(self.free_s) - len(running))]
        heapq.heapify(self.free_s)
        for waiting in self.turns:
            if waiting.started_s > now_s:
                self._plan(waiting)
                waiting.moved.set()

    def _plan(self, turn: Turn) -> None:
        turn.loaded_s = max(turn.arrived_s, self.loaded_s)
        turn.started_s = max(turn.loaded_s, self.free_s[0])
        heapq.heapreplace(self.free_s, turn.due_s)


class Engine:
    """The models and slots of a server, and what was counted since the last reset.

    Models in `one_slot` have one slot whatever is set, as those that only embed.
    """

    def __init__(
        self, settings: Settings, clock: Callable[[], float], one_slot: frozenset[str]
    ) -> None:
        self.now_s = clock
        self.answers = asyncio.Event()
        """While it is not set, no call gets any further."""
        self.answers.set()
        self.runners: dict[str, Runner] = {}
        """The models in memory, the least recently used first."""
        self._settings, self._one_slot = settings, one_slot
        self._loads: list[tuple[Runner, float, Runner | None]] = []
        """The loads to come, each with when it was asked for, and the model that makes room."""
        self._loaded_s = -math.inf
        """When the last load before these ended."""
        self._active: set[Turn] = set()
        self.reset()

    def reset(self) -> None:
        """Count from zero on; the slots of calls under way count from now."""
        self._since_s = self.now_s()
        self._busy_s = 0.0
        self._prompt_tokens = self._completion_tokens = 0

    def stats(self) -> dict[str, Any]:
        """What was counted since the last reset; durations in seconds."""
        return {
            "window_s": self.now_s() - self._since_s,
            "busy_slot_s": self._busy_s + sum(map(self._held_s, self._active)),
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
        }

    @asynccontextmanager
    async def turn(
        self, model: str, num_ctx: int, prompt_tokens: int, tokens: int, arrived_s: float
    ) -> AsyncIterator[Turn]:
        """Hold one of the model's slots until the last token is written, or the caller leaves."""
        runner, scale = self._runner(model, num_ctx, arrived_s), self._settings.time_scale
        turn = Turn(
            arrived_s=arrived_s,
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
            self._plan_loads(self.now_s())

    async def reach(self, turn: Turn, share: float) -> None:
        """Wait until a share of a call's tokens is written, even if its plan changes."""
        unwritten = 1 - share
        while (left_s := turn.due_s - unwritten * turn.writing_s - self.now_s()) > _INSTANT_S:
            turn.moved.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(turn.moved.wait(), left_s)
        await self.answers.wait()

    def _held_s(self, turn: Turn) -> float:
        """Seconds since the last reset for which a call has held its slot."""
        until_s = min(turn.due_s, self.now_s())
        return max(0.0, until_s - max(turn.started_s, self._since_s))

    def _runner(self, model: str, num_ctx: int, arrived_s: float) -> Runner:
        """The model with this context, now the last used; one that is not in memory is loaded."""
        runner = self.runners.pop(model, None)
        if runner is None or runner.num_ctx != num_ctx:
            gone = runner
            if runner is None and 0 < self._settings.max_loaded_models <= len(self.runners):
                gone = self.runners.pop(next(iter(self.runners)))
            slots = 1 if model in self._one_slot else self._settings.slots
            runner = Runner(num_ctx=num_ctx, slots=slots)
            self._loads.append((runner, arrived_s, gone))
            self._plan_loads(arrived_s)
        self.runners[model] = runner
        return runner

    def _plan_loads(self, now_s: float) -> None:
        """Plan the loads that have not begun: one at a time, once what goes has no calls."""
        while self._loads and self._loads[0][0].loaded_s <= now_s:
            self._loaded_s = self._loads.pop(0)[0].loaded_s
        free_s = self._loaded_s
        for runner, asked_s, gone in self._loads:
            begin_s = max(asked_s, free_s, *(gone.free_s if gone else ()))
            if runner.begin_s > now_s and begin_s != runner.begin_s:
                runner.load(begin_s, self._settings.load_s * self._settings.time_scale)
            free_s = runner.loaded_s
