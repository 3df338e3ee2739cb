"""What a command says of its calls as they are made: slots busy, calls a second, cache hits."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.limits import Capacity
from records.progress import digits, duration, percent

ADVISED_SLOTS = 8
"""No more are advised: each slot has its own KV cache."""
WINDOW_S, SERVICES = 20.0, 4
"""Figures are of the last seconds, or of so many mean services where these take longer: the seconds
that a reply held its slot count when it arrives."""
LOOKS_S = 0.5
"""Seconds between two looks at the accounts."""
FIRST_CALLS, FIRST_S = 16, 10.0
"""The pace is stated after so many calls and seconds: the first ones wait for the model to load."""
_CHANGED = 2
"""Slots are stated again once they are more times more or fewer than they were."""


class CallMonitor:
    """Watches the accounts of a command's calls; may be asked on any thread.

    Args:
        dispatchers: where the calls go; several are beside each other, at the same servers.
        lanes: environments that run side by side, over all servers; None: no news of slots.
        slots_setting: what gives a server more slots, up to their number.
        most_calls: completions that the command asks for at most, where that is known: how long
            those that are left take is said once. Those of before, as in a resumed run, count.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        *dispatchers: Dispatcher,
        lanes: int | None = None,
        slots_setting: str = "OLLAMA_NUM_PARALLEL=",
        most_calls: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dispatchers, self._clock = dispatchers, clock
        self._lanes, self._slots_setting = lanes, slots_setting
        self._most_calls = most_calls
        self._lock = threading.Lock()
        self._seen = deque([(clock(), self._totals())])
        self._first: tuple[float, float] | None = None
        """When the first completion was seen that no log or cache held, and how many there were."""
        self._slots_stated: dict[tuple[str, str], int] = {}

    def line(self) -> str:
        """`7.0 of 8 slots busy · 43 calls/s · 12 % cache hits`, of the last seconds.

        Slots are left out until a server has said how long a reply took there; some never do.
        """
        with self._lock:
            now_s, totals = self._clock(), self._totals()
            self._remember(now_s, totals)
            from_s, before = self._seen[0]
        wall_s = now_s - from_s
        spent = {key: totals[key] - before[key] for key in totals}
        per_s, busy = (spent[key] / wall_s if wall_s else 0.0 for key in ("calls", "busy_s"))
        hits = percent(spent["cache_hits"], spent["calls"] + spent["cache_hits"])
        slots = self._slots_busy(busy) if totals["busy_s"] else ""
        return " · ".join(filter(None, (slots, f"{digits(per_s)} calls/s", f"{hits} cache hits")))

    def news(self) -> list[str]:
        """What became known since the last time: slots, and how long the calls left take."""
        with self._lock:
            return [*self._slots_news(), *self._pace_news()]

    def _slots_news(self) -> Iterator[str]:
        """A line for each model of a server whose slots are known now, or have changed."""
        if self._lanes is None:
            return
        lanes = math.ceil(self._lanes / len(self._dispatchers[0].hosts))
        wanted = min(lanes, ADVISED_SLOTS)
        for (host, model), found in sorted(self._capacities().items()):
            slots, stated = found.slots, self._slots_stated.get((host, model), 0)
            if slots is None or stated / _CHANGED <= slots <= stated * _CHANGED:
                continue
            self._slots_stated[host, model] = slots
            runs = f"server {host} runs {slots} {'slot' if slots == 1 else 'slots'} for {model!r}"
            if slots >= wanted:
                yield f"{runs}, kept busy by {found.limit} calls in flight"
            else:
                yield (
                    f"{runs}, and {lanes} lanes share {'it' if slots == 1 else 'them'}: "
                    f"{self._slots_setting}{wanted} gives it more. What they bring depends on the "
                    "machine (much on most GPUs, little on a CPU): compare two runs"
                )

    def _pace_news(self) -> Iterator[str]:
        """How long the calls take that are left, once the pace of the first ones is known."""
        if self._most_calls is None or not (pace := self._first_pace()):
            return
        left, self._most_calls = self._most_calls - self._completions(), None
        if left > 0:
            at, takes = digits(pace), duration(left / pace)
            yield f"at the {at} calls/s of the first calls, at most {left:,} more take {takes}"

    def _first_pace(self) -> float | None:
        """Completions a second since the first was seen, known ones left out; None: too few yet."""
        now_s, calls = self._clock(), self._completions() - self._totals()["cache_hits"]
        if self._first is None:
            self._first = (now_s, calls) if calls else None
            return None
        since_s, before = self._first
        is_enough = calls - before >= FIRST_CALLS and now_s - since_s >= FIRST_S
        return (calls - before) / (now_s - since_s) if is_enough else None

    def _remember(self, now_s: float, totals: Mapping[str, float]) -> None:
        """Keep the accounts now and then, and forget those of long ago."""
        if now_s - self._seen[-1][0] >= LOOKS_S:
            self._seen.append((now_s, totals))
        longest_s = max((found.service_s for found in self._capacities().values()), default=0.0)
        window_s = max(WINDOW_S, SERVICES * longest_s)
        while len(self._seen) > 2 and now_s - self._seen[1][0] > window_s:  # noqa: PLR2004 - ends
            self._seen.popleft()

    def _slots_busy(self, busy: float) -> str:
        slots = [found.slots for found in self._capacities().values()]
        if not slots or None in slots:
            return f"{busy:.1f} slots busy"
        # A short while may hold the seconds of more slots than there are: see WINDOW_S.
        most = sum(filter(None, slots))
        return f"{min(busy, most):.1f} of {most} slots busy"

    def _totals(self) -> Mapping[str, float]:
        totals = [dispatcher.totals() for dispatcher in self._dispatchers]
        return {key: sum(each[key] for each in totals) for key in totals[0]}

    def _completions(self) -> int:
        return sum(dispatcher.completions for dispatcher in self._dispatchers)

    def _capacities(self) -> Mapping[tuple[str, str], Capacity]:
        return self._dispatchers[0].servers.capacities()


def counted(most_calls: int) -> str:
    """`at most 12,400 calls`."""
    return f"at most {most_calls:,} {'call' if most_calls == 1 else 'calls'}"
