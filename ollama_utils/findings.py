"""Messages about the servers of a run: the slots they were found to have, and how they are given more."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ollama_utils.capacity import CapacityEstimate

ADVISED_SLOTS = 8
"""No more are advised: each slot has its own KV cache."""
STEADY = 3
_CHANGED = 2
"""Slots that are more times more or fewer than those reported last are reported anew."""


class Findings:
    """Reports what is found, once and when it changes.

    Args:
        lanes: environments that run side by side, of each server.
        setting: what gives a server more slots.
        apart_s: seconds between two looks that count: the estimate from a few short calls jumps about.
        slots: those that each model has, where that is known; then nothing is estimated.
    """

    def __init__(
        self,
        lanes: int,
        setting: str = "OLLAMA_NUM_PARALLEL=",
        *,
        apart_s: float = 0.0,
        slots: int | None = None,
    ) -> None:
        self._lanes = lanes
        self._setting = setting
        self._apart_s = apart_s
        self._slots = slots
        self._lock = threading.Lock()
        self._looked_s = -math.inf
        self._reported: dict[tuple[str, str], int] = {}
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}

    def news(self, found: Mapping[tuple[str, str], CapacityEstimate]) -> list[str]:
        """A line for each host and model whose slots have become known, or have changed, and stay so.

        To be called again and again, on any thread: a finding counts when it comes `STEADY` times in a row.
        """
        with self._lock:
            return list(self._news(found))

    def slots_of(self, found: Mapping[tuple[str, str], CapacityEstimate]) -> int | None:
        """The slots of all hosts and models that were called, together; None while one's are not known."""
        slots = [self._slots or each.slots for each in found.values()]
        return sum(filter(None, slots)) if slots and all(slots) else None

    def _news(self, found: Mapping[tuple[str, str], CapacityEstimate]) -> Iterator[str]:
        now_s = time.monotonic()
        if now_s < self._looked_s + self._apart_s:
            return
        self._looked_s = now_s
        for key, estimated in sorted(found.items()):
            known = estimated if self._slots is None else _told(estimated, self._slots)
            reported = self._reported.get(key, 0)
            if (
                known.slots
                and self._is_steady(key, known.slots)
                and not reported / _CHANGED <= known.slots <= reported * _CHANGED
            ):
                self._reported[key] = known.slots
                yield self._line(*key, known, known.slots)

    def _is_steady(self, key: tuple[str, str], slots: int) -> bool:
        """Whether as many were found the last times, too: a single reply may mislead."""
        before, times = self._seen.get(key, (slots, 0))
        self._seen[key] = slots, times + 1 if before == slots else 1
        return self._seen[key][1] >= STEADY

    def _line(self, host: str, model: str, known: CapacityEstimate, slots: int) -> str:
        runs = f"server {host} runs {_slots(known, slots)} for {model!r}"
        if slots >= min(self._lanes, ADVISED_SLOTS):
            return f"{runs}, kept busy by {known.limit} calls in flight"
        return (
            f"{runs}, and {self._lanes} lanes share {'it' if slots == 1 else 'them'}: "
            f"{self._setting}{min(self._lanes, ADVISED_SLOTS)} gives it more. "
            "What they bring depends on the machine (much on most GPUs, little on a CPU): compare two runs"
        )


def _told(estimated: CapacityEstimate, slots: int) -> CapacityEstimate:
    """The estimate with slots that are known."""
    return replace(estimated, slots=slots, least_slots=slots, most_slots=slots)


def _slots(known: CapacityEstimate, slots: int) -> str:
    """The slots as they were measured."""
    least, most = known.least_slots or slots, known.most_slots or slots
    told = f"{slots} {'slot' if slots == 1 else 'slots'}"
    return told if least == most else f"{told} ({least} to {most})"
