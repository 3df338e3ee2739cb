"""What the server saw: the numbers behind `GET /simulator/stats`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

Clock = Callable[[], float]
"""Seconds from a fixed moment, never going back."""


class SlotUse:
    """One slot, in use from `start_s` on."""

    __slots__ = ("model", "start_s")

    def __init__(self, model: str, start_s: float) -> None:
        self.model = model
        self.start_s = start_s


class Counters:
    """Counts since the start, or since the last `reset`.

    Args:
        clock: the server's clock in seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._born_s = clock()
        self._uses: set[SlotUse] = set()
        self.in_flight = 0
        self.reset()

    def reset(self) -> None:
        """Zero every count; calls under way count from now on."""
        self._since_s = self._clock()
        self._busy_s: dict[str, float] = {}
        self._calls: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._most_in_flight = self.in_flight
        self._failed = 0
        self._disconnected = 0
        self._wait_s = 0.0
        self._load_wait_s = 0.0
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self.decode_tokens = 0
        self.loads = 0
        self.swaps = 0
        self.unrecognised_instructions = 0

    def arrived(self) -> None:
        """A request to a model's endpoint came in."""
        self.in_flight += 1
        self._most_in_flight = max(self._most_in_flight, self.in_flight)

    def left(self, *, failed: bool) -> None:
        """A request was answered (or not): `failed` says that it got an error or a fault."""
        self.in_flight -= 1
        self._failed += failed

    def disconnected(self) -> None:
        """A client left before its answer."""
        self._disconnected += 1

    def called(self, model: str) -> None:
        """A request named a model that is here."""
        self._calls[model] += 1

    def faulted(self, kind: str) -> None:
        """A fault struck a call."""
        self._faults[kind] += 1

    def failed(self) -> None:
        """A call failed by a fault, whatever was sent."""
        self._failed += 1

    def slot_taken(self, use: SlotUse, *, load_wait_s: float, slot_wait_s: float) -> None:
        """A slot was taken after a wait for the model and one for the slot."""
        self._uses.add(use)
        self._load_wait_s += load_wait_s
        self._wait_s += slot_wait_s

    def slot_freed(self, use: SlotUse, end_s: float, decoded: int) -> None:
        """A slot is free again as from `end_s`, after so many tokens were written in it."""
        self._uses.discard(use)
        _add_part(self._busy_s, use, self._since_s, end_s)
        self.decode_tokens += decoded

    def answered(self, prompt_tokens: int, completion_tokens: int) -> None:
        """A reply was complete."""
        self._prompt_tokens += prompt_tokens
        self._completion_tokens += completion_tokens

    def snapshot(self) -> dict[str, Any]:
        """All counts, ready for JSON; durations in seconds."""
        now_s = self._clock()
        busy_s = self._busy_until(now_s)
        return {
            "uptime_s": now_s - self._born_s,
            "window_s": now_s - self._since_s,
            "calls": self._calls.total(),
            "calls_by_model": dict(self._calls),
            "failed": self._failed,
            "faults": dict(self._faults),
            "disconnected": self._disconnected,
            "in_flight": self.in_flight,
            "max_in_flight": self._most_in_flight,
            "busy_slot_s": sum(busy_s.values()),
            "busy_slot_s_by_model": busy_s,
            "wait_s": self._wait_s,
            "load_wait_s": self._load_wait_s,
            "loads": self.loads,
            "swaps": self.swaps,
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "decode_tokens": self.decode_tokens,
            "unrecognised_instructions": self.unrecognised_instructions,
        }

    def _busy_until(self, now_s: float) -> dict[str, float]:
        busy_s = dict(self._busy_s)
        for use in self._uses:
            _add_part(busy_s, use, self._since_s, now_s)
        return busy_s


def _add_part(busy_s: dict[str, float], use: SlotUse, since_s: float, until_s: float) -> None:
    """Add the part of a use that lies between two moments to its model's busy time."""
    part_s = max(0.0, until_s - max(use.start_s, since_s))
    busy_s[use.model] = busy_s.get(use.model, 0.0) + part_s
