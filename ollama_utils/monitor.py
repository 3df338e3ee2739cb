"""What a command says of its calls as they are made: slots busy, calls a second, hits, what they cost."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from ollama_utils.capacity import CapacityEstimate
from ollama_utils.dispatcher import Dispatcher, account_totals
from ollama_utils.findings import Findings
from records.progress import digits, duration, percent

WINDOW_S = 20.0
"""What is told is of the last seconds, this many: a reply's seconds in its slot count when it comes."""
SERVICES = 4
"""... or of so many mean services, where these are longer."""
LOOKS_S = 0.5
"""Seconds between two looks at the accounts."""
FIRST_CALLS, FIRST_S = 16, 10.0
"""The pace is told after so many calls, and so many seconds: the first ones wait for the model to load."""


class CallMonitor:
    """Watches the accounts of a command's calls; may be asked on any thread.

    Args:
        dispatchers: where the calls go; several are beside each other, at the same servers.
        findings: what is found out about the servers; None: nothing is said of them.
        most_calls: completions that the command asks for at most, where that is known: how long those take
            that are left is said once. Those that came before, as in a run that is resumed, count.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        *dispatchers: Dispatcher,
        findings: Findings | None = None,
        most_calls: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dispatchers, self._findings = dispatchers, findings
        self._most_calls, self._clock = most_calls, clock
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, Mapping[str, float]]] = deque([(clock(), self._totals())])
        self._first: tuple[float, float] | None = None
        """When the first completion was seen that no log or cache held, and how many there were."""

    def line(self) -> str:
        """`7 of 8 slots busy · 43 calls/s · 12 % cache hits`, of the last seconds.

        Nothing is said of the slots before a server has told how long a reply took there; some never do.
        """
        with self._lock:
            to_s, now = self._clock(), self._totals()
            self._look(to_s, now)
            from_s, before = self._seen[0]
        wall_s = to_s - from_s
        spent = {key: now[key] - before[key] for key in now}
        per_s, busy = (spent[key] / wall_s if wall_s else 0.0 for key in ("calls", "busy_s"))
        hits = percent(spent["cache_hits"], spent["calls"] + spent["cache_hits"])
        slots = self._slots(busy) if now["busy_s"] else ""
        return " · ".join(filter(None, (slots, f"{digits(per_s)} calls/s", f"{hits} cache hits")))

    def news(self) -> list[str]:
        """What was found out of the servers, and how long the calls that are left take, each once."""
        lines = self._findings.news(self._capacities()) if self._findings else []
        with self._lock:
            if self._most_calls is not None and (pace := self._first_pace()):
                left, self._most_calls = self._most_calls - self._completions(), None
                if left > 0:
                    at, takes = digits(pace), duration(left / pace)
                    lines.append(
                        f"at the {at} calls/s of the first calls, at most {left:,} more take {takes}"
                    )
        return lines

    def _first_pace(self) -> float | None:
        """Completions a second since the first was seen, known ones left out, once that says something."""
        now_s, calls = self._clock(), self._completions() - self._totals()["cache_hits"]
        if self._first is None:
            self._first = (now_s, calls) if calls else None
            return None
        since_s, before = self._first
        is_enough = calls - before >= FIRST_CALLS and now_s - since_s >= FIRST_S
        return (calls - before) / (now_s - since_s) if is_enough else None

    def _look(self, now_s: float, totals: Mapping[str, float]) -> None:
        """Remember the accounts now and then, and forget those of long ago."""
        if now_s - self._seen[-1][0] >= LOOKS_S:
            self._seen.append((now_s, totals))
        services = [found.service_s for found in self._capacities().values()]
        window_s = max(WINDOW_S, SERVICES * max(services, default=0.0))
        while len(self._seen) > 2 and now_s - self._seen[1][0] > window_s:  # noqa: PLR2004 - the two ends
            self._seen.popleft()

    def _totals(self) -> dict[str, float]:
        totals = [account_totals(dispatcher) for dispatcher in self._dispatchers]
        return {key: sum(each[key] for each in totals) for key in totals[0]}

    def _completions(self) -> int:
        return sum(dispatcher.completions for dispatcher in self._dispatchers)

    def _capacities(self) -> dict[tuple[str, str], CapacityEstimate]:
        return self._dispatchers[0].capacities()

    def _slots(self, busy: float) -> str:
        slots = self._findings.slots_of(self._capacities()) if self._findings else None
        # A reply's seconds count when it comes: a short while may hold those of more slots than there are.
        return (
            f"{min(busy, slots):.1f} of {slots} slots busy" if slots else f"{busy:.1f} slots busy"
        )


def counted(most_calls: int) -> str:
    """`at most 12,400 calls`."""
    return f"at most {most_calls:,} {'call' if most_calls == 1 else 'calls'}"
