"""Outages of the whole server, which begin and end when a test says so; faults strike single requests.

`hang`: nothing is answered until the outage ends, and then everything goes on where it was, as after a
process was stopped and continued; whatever the model was at stands still meanwhile, and its seconds count
in the durations of the replies. `drop`: every connection that brings a request is reset, and those whose
calls are under way at once.

`at` says what fails: `calls`, all that costs a model's time, while the lists of models, the version and
`/props` are answered as ever, so that the server looks healthy; or `all`. Routes under `/simulator/` are
always answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args
from weakref import WeakSet

from aiohttp import web

from simulator.engine import Engine
from simulator.faults import reset

Mode = Literal["hang", "drop"]
Scope = Literal["calls", "all"]
_SHORTEST_S, _LONGEST_S = 1e-6, 1e9
_FACTORS = (0.001, 1e6)
_EXPECTED = {
    "mode": f"one of {list(get_args(Mode))}",
    "at": f"one of {list(get_args(Scope))}",
    "for_s": f"null, or a number of seconds from {_SHORTEST_S:g} to {_LONGEST_S:g}",
}


@dataclass(frozen=True, kw_only=True)
class Outage:
    """What fails, how, and for how long."""

    mode: Mode
    at: Scope = "calls"
    for_s: float | None = None
    """Seconds by the wall clock; None is until another is set."""


def parse_outage(payload: object) -> Outage:
    """The outage of a JSON object such as `{"mode": "hang", "at": "calls", "for_s": 120}`.

    Raises:
        ValueError: something else came; the message says what was expected.
    """
    if not isinstance(payload, Mapping) or not {"mode"} <= set(payload) <= set(_EXPECTED):
        raise ValueError(f"an outage must be an object of 'mode', 'at' and 'for_s', got {payload!r}")
    outage = Outage(**payload)
    right = {
        "mode": outage.mode in get_args(Mode),
        "at": outage.at in get_args(Scope),
        "for_s": outage.for_s is None or _is_number(outage.for_s, _SHORTEST_S, _LONGEST_S),
    }
    for name, is_right in right.items():
        if not is_right:
            raise ValueError(f"an outage's {name} must be {_EXPECTED[name]}, got {getattr(outage, name)!r}")
    return outage


class Outages:
    """The outage that is played, and the pace at which the machine works.

    Args:
        engine: stands still while the server hangs.
    """

    def __init__(self, engine: Engine) -> None:
        self.now: Outage | None = None
        self.pace_factor = 1.0
        """How many times as long as in the profile everything takes."""
        self._engine = engine
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._pipes: WeakSet[asyncio.Transport] = WeakSet()
        """The connections that brought calls."""

    def set(self, outage: Outage | None) -> None:
        """Play an outage from now on, in place of another; None ends it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.now = outage
        if outage is not None and outage.for_s is not None:
            self._timer = asyncio.get_running_loop().call_later(outage.for_s, self.set, None)
        self._set_speed()
        if outage is not None and outage.mode == "drop":
            for pipe in list(self._pipes):
                reset(pipe)
        self._changed.set()
        self._changed = asyncio.Event()

    def set_pace(self, factor: float) -> None:
        """Have everything take so many times as long from now on, also what is under way."""
        self.pace_factor = factor
        self._set_speed()

    async def passed(self, request: web.Request, what: Scope) -> None:
        """Wait until a request may go on: `calls`, a checked call; `all`, any request that came in.

        Raises:
            ConnectionResetError: its connection was reset.
        """
        if what == "calls" and request.transport is not None:
            self._pipes.add(request.transport)
        while self.now is not None and (what == "calls" or self.now.at == "all"):
            if self.now.mode == "drop":
                if request.transport is not None:
                    reset(request.transport)
                raise ConnectionResetError("the server drops connections")
            await self._changed.wait()

    def shown(self) -> dict[str, Any] | None:
        """The outage as JSON."""
        return None if self.now is None else asdict(self.now)

    def _set_speed(self) -> None:
        hangs = self.now is not None and self.now.mode == "hang"
        self._engine.set_speed(0.0 if hangs else 1 / self.pace_factor)


def parse_pace(payload: object) -> float:
    """The factor of `{"factor": 10}`.

    Raises:
        ValueError: something else came; the message says what was expected.
    """
    factor = payload.get("factor") if isinstance(payload, Mapping) and len(payload) == 1 else None
    if not _is_number(factor, *_FACTORS):
        least, most = _FACTORS
        raise ValueError(f'expected {{"factor": f}} with f from {least:g} to {most:g}, got {payload!r}')
    return float(factor)  # type: ignore[arg-type] # a number


def _is_number(value: object, least: float, most: float) -> bool:
    """Whether a value is a number within bounds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
