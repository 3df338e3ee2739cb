"""What several servers are worth together: one that is slow, one that hangs, several of different sizes.

python -m benchmarks.several_servers

Simulated servers of 8 slots whose replies take about a second (lognormal), kept under load by more callers
than they have slots. Throughput is calls answered a second, in a window after a warm-up; what a server is
worth alone is measured beside the others, each with callers of its own.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

from benchmarks.reporting import Section, at_least, at_most, run
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from simulator.settings import Settings

MODEL = "sim-target"
REPLY_TOKENS = "lognormal:mean=250,sigma=0.5"
SLOTS = 8
SLOWER = 10.0
SIZES = (2, 4, 8, 16)
_SPARE = 2
"""Callers a slot."""
_WARM_UP_S = 20.0
_MOST_S = 60.0
_QUIET = lambda _line: None  # noqa: E731 - lines on outages, which the tables tell


def sections(*, quick: bool) -> Iterator[Section]:
    """A slow host, a host that hangs and comes back, hosts of several sizes."""
    seconds = 5.0 if quick else 60.0
    yield time_slow_host(seconds)
    yield time_hung_host(seconds / 2)
    yield time_sizes(seconds)


class Callers:
    """Threads that send one call after another, and when each was answered."""

    def __init__(self, hosts: Sequence[str], number: int) -> None:
        self.dispatcher = Dispatcher(hosts, memory_bytes=0, report=_QUIET)
        self.answered_s: list[float] = []
        self.failed = 0
        self._numbers = count()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call, daemon=True) for _ in range(number)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; calls under way are not waited for."""
        self._over.set()
        self.dispatcher.close()

    def rate(self, from_s: float, until_s: float) -> float:
        """Calls answered a second between two moments."""
        return sum(from_s <= at_s < until_s for at_s in list(self.answered_s)) / (until_s - from_s)

    def _call(self) -> None:
        while not self._over.is_set():
            call = Call(
                model=MODEL, prompt=f"question {next(self._numbers)}", options={"temperature": 0}
            )
            if self.dispatcher.generate(call).error is None:
                self.answered_s.append(time.monotonic())
            elif not self._over.is_set():
                self.failed += 1


@contextmanager
def servers(slots: Sequence[int], *, last_slower: float = 1.0) -> Iterator[list[EmbeddedServer]]:
    """Simulators with so many slots each, the last one so many times slower."""
    scales = [*[1.0] * (len(slots) - 1), last_slower]
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                EmbeddedServer(Settings(slots=each, reply_tokens=REPLY_TOKENS, time_scale=scale))
            )
            for each, scale in zip(slots, scales, strict=True)
        ]


@contextmanager
def calling(groups: Sequence[Sequence[EmbeddedServer]]) -> Iterator[list[Callers]]:
    """Within `with`: each group of servers has callers of its own."""
    callers = [
        Callers(
            [server.host for server in group],
            _SPARE * sum(server.settings.slots for server in group),
        )
        for group in groups
    ]
    try:
        for each in callers:
            each.start()
        yield callers
    finally:
        for each in callers:
            each.stop()


def rates(groups: Sequence[Sequence[EmbeddedServer]], seconds: float) -> list[float]:
    """Each group's calls a second, all groups side by side, after a warm-up."""
    with calling(groups) as callers:
        time.sleep(_WARM_UP_S)
        began_s = time.monotonic()
        time.sleep(seconds)
        return [each.rate(began_s, began_s + seconds) for each in callers]


def time_slow_host(seconds: float) -> Section:
    """Three hosts, one of them ten times slower."""
    with servers([SLOTS] * 3, last_slower=SLOWER) as hosts:
        alone = rates([[host] for host in hosts], seconds)
        (together,) = rates([hosts], seconds)
    share = together / sum(alone)
    names = ("first", "second", f"third, {SLOWER:g} times slower")
    rows = [
        {"host": name, "calls/s": round(rate, 2)} for name, rate in zip(names, alone, strict=True)
    ]
    rows.append(
        {"host": "all three", "calls/s": round(together, 2), "of their sum": round(share, 3)}
    )
    return Section(
        title="Three hosts, one of them slow",
        about=f"Simulated, {SLOTS} slots each; windows of {seconds:g} s.",
        rows=rows,
        checks=[at_least("together, of what each does alone", 0.95, share)],
    )


def time_hung_host(seconds: float) -> Section:
    """Three hosts, one of which hangs and comes back."""
    with servers([SLOTS] * 3) as hosts:
        (two,) = rates([hosts[:2]], seconds)
        with calling([hosts]) as (callers,):
            time.sleep(_WARM_UP_S)
            began_s = time.monotonic()
            hosts[2].set_outage("hang", at="all")
            time.sleep(10.0 + seconds)
            after = callers.rate(began_s + 10.0, began_s + 10.0 + seconds)
            before_s = began_s
            three = callers.rate(before_s - 10.0, before_s)
            served = hosts[2].stats()["calls"]
            hosts[2].end_outage()
            back_s = _seconds_until(lambda: hosts[2].stats()["calls"] >= served + 2 * SLOTS)
            time.sleep(15.0)
            again = callers.rate(time.monotonic() - 10.0, time.monotonic())
            failed = callers.failed
    rates_by_time = {
        "two hosts alone": two,
        "three": three,
        "from 10 s after the third hangs": after,
        "from 15 s after it is back": again,
    }
    rows = [
        {"when": when, "calls/s": round(rate, 2), "of two": round(rate / two, 3)}
        for when, rate in rates_by_time.items()
    ]
    return Section(
        title="A host that hangs and comes back",
        about=f"Simulated, {SLOTS} slots each; windows of {seconds:g} s. Calls that failed: {failed}.",
        rows=rows,
        checks=[
            at_least("10 s after one of three hangs, of two alone", 0.9, after / two),
            at_most("seconds until it is used again", 15.0, back_s),
            at_most("calls that failed", 0, failed),
        ],
    )


def time_sizes(seconds: float) -> Section:
    """Four hosts of different sizes beside one that has all their slots."""
    with servers([sum(SIZES), *SIZES]) as (one, *several):
        whole, parts = rates([[one], several], seconds)
    rows = [
        {"servers": f"one of {sum(SIZES)} slots", "calls/s": round(whole, 2)},
        {"servers": f"of {', '.join(map(str, SIZES))} slots", "calls/s": round(parts, 2)},
    ]
    return Section(
        title="Hosts of several sizes",
        about=f"Simulated; nothing but the addresses is given; a window of {seconds:g} s, side by side.",
        rows=rows,
        checks=[at_least("four hosts, of one with as many slots", 0.93, parts / whole)],
    )


def _seconds_until(is_so: Any) -> float:  # noqa: ANN401 - a function without arguments
    began_s = time.monotonic()
    while not is_so() and time.monotonic() - began_s < _MOST_S:
        time.sleep(0.2)
    return round(time.monotonic() - began_s, 1)


if __name__ == "__main__":
    sys.exit(run("several_servers", "performance.md"))
