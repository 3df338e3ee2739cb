"""A first-in, first-out semaphore in virtual time whose size can move while calls wait."""

from __future__ import annotations

from collections import OrderedDict

from ollama_utils.simulator.agenda import Action


class Slots:
    """The slots of one model; whoever waits is told when its turn comes.

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
