"""How near the limit that is found comes to the best fixed one: `python -m benchmarks.limits [FILE.json]`.

On simulated servers whose service takes 200 ms on average (lognormal, sigma 1.0), kept under load by more
lanes than any limit admits. Throughput is the server's own figure: the mean number of busy slots, each of
which writes 250 tokens a second.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import mean, median
from typing import Any

from ollama_utils.capacity import CapacityEstimate
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.limits import MaxInFlight
from ollama_utils.types import Call, Usage
from simulator.process import EmbeddedServer
from simulator.settings import Settings

MODEL = "sim-target"
REPLY_TOKENS = "lognormal:mean=50,sigma=1.0"
SLOTS = (1, 4, 8, 32)
WARM_UP_S = 3.0


class Load:
    """Lanes that send one call after another, and what came of them."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.usages: list[Usage] = []
        self._dispatcher = dispatcher

    @property
    def found(self) -> CapacityEstimate:
        """What is known of the server."""
        return next(iter(self._dispatcher.capacities().values()))


@contextmanager
def load(server: EmbeddedServer, limit: MaxInFlight, lanes: int) -> Iterator[Load]:
    """Keep a server under load, beyond its warm-up."""
    numbers, over = count(), threading.Event()
    with Dispatcher([server.host], max_in_flight=limit, cache_size=0) as dispatcher:
        made = Load(dispatcher)

        def lane() -> None:
            while not over.is_set():
                call = Call(model=MODEL, prompt=f"question {next(numbers)}", options={"temperature": 0})
                if usage := dispatcher.generate(call).usage:
                    made.usages.append(usage)

        threads = [threading.Thread(target=lane) for _ in range(lanes)]
        for thread in threads:
            thread.start()
        time.sleep(WARM_UP_S)
        try:
            yield made
        finally:
            over.set()
            for thread in threads:
                thread.join()


def compare_limits(slots: Sequence[int] = SLOTS, seconds: float = 10.0) -> list[dict[str, Any]]:
    """For each number of slots a row a limit, `auto` last; `relative` is to the best fixed one."""
    rows = []
    for number in slots:
        with EmbeddedServer(Settings(slots=number, reply_tokens=REPLY_TOKENS)) as server:
            limits: list[MaxInFlight] = sorted({max(1, number // 2), number, number + 2, 2 * number})
            here = [_measure(server, limit, seconds) for limit in [*limits, "auto"]]
        best = max(row["busy_slots"] for row in here[:-1])
        rows += [{**row, "relative": round(row["busy_slots"] / best, 3)} for row in here]
    return rows


def follow_slots(course: Sequence[int] = (8, 2, 8), seconds: int = 10) -> list[dict[str, Any]]:
    """A row for each second in which the slots stay, and then move; `relative` is to all slots busy."""
    rows = []
    with (
        EmbeddedServer(Settings(slots=course[0], reply_tokens=REPLY_TOKENS)) as server,
        load(server, "auto", 4 * max(course)) as made,
    ):
        for slots in course:
            server.set_slots(slots)
            server.reset_stats()
            for second in range(1, seconds + 1):
                time.sleep(1.0)
                busy = _busy(server.reset_stats())
                found = {"limit": made.found.limit, "slots_found": made.found.slots}
                row = {"slots": slots, "second": second, "busy_slots": busy, **found}
                rows.append({**row, "relative": round(busy / slots, 3), "simulated": True})
    return rows


def _measure(server: EmbeddedServer, limit: MaxInFlight, seconds: float) -> dict[str, Any]:
    """One row: a server under load within a limit."""
    slots = server.settings.slots
    with load(server, limit, 2 * slots + 8) as made:
        server.reset_stats()
        before = len(made.usages)
        time.sleep(seconds)
        stats, usages, found = server.stats(), made.usages[before:], made.found
    service_s = mean(usage.prefill_s + usage.decode_s for usage in usages)
    return {
        "slots": slots,
        "limit": limit,
        "busy_slots": _busy(stats),
        "calls_per_s": round(len(usages) / stats["window_s"], 2),
        "median_wait_in_services": round(median(usage.queue_s for usage in usages) / service_s, 3),
        "limit_at_end": found.limit,
        "slots_found": found.slots,
        "simulated": True,
    }


def _busy(stats: dict[str, Any]) -> float:
    return round(float(stats["busy_slot_s"]) / float(stats["window_s"]), 3)


def main(arguments: Sequence[str]) -> None:
    """Measure, and write the rows to stdout or a file."""
    rows = {"limits": compare_limits(), "course": follow_slots()}
    text = json.dumps(rows, indent=2) + "\n"
    if arguments:
        Path(arguments[0]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
