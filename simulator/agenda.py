"""Virtual time: a queue of actions, each at its own moment, and the slots that calls wait for in it.

Whoever holds the agenda says how far time has come. A server follows a clock with it, and a test runs through
an hour at once; what happens, and when, is the same, however late anybody looks.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]
"""What is done at a moment."""

_FEW = 64
"""Cancelled entries that are never worth a clean-up."""


class Entry:
    """An action's place in the agenda."""

    __slots__ = ("action",)

    def __init__(self, action: Action) -> None:
        self.action: Action | None = action


class Agenda:
    """A queue of actions by moment; equal moments run in the order in which they were entered.

    Args:
        now_s: the moment it begins at, in seconds.
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self._heap: list[tuple[float, int, Entry]] = []
        self._order = count()
        self._cancelled = 0

    def at(self, moment_s: float, action: Action) -> Entry:
        """Enter an action; a moment that is past means now."""
        entry = Entry(action)
        heapq.heappush(self._heap, (max(moment_s, self.now_s), next(self._order), entry))
        return entry

    def cancel(self, entry: Entry | None) -> None:
        """Take an action back; one that ran, was taken back before, or is None changes nothing."""
        if entry is None or entry.action is None:
            return
        entry.action = None
        self._cancelled += 1
        if self._cancelled > max(_FEW, len(self._heap) // 2):
            self._heap = [item for item in self._heap if item[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def next_s(self) -> float:
        """The moment of the next action; infinite without one."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else math.inf

    def advance(self, until_s: float) -> None:
        """Run all that is due up to and at a moment, also what these actions enter, and stop there."""
        while self.next_s() <= until_s:
            self.now_s, _, entry = heapq.heappop(self._heap)
            action, entry.action = entry.action, None
            if action is not None:
                action()
        self.now_s = max(self.now_s, until_s)


class Slots:
    """The slots of one model; first in, first out; their number can change while calls wait.

    Args:
        limit: how many can be held at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._waiting: OrderedDict[object, Action] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._waiting)

    def take(self, who: object, admitted: Action) -> None:
        """Get in line; `admitted` is called when a slot is held, at once if one is free."""
        self._waiting[who] = admitted
        self._admit()

    def give_up(self, who: object) -> None:
        """Leave the line."""
        self._waiting.pop(who, None)

    def give_back(self) -> None:
        """Pass a slot on to the next in line."""
        self._held -= 1
        self._admit()

    def resize(self, limit: int) -> None:
        """Let `limit` slots be held from now on; those that are held stay held."""
        self._limit = limit
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._held < self._limit:
            self._held += 1
            _, admitted = self._waiting.popitem(last=False)
            admitted()
