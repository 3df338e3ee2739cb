"""A server in virtual time: calls come at given moments, and an hour passes at once."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from typing import Any

from simulator.agenda import Agenda
from simulator.counters import Counters
from simulator.engine import Call, Limits, Model, Server, Turn
from simulator.profiles import PROFILES, Pace
from simulator.wire import ApiError


class Scene:
    """A server and the calls that come to it.

    Args:
        profile: the hardware's name.
        time_scale: multiplies its durations.
        models: what is special about a model, by name.
        limits: what the server's environment sets.
    """

    def __init__(
        self,
        profile: str = "ideal",
        *,
        time_scale: float = 1.0,
        models: dict[str, Model] | None = None,
        **limits: Any,  # noqa: ANN401 - the fields of Limits
    ) -> None:
        self.agenda = Agenda()
        self.pace = Pace(profile=PROFILES[profile], time_scale=time_scale)
        self.counters = Counters(lambda: self.agenda.now_s)
        self.server = Server(
            agenda=self.agenda,
            pace=self.pace,
            limits=Limits(**{"max_loaded_models": PROFILES[profile].max_loaded_models} | limits),
            models=defaultdict(Model, models or {}),
            counters=self.counters,
        )
        self.turns: list[Turn] = []
        """Those that were let in, in the order of arrival."""
        self.refused: list[ApiError] = []

    def call(self, model: str = "m", *, at_s: float = 0.0, **call: Any) -> None:  # noqa: ANN401 - as above
        """Have a call come."""
        self.agenda.at(at_s, partial(self._enter, Call(model=model, **call)))

    def leave(self, place: int, *, at_s: float) -> None:
        """Have the client of the call at a place leave."""

        def leave() -> None:
            self.turns[place].leave()

        self.agenda.at(at_s, leave)

    def run(self, until_s: float = 1e9) -> list[Turn]:
        """Let time pass; the calls that were let in."""
        self.agenda.advance(until_s)
        return self.turns

    def events(self) -> int:
        """Let everything happen; at how many moments something did."""
        count = 0
        while self.agenda.next_s() < math.inf:
            self.agenda.advance(self.agenda.next_s())
            count += 1
        return count

    def _enter(self, call: Call) -> None:
        try:
            self.turns.append(self.server.begin(call, started=lambda: None))
        except ApiError as error:
            self.refused.append(error)
