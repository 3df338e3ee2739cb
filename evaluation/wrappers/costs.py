"""What a policy's steps cost, and the way to step it that follows."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Literal

Pick = Literal["serial", "thread", "process"]

WAIT_S = 0.005
"""A policy that waits as long a step, and twice as long as it computes, steps on threads."""
HEAVY_S = 0.005
"""One that computes as long a step goes to a process; a step there costs under a millisecond more."""
_SCHEDULE = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one step took."""

    wait_s: float
    """Seconds in which it neither computed nor waited for a CPU."""
    cpu_s: float
    """CPU time of the thread that it ran on."""


class Stopwatch:
    """Runs from when it is made, on the thread that makes it."""

    def __init__(self) -> None:
        self._began_s = self._now_s()

    def cost(self) -> Cost:
        """What was spent so far."""
        wall_s, cpu_s, queued_s = (
            now - began for now, began in zip(self._now_s(), self._began_s, strict=True)
        )
        return Cost(wait_s=wall_s - cpu_s - queued_s, cpu_s=cpu_s)

    @staticmethod
    def _now_s() -> tuple[float, float, float]:
        return time.perf_counter(), time.thread_time(), _queued_s()


def pick_way(costs: Sequence[Cost], *, jobs: int, cpus: int) -> tuple[Pick, str]:
    """The way that fits a policy whose steps cost so much, and why.

    The mean tells of waiting, where most steps may find their answer known; the median of computing, where
    the first may import something.

    Args:
        costs: of the first steps.
        jobs: how many steps may be under way at once.
        cpus: how many CPUs there are.
    """
    cpu_s = median(cost.cpu_s for cost in costs)
    wait_s = mean(cost.wait_s for cost in costs)
    a_step = f"{max(wait_s, 0) * 1000:.1f} ms of waiting and {cpu_s * 1000:.1f} ms of CPU a step"
    if jobs == 1:
        return "serial", f"there is one job: {a_step}"
    if wait_s >= max(WAIT_S, 2 * cpu_s):
        return "thread", f"it waits: {a_step}"
    if cpu_s < HEAVY_S:
        return "serial", f"it is light: {a_step}"
    if cpus == 1:
        return "serial", f"it computes, but there is one CPU: {a_step}"
    return "process", f"it computes: {a_step}"


def count_cpus() -> int:
    """The CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _queued_s() -> float:
    """Seconds that this thread was ready to run and waited for a CPU; 0 where the system does not tell."""
    try:
        return int(_SCHEDULE.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
