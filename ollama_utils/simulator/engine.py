"""The server's time on the event loop: virtual time follows a clock, and handlers wait for its moments.

Everything that takes time happens in virtual time (`turns`), which this file brings up to the clock whenever
somebody comes or goes and at the next moment due. The loop's timers decide only when a handler hears of a
moment, never when the moment was.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from ollama_utils.simulator.agenda import Agenda
from ollama_utils.simulator.counters import Clock, Counters
from ollama_utils.simulator.profiles import Pace
from ollama_utils.simulator.runners import Limits, Model, Request, Resident, Runner
from ollama_utils.simulator.turns import Call, Server, Turn

_LONGEST_S = 3600.0
"""Event loops take no timer for a century."""


class Engine:
    """The slots and models of a server, and the clock they share.

    Args:
        pace: how long everything takes.
        limits: what the server's environment sets.
        models: the models that are here, by full name.
        counters: is told who takes a slot and gives it back.
        clock: seconds, the event loop's own.
    """

    def __init__(
        self, *, pace: Pace, limits: Limits, models: Mapping[str, Model], counters: Counters, clock: Clock
    ) -> None:
        self.slots = limits.slots
        self.clock = clock
        self._agenda = Agenda(clock())
        self._server = Server(agenda=self._agenda, pace=pace, limits=limits, models=models, counters=counters)
        self._timer: asyncio.TimerHandle | None = None

    def residents(self) -> list[Resident]:
        """The models in memory, the longest to stay first."""
        with self._present():
            return self._server.residence.residents()

    def waiting(self) -> dict[str, int]:
        """How many calls wait now, for a model and for a slot."""
        with self._present():
            residence = self._server.residence
            return {"waiting_for_load": residence.waiting, "waiting_for_slot": residence.in_line}

    def resize(self, slots: int) -> None:
        """Give every model `slots` slots from now on, but for those that have one whatever is set."""
        self.slots = slots
        with self._present():
            self._server.residence.resize(slots)

    def unload(self, model: str) -> None:
        """Unload a model as soon as no call uses it."""
        with self._present():
            self._server.residence.expire(model)

    async def load(self, call: Call) -> None:
        """Bring a model into memory, for a call without words.

        Raises:
            ApiError: there is no room for the request, or none for the model.
        """
        loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        residence = self._server.residence

        def give_back(runner: Runner) -> None:
            residence.release(runner)
            _settle(loaded)

        request = Request(
            model=call.model, options=call.options, keep_alive_s=call.keep_alive_s, ready=give_back
        )
        try:
            with self._present():
                residence.ask(request)
            await loaded
        finally:
            with self._present():
                residence.withdraw(request)

    @asynccontextmanager
    async def turn(self, call: Call, *, arrived_s: float) -> AsyncIterator[Turn]:
        """Hold one of the model's slots; leaving early gives it back at once, or the place in line.

        Raises:
            ApiError: there is no room for the request, or none for the model.
        """
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._present():
            turn = self._server.begin(call, started=partial(_settle, started), arrived_s=arrived_s)
        try:
            await started
            yield turn
        finally:
            if not turn.over:
                with self._present():
                    turn.leave()

    async def written(self, turn: Turn, tokens: float) -> None:
        """Wait until so many tokens of a reply are written; all of them are its end."""
        if turn.over:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._present():
            turn.mark(tokens, partial(_settle, reached))
        await reached

    @contextmanager
    def _present(self) -> Iterator[None]:
        """Bring virtual time up to the clock, before and after what is done; then wait for what comes."""
        self._agenda.advance(self.clock())
        try:
            yield
        finally:
            self._agenda.advance(self._agenda.now_s)
            self._wait()

    def _wait(self) -> None:
        """Set the timer for the next moment; one that is set for an earlier moment will look again."""
        next_s = self._agenda.next_s()
        if next_s == math.inf or (self._timer is not None and self._timer.when() <= next_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(min(next_s, self._agenda.now_s + _LONGEST_S), self._wake)

    def _wake(self) -> None:
        self._timer = None
        with self._present():
            pass


def _settle(future: asyncio.Future[None]) -> None:
    """Tell whoever waits, unless it has left."""
    if not future.done():
        future.set_result(None)
