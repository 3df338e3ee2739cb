"""How near the limit on calls in flight that `auto` finds comes to the best fixed one.

python -m benchmarks.limits

On simulated servers whose service takes 200 ms on average (lognormal, sigma 1.0), kept under load by more
lanes than any limit admits. Throughput is the server's own figure: the mean number of busy slots, each of
which writes 250 tokens a second.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from statistics import mean, median
from typing import Any
from urllib.parse import urlsplit

from benchmarks.commands import LOGNORMAL
from benchmarks.reporting import Check, Section, at_least, at_most, run
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call, Usage
from simulator.process import EmbeddedServer
from simulator.settings import Settings

MODEL = "sim-target"
SLOTS = (1, 4, 8, 32)
CHANGES = (8, 2, 8)
"""Slots of the server that is started again with others."""
WARM_UP_S = 3.0
_QUIET = lambda _line: None  # noqa: E731 - lines on the server's starts


def sections(*, quick: bool) -> Iterator[Section]:
    """Fixed limits beside the one that is found, and a server that comes back with other slots."""
    slots, seconds = ((4,), 1.0) if quick else (SLOTS, 5.0)
    yield time_limits(slots, seconds)
    yield time_changes(2 if quick else 10)


def time_limits(slots: Sequence[int], seconds: float) -> Section:
    """The limit that is found, beside fixed ones."""
    rows = [row for number in slots for row in compare_limits(number, seconds)]
    return Section(
        title="The limit on calls in flight",
        about=(
            "More lanes than any limit admits, on servers whose number of slots is not known; `auto` "
            "measures it from the replies. Busy slots are the server's figure; the wait is the median of a "
            f"call's wait for a slot, in mean service times. {seconds:g} s a row."
        ),
        rows=rows,
        checks=[check for row in rows if row["limit"] == "auto" for check in _limit_checks(row)],
    )


def _limit_checks(row: dict[str, Any]) -> list[Check]:
    slots, found = row["slots"], row["slots found"]
    return [
        at_least(
            f"`auto` on {slots} slots, of the best fixed limit", 0.97, row["of the best fixed one"]
        ),
        at_most(f"`auto` on {slots} slots, slots told wrongly", 0, abs(slots - (found or 0))),
    ]


def compare_limits(slots: int, seconds: float) -> list[dict[str, Any]]:
    """A row a limit, `auto` last."""
    fixed = sorted({max(1, slots // 2), slots, slots + 2, 2 * slots})
    with EmbeddedServer(Settings(slots=slots, reply_tokens=LOGNORMAL)) as server:
        rows = [_measure(server, limit, seconds) for limit in (*fixed, None)]
    best = max(row["busy slots"] for row in rows[:-1])
    for row in rows:
        row["of the best fixed one"] = round(row["busy slots"] / best, 3)
    return rows


def time_changes(seconds: int) -> Section:
    """A server that is started again with other slots under load; so many seconds with each number."""
    rows: list[dict[str, Any]] = []
    server = EmbeddedServer(Settings(slots=CHANGES[0], reply_tokens=LOGNORMAL))
    try:
        with under_load(server, None, 4 * max(CHANGES)) as (dispatcher, _):
            for slots in CHANGES:
                if slots != server.settings.slots:
                    server.kill()
                    port = urlsplit(server.host).port or 0
                    server = EmbeddedServer(replace(server.settings, slots=slots, port=port))
                server.reset_stats()
                for second in range(1, seconds + 1):
                    time.sleep(1.0)
                    busy = _busy(server.reset_stats())
                    found, limit = _found(dispatcher)
                    rows.append(
                        {
                            "slots": slots,
                            "second": second,
                            "busy slots": busy,
                            "slots found": found,
                            "limit": limit,
                        }
                    )
    finally:
        server.stop()
    cut, back = rows[seconds : 2 * seconds], rows[2 * seconds :]
    settled = [row["second"] for row in cut if row["slots found"] == CHANGES[1]]
    busy_again = [row["second"] for row in back if row["busy slots"] >= 0.95 * row["slots"]]
    return Section(
        title="Slots that change",
        about=(
            "Under `auto` a server of 8 slots is killed and started again at the same address with 2, and "
            "then with its 8. A row is a second, counted from when the server listens again."
        ),
        rows=rows,
        checks=[
            at_most("seconds until 2 slots are found", 10, min(settled, default=99)),
            at_most("seconds until 8 slots are busy again", 10, min(busy_again, default=99)),
        ],
    )


@contextmanager
def under_load(
    server: EmbeddedServer, limit: int | None, lanes: int
) -> Iterator[tuple[Dispatcher, list[Usage]]]:
    """A dispatcher through which lanes send one call after another, warmed up; what their replies took."""
    numbers, over = count(), threading.Event()
    usages: list[Usage] = []
    with Dispatcher(
        [server.host], max_in_flight=limit, memory_bytes=0, report=_QUIET
    ) as dispatcher:

        def lane() -> None:
            while not over.is_set():
                call = Call(
                    model=MODEL, prompt=f"question {next(numbers)}", options={"temperature": 0}
                )
                if usage := dispatcher.generate(call).usage:
                    usages.append(usage)

        threads = [threading.Thread(target=lane) for _ in range(lanes)]
        for thread in threads:
            thread.start()
        time.sleep(WARM_UP_S)
        try:
            yield dispatcher, usages
        finally:
            over.set()
            dispatcher.cancel()  # what waits for a place in flight need not have it any more
            for thread in threads:
                thread.join()


def _measure(server: EmbeddedServer, limit: int | None, seconds: float) -> dict[str, Any]:
    """One row: a server under load within a limit."""
    slots = server.settings.slots
    with under_load(server, limit, 2 * slots + 8) as (dispatcher, all_usages):
        server.reset_stats()
        before = len(all_usages)
        time.sleep(seconds)
        stats = server.stats()
        while len(all_usages) == before:  # one long reply may fill a short window
            time.sleep(0.05)
            stats = server.stats()
        usages = all_usages[before:]
        slots_found, limit_at_end = _found(dispatcher)
    service_s = mean(usage.prefill_s + usage.decode_s for usage in usages)
    return {
        "slots": slots,
        "limit": limit or "auto",
        "busy slots": _busy(stats),
        "of the best fixed one": None,  # known when all limits were measured
        "wait": round(median(usage.queue_s for usage in usages) / service_s, 3),
        "slots found": slots_found,
        "limit at the end": limit_at_end,
    }


def _found(dispatcher: Dispatcher) -> tuple[float | None, float]:
    """The slots that the dispatcher found on its one server, and the limit that it sets."""
    (capacity,) = dispatcher.servers.capacities().values()
    return capacity.slots, capacity.limit


def _busy(stats: dict[str, Any]) -> float:
    return round(float(stats["busy_slot_s"]) / float(stats["window_s"]), 3)


if __name__ == "__main__":
    sys.exit(run("limits", "performance.md"))
