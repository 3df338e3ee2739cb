"""Lanes in virtual time whose calls go to several models of one server, through a gate for each."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from ollama_utils.swaps import Swaps
from ollama_utils.types import Usage
from simulator.engine import Call, Turn
from tests.simulator.virtual import Scene

TRAVEL_S = 0.001
"""From the server back to a lane, and from there to the next call."""


class VirtualGate:
    """A gate in virtual time: first come, first served, while it is open and there is room.

    Args:
        limit: the most calls inside at once.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self.queue: deque[tuple[float, Callable[[], None]]] = deque()
        self.waits_s: list[float] = []
        self._open = True
        self.now_s: Callable[[], float] = lambda: 0.0

    @property
    def open(self) -> bool:
        return self._open

    @open.setter  # noqa: A003 - the property, not the builtin
    def open(self, is_open: bool) -> None:
        self._open = is_open
        self.admit()

    def enter(self, admitted: Callable[[], None]) -> None:
        self.queue.append((self.now_s(), admitted))
        self.admit()

    def withdraw(self, admitted: Callable[[], None]) -> bool:
        """Leave the line; False: it was admitted before."""
        left = [place for place in self.queue if place[1] is admitted]
        for place in left:
            self.queue.remove(place)
        return bool(left)

    def leave(self) -> None:
        self.in_flight -= 1
        self.admit()

    def admit(self) -> None:
        while self._open and self.queue and self.in_flight < self.limit:
            came_s, admitted = self.queue.popleft()
            self.waits_s.append(self.now_s() - came_s)
            self.in_flight += 1
            admitted()


@dataclass
class Roles:
    """Lanes that each go through their own succession of models, one call after another.

    Args:
        scene: the server.
        limits: by model, the most calls in flight.
        lanes: each gives the model of its next call and the tokens of the reply.
        grouped: whether models that do not fit together take turns.
    """

    scene: Scene
    limits: dict[str, int]
    lanes: list[Iterator[tuple[str, int]]]
    grouped: bool = True
    ended: list[tuple[float, str]] = field(default_factory=list)
    """When each call came back, and of which model."""

    def __post_init__(self) -> None:
        self.gates = {model: VirtualGate(limit) for model, limit in self.limits.items()}
        for gate in self.gates.values():
            gate.now_s = lambda: self.now_s
        self.swaps = Swaps(lambda: self.gates, lambda: self.now_s)
        for lane in self.lanes:
            self.scene.agenda.at(0.0, partial(self._next, lane))

    @property
    def now_s(self) -> float:
        return self.scene.agenda.now_s

    def run(self, calls: int) -> Roles:
        """Until so many calls came back."""
        while len(self.ended) < calls:
            self.scene.agenda.advance(self.scene.agenda.next_s())
        return self

    def _next(self, lane: Iterator[tuple[str, int]]) -> None:
        for model, tokens in lane:
            if self.grouped:
                self.swaps.came(model)
            self.gates[model].enter(partial(self._send, lane, model, tokens))
            return

    def _send(self, lane: Iterator[tuple[str, int]], model: str, tokens: int) -> None:
        sent_s, turns = self.now_s, list[Turn]()

        def back() -> None:
            self._back(lane, sent_s, turns[0])

        def started() -> None:
            self.scene.agenda.at(self.now_s, lambda: turns[0].mark(tokens, ended))

        def ended() -> None:
            self.scene.agenda.at(self.now_s + TRAVEL_S, back)

        turns.append(self.scene.server.begin(Call(model=model, reply_tokens=tokens), started=started))

    def _back(self, lane: Iterator[tuple[str, int]], sent_s: float, turn: Turn) -> None:
        model = turn.call.model
        usage = Usage(
            load_s=turn.load_s, prefill_s=turn.prefill_s, decode_s=turn.decode_s, total_s=turn.total_s
        )
        self.ended.append((self.now_s, model))
        self.gates[model].leave()
        if self.grouped:
            self.swaps.left(model, sent_s, self.now_s, usage)
        self.scene.agenda.at(self.now_s + TRAVEL_S, partial(self._next, lane))


def steps(
    number: int, *, judge: bool = False, rule_share: float = 0.0, sigma: float = 0.5
) -> Iterator[tuple[str, int]]:
    """A lane's calls: `mutator`, then `target`, and so on.

    Args:
        number: the lane's number; each draws its own lengths.
        judge: whether `judge` is asked after each answer.
        rule_share: the share of steps that mutate by rule, without a call.
        sigma: of the log of a reply's length, whose median is 50 tokens.
    """
    chance = random.Random(number)
    while True:
        if chance.random() >= rule_share:
            yield "mutator", _length(chance, 50, sigma)
        yield "target", _length(chance, 50, sigma)
        if judge:
            yield "judge", _length(chance, 5, sigma)


def only(model: str, number: int) -> Iterator[tuple[str, int]]:
    """The calls of a lane that asks one model only."""
    chance = random.Random(number)
    while True:
        yield model, _length(chance, 50, 0.5)


def _length(chance: random.Random, median: int, sigma: float) -> int:
    return max(1, round(median * chance.lognormvariate(0, sigma)))
