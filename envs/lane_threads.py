"""The threads under `envs/lanes.py`: one a lane, which does one job after another and posts what came of it.

One thread starts jobs and waits for what arrives; it may be interrupted anywhere. So results lie in a list
until the caller has dealt with them, and the bell only says that it is worth looking.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple

Job = Callable[[], Any]
LOOK_UP_S = 0.2
"""Whoever waits looks up as often: Python misses a Ctrl-C that comes just as a wait begins."""


class Arrival(NamedTuple):
    """What came of a lane's job."""

    lane: int
    value: Any
    error: BaseException | None


class LaneThreads:
    """One daemon thread a lane, started with the lane's first job."""

    def __init__(self) -> None:
        self.arrived: list[Arrival] = []
        """In the order of arrival; whoever takes one deletes it."""
        self._inboxes: dict[int, SimpleQueue[Job | None]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._bell = threading.Lock()
        self._bell.acquire()
        self._wanted = 1

    def start(self, lane: int, job: Job) -> None:
        """Have the lane's thread do a job."""
        if lane not in self._inboxes:
            inbox = SimpleQueue[Job | None]()
            arguments = (lane, inbox, self.post)
            thread = threading.Thread(target=_live, args=arguments, name=f"lane-{lane}", daemon=True)
            thread.start()
            self._threads[lane], self._inboxes[lane] = thread, inbox
        self._inboxes[lane].put(job)

    def post(self, arrival: Arrival) -> None:
        """Add what came of a job, on any thread."""
        self.arrived.append(arrival)
        # The waiting thread first says how many it wants and then counts, this one first adds and then
        # asks: one of the two sees that there are enough.
        if len(self.arrived) >= self._wanted:
            with suppress(RuntimeError):  # it has rung already
                self._bell.release()

    def wait(self, count: int, timeout_s: float | None = None) -> bool:
        """Wait until `count` results have arrived; returns whether they have."""
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        self._wanted = count
        while len(self.arrived) < count:
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._bell.acquire(timeout=min(left, LOOK_UP_S))
        return True

    def settle(self) -> None:
        """Wait until no lane has anything to do, and forget what came of it."""
        last = object()
        for inbox in self._inboxes.values():
            inbox.put(lambda: last)
        self._wanted = 1
        while sum(arrival.value is last for arrival in self.arrived) < len(self._inboxes):
            self._bell.acquire(timeout=LOOK_UP_S)
        self.arrived.clear()

    def finish(self, last_jobs: Sequence[Job], timeout_s: float | None) -> list[int]:
        """Have each lane do its last job, once it is done with the one under way, and end its thread.

        Args:
            last_jobs: one a lane; where a lane has no thread, this one does it.
            timeout_s: how long to wait for them all; None: as long as it takes.

        Returns:
            The lanes that were not done by then. They end when they are.
        """
        for lane, job in enumerate(last_jobs):
            if lane in self._inboxes:
                self._inboxes[lane].put(job)
                self._inboxes[lane].put(None)
            else:
                job()
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads.values():
            while thread.is_alive() and (left := until - time.monotonic()) > 0:
                thread.join(min(left, LOOK_UP_S))
        return [lane for lane, thread in self._threads.items() if thread.is_alive()]


class CallersThread(LaneThreads):
    """No thread at all: each job is done where it is started."""

    def start(self, lane: int, job: Job) -> None:
        """Do the job, now."""
        self.post(_attempt(lane, job))


def _live(lane: int, inbox: SimpleQueue[Job | None], post: Callable[[Arrival], None]) -> None:
    while (job := inbox.get()) is not None:
        post(_attempt(lane, job))
        del job  # it holds the environment, which must not live as long as an idle thread


def _attempt(lane: int, job: Job) -> Arrival:
    try:
        return Arrival(lane, job(), None)
    except BaseException as error:  # noqa: BLE001 - whatever a job raises belongs to whoever started it
        return Arrival(lane, None, error)
