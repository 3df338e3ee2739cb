"""What a command says of its calls as they are made: slots busy, calls a second, cache hits."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from ollama_utils.dispatcher import Dispatcher
from records.progress import digits, percent
from records.terminal import counted

ADVISED_SLOTS = 8
"""The most slots that are advised: each has a KV cache of its own."""
WINDOW_S = 20.0
"""All figures are of the last seconds, at least so many."""
SERVICES = 4
"""They are of more seconds where replies take long, so many times those of a mean reply: the time
that a reply held its slot is counted only when the reply is there."""
LOOKS_S = 0.5
"""Seconds between two looks at the accounts."""


class CallMonitor:
    """Watches the accounts of a command's calls; may be asked on any thread.

    Args:
        dispatchers: where the calls go; several are beside each other, at the same servers.
        lanes: environments that run side by side, over all servers; None: no news of slots.
        slots_setting: what gives a server more slots, up to their number.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        *dispatchers: Dispatcher,
        lanes: int | None = None,
        slots_setting: str = "OLLAMA_NUM_PARALLEL=",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dispatchers, self._clock = dispatchers, clock
        self._lanes, self._slots_setting = lanes, slots_setting
        self._lock = threading.Lock()
        self._seen = deque([(clock(), self._totals())])
        self._has_stated: set[tuple[str, str]] = set()
        self._has_advised = False

    def line(self) -> str:
        """`7.0 of 8 slots busy · 43 calls/s · 12 % cache hits`, of the last seconds.

        Slots are left out until a server has said how long a reply took there; some never do.
        """
        limits = self._dispatchers[0].servers.capacities().values()
        window_s = max([WINDOW_S, *(SERVICES * limit.service_s for limit in limits)])
        with self._lock:
            now_s, totals = self._clock(), self._totals()
            if now_s - self._seen[-1][0] >= LOOKS_S:
                self._seen.append((now_s, totals))
            while len(self._seen) > 2 and now_s - self._seen[1][0] > window_s:  # noqa: PLR2004 - ends
                self._seen.popleft()
            from_s, before = self._seen[0]
        wall_s = now_s - from_s
        spent = {key: totals[key] - before[key] for key in totals}
        per_s, busy = (spent[key] / wall_s if wall_s else 0.0 for key in ("calls", "busy_s"))
        hits = percent(spent["cache_hits"], spent["calls"] + spent["cache_hits"])
        slots = [limit.slots for limit in limits]
        most = sum(filter(None, slots))
        busy_slots = f"{busy:.1f} slots busy · "
        if slots and None not in slots:
            # A short while may hold the seconds of more slots than there are: see SERVICES.
            busy_slots = f"{min(busy, most):.1f} of {most} slots busy · "
        shown = busy_slots if totals["busy_s"] else ""
        return f"{shown}{digits(per_s)} calls/s · {hits} cache hits"

    def news(self) -> list[str]:
        """A line for each model of a server whose slots became known since the last time.

        The first that has fewer than it could have says how to give it more.
        """
        if self._lanes is None:
            return []
        lanes, lines = math.ceil(self._lanes / len(self._dispatchers[0].hosts)), []
        wanted = min(lanes, ADVISED_SLOTS)
        with self._lock:
            for (host, model), found in sorted(self._dispatchers[0].servers.capacities().items()):
                slots = found.slots
                if slots is None or (host, model) in self._has_stated:
                    continue
                self._has_stated.add((host, model))
                line = f"server {host} runs {counted(slots, 'slot')} for {model!r}"
                if slots >= wanted:
                    line += f", kept busy by {found.value} calls in flight"
                else:
                    line += f", and {lanes} lanes share {'it' if slots == 1 else 'them'}"
                    if not self._has_advised:
                        line += (
                            f": {self._slots_setting}{wanted} gives it more. What they bring "
                            "depends on the machine (much on most GPUs, little on a CPU): compare "
                            "two runs"
                        )
                        self._has_advised = True
                lines.append(line)
        return lines

    def _totals(self) -> dict[str, float]:
        totals = [dispatcher.totals() for dispatcher in self._dispatchers]
        return {key: sum(each[key] for each in totals) for key in totals[0]}
