"""What the server saw: the numbers behind `GET /simulator/stats`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Clock = Callable[[], float]
"""Seconds from a fixed moment, never going back."""


@dataclass(eq=False, slots=True)
class SlotUse:
    """One slot, in use from `start_s` on."""

    model: str
    start_s: float


class Counters:
    """Counts since the start, or since the last `reset`; whoever sees something adds to them.

    Args:
        clock: the server's clock in seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._born_s = clock()
        self._uses: set[SlotUse] = set()
        self.in_flight = 0
        """Requests to a model's endpoint that are not answered yet."""
        self.reset()

    def reset(self) -> None:
        """Zero every count; calls under way count from now on."""
        self._since_s = self._clock()
        self._busy_s = defaultdict[str, float](float)
        self._most_in_flight = self.in_flight
        self._wait_s = self._load_wait_s = 0.0
        self.calls = Counter[str]()
        """Requests that named a model that is here, by the model."""
        self.faults = Counter[str]()
        """Calls that a fault struck, by its kind."""
        self.failed = 0
        """Requests that got an error or a fault, or nothing because their client left."""
        self.disconnected = 0
        """Clients that left before their answer."""
        self.prompt_tokens = self.completion_tokens = 0
        """Tokens of complete replies."""
        self.decode_tokens = 0
        self.loads = self.swaps = 0
        self.unrecognised_instructions = 0

    def arrived(self) -> None:
        """A request to a model's endpoint came in."""
        self.in_flight += 1
        self._most_in_flight = max(self._most_in_flight, self.in_flight)

    def slot_taken(self, use: SlotUse, *, load_wait_s: float, slot_wait_s: float) -> None:
        """A slot was taken after a wait for the model and one for the slot."""
        self._uses.add(use)
        self._load_wait_s += load_wait_s
        self._wait_s += slot_wait_s

    def slot_freed(self, use: SlotUse, end_s: float, decoded: int) -> None:
        """A slot is free again as from `end_s`, after so many tokens were written in it."""
        self._uses.discard(use)
        self._busy_s[use.model] += self._counted_s(use, end_s)
        self.decode_tokens += decoded

    def busy_slots(self, model: str) -> int:
        """How many slots of a model are in use now."""
        return sum(use.model == model for use in self._uses)

    def snapshot(self) -> dict[str, Any]:
        """All counts, ready for JSON; durations in seconds."""
        now_s = self._clock()
        busy_s = self._busy_s.copy()
        for use in self._uses:
            busy_s[use.model] += self._counted_s(use, now_s)
        return {
            "uptime_s": now_s - self._born_s,
            "window_s": now_s - self._since_s,
            "calls": self.calls.total(),
            "calls_by_model": dict(self.calls),
            "failed": self.failed,
            "faults": dict(self.faults),
            "disconnected": self.disconnected,
            "in_flight": self.in_flight,
            "max_in_flight": self._most_in_flight,
            "busy_slot_s": sum(busy_s.values()),
            "busy_slot_s_by_model": dict(busy_s),
            "wait_s": self._wait_s,
            "load_wait_s": self._load_wait_s,
            "loads": self.loads,
            "swaps": self.swaps,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "decode_tokens": self.decode_tokens,
            "unrecognised_instructions": self.unrecognised_instructions,
        }

    def _counted_s(self, use: SlotUse, until_s: float) -> float:
        """The seconds of a use since the last reset."""
        return max(0.0, until_s - max(use.start_s, self._since_s))
