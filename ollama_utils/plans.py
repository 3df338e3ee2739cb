"""The one runtime: plans side by side under one cap, the first plan first.

A plan is a generator. It yields batches of items that do not depend on each other, is sent what came of each
in order, and returns its result. It knows nothing of threads and of other plans, so what it returns depends
on its own items alone, never on what was done when. A thread that is free takes the next item of the plan
that was submitted first, and opens another plan only when no item waits. So no place idles while there is an
item, and few plans are half done at a time.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from ollama_utils.threads import POLL_S, start_thread

Item = TypeVar("Item")
Value = TypeVar("Value")
Result = TypeVar("Result")

Plan = Generator[Sequence[Item], Sequence[Value], Result]
"""Yields batches of items (an empty one is answered at once), is sent their values in order, returns.

Where an item raised, the first such error is thrown into the plan in place of the batch's values.
"""


class PlanRunner(AbstractContextManager["PlanRunner[Item, Value]"], Generic[Item, Value]):
    """Plays plans, which may be submitted one by one; at the end of `with` it stops.

    Args:
        do: does one item, on any thread.
        max_in_flight: the most items that are done at once.
        tick: called after each item, on any thread, one at a time; where it raises, the item's plan ends with
            that error at once.
        fail_fast: begin nothing more once a plan raised.

    Raises:
        ValueError: `max_in_flight` is less than 1.
    """

    def __init__(
        self,
        do: Callable[[Item], Value],
        max_in_flight: int,
        tick: Callable[[], None] | None = None,
        *,
        fail_fast: bool = False,
    ) -> None:
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight must be at least 1, got {max_in_flight!r}")
        self._do = do
        self._max_workers = max_in_flight
        self._tick = tick
        self._fail_fast = fail_fast
        self._numbers = itertools.count()
        self._ready: list[_Playing[Any, Any, Any]] = []
        """A heap: the plans that have something to do for whoever is free, the first one first."""
        self._unfinished: set[Future[Any]] = set()
        self._over: list[_Playing[Any, Any, Any]] = []
        """Those whose futures nobody has settled yet."""
        self._workers: set[object] = set()
        """A token each: Ctrl-C may come between the token and its thread, and no place is lost by that."""
        self._stopped = False
        # Plans may share state, so they go on one at a time. Reentrant: a plan may submit another one.
        self._lock = threading.RLock()
        self._no_workers = threading.Condition(self._lock)

    def submit(self, plan: Plan[Item, Value, Result]) -> Future[Result]:
        """Play a plan, which comes after those that are here already; its result is the future's.

        Once the future is cancelled, the plan begins nothing more. After `stop` it is cancelled at once.
        """
        playing: _Playing[Item, Value, Result] = _Playing(next(self._numbers), plan)
        with self._lock:
            if self._stopped:
                playing.future.cancel()
                return playing.future
            self._unfinished.add(playing.future)
            heapq.heappush(self._ready, playing)
            self._start_worker()
        return playing.future

    def stop(self) -> None:
        """Begin nothing more, and cancel what is not finished; waits for nothing."""
        with self._lock:
            self._stopped = True
            self._ready.clear()
            unfinished, self._unfinished = self._unfinished, set()
        for future in unfinished:
            future.cancel()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until no item is under way and none waits, or for so long; Ctrl-C interrupts the wait."""
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with self._no_workers:
            while self._workers and (left := until - time.monotonic()) > 0:
                self._no_workers.wait(min(left, POLL_S))

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _start_worker(self) -> None:
        """Another worker, where there is something to do and the cap allows it. The lock is held."""
        if self._ready and len(self._workers) < self._max_workers:
            token = object()
            self._workers.add(token)
            try:
                start_thread(partial(self._work, token))
            except BaseException:
                self._workers.discard(token)
                raise

    def _work(self, token: object) -> None:
        done: _Done | None = None
        while True:
            with self._lock:  # once an item: for what came of the last one, and for the next
                if done is not None:
                    self._put(done)
                taken = self._take(token)
                over, self._over = self._over, []
            for playing in over:
                playing.settle()
            if taken is None:
                return
            done = None  # it may be large, and the next item take long
            done = self._do_item(*taken)

    def _do_item(self, playing: _Playing[Any, Any, Any], index: int) -> _Done:
        try:
            return _Done(playing, index, self._do(playing.batch[index]), None)
        except BaseException as error:  # noqa: BLE001 - thrown into the plan
            return _Done(playing, index, None, error)

    def _take(self, token: object) -> tuple[_Playing[Any, Any, Any], int] | None:
        """The next item, as its plan and its place in the batch; None: this worker ends. The lock is held."""
        while self._ready:
            playing = self._ready[0]
            if playing.is_opened and not playing.future.cancelled():
                index = playing.take()
                if not playing.has_item:
                    heapq.heappop(self._ready)
                self._start_worker()
                return playing, index
            heapq.heappop(self._ready)
            self._go_on(playing)
        self._workers.discard(token)
        if not self._workers:
            self._no_workers.notify_all()
        return None

    def _put(self, done: _Done) -> None:
        """Keep what came of an item; the last one of a batch lets its plan go on. The lock is held."""
        playing = done.playing
        batch_is_done = playing.put(done.place, done.value, done.error)
        try:
            if self._tick:
                self._tick()
        except BaseException as raised:  # noqa: BLE001 - raised to whoever asks the future
            if playing.future in self._unfinished:
                playing.failure = raised
                self._ready = [other for other in self._ready if other is not playing]
                heapq.heapify(self._ready)
                self._finish(playing)
        if batch_is_done and playing.failure is None and not self._stopped:
            self._go_on(playing)

    def _go_on(self, playing: _Playing[Any, Any, Any]) -> None:
        """Let a plan yield its next batch, or end; one that was cancelled ends. The lock is held."""
        if not playing.future.cancelled():
            playing.go_on()
        if playing.has_item and not playing.future.cancelled():
            heapq.heappush(self._ready, playing)
        else:
            self._finish(playing)

    def _finish(self, playing: _Playing[Any, Any, Any]) -> None:
        """A plan is over: it is settled once the lock is free. The lock is held."""
        self._unfinished.discard(playing.future)
        self._over.append(playing)
        if playing.failure is not None and self._fail_fast:
            self._stopped = True
            self._ready.clear()


def play_plans(
    plans: Iterable[Plan[Item, Value, Result]],
    do: Callable[[Item], Value],
    max_in_flight: int,
    tick: Callable[[], None] | None = None,
) -> list[Result]:
    """What each plan returns, in the order of the plans; see `PlanRunner` for the arguments.

    Raises:
        ValueError: `max_in_flight` is less than 1.
        BaseException: whatever a plan raises, the first plan's first; nothing is begun after it, and what was
            under way has ended.
    """
    with PlanRunner(do, max_in_flight, tick, fail_fast=True) as runner:
        futures = [runner.submit(plan) for plan in plans]
        runner.join()
    # Where one failed, others were not finished: they are cancelled now.
    for future in futures:
        if not future.cancelled():
            future.result()
    return [future.result() for future in futures]


class _Playing(Generic[Item, Value, Result]):
    """A plan under way: its batch, how far that is, and at last its result."""

    def __init__(self, number: int, plan: Plan[Item, Value, Result]) -> None:
        self.number = number
        self.future: Future[Result] = Future()
        self.batch: Sequence[Item] = ()
        self.is_opened = False
        self._plan = plan
        self._values: list[Any] = []
        self._errors: dict[int, BaseException] = {}
        self._begun = 0
        self._ended = 0
        self._result: Any = None
        self.failure: BaseException | None = None

    def __lt__(self, other: _Playing[Any, Any, Any]) -> bool:
        return self.number < other.number

    @property
    def has_item(self) -> bool:
        """Whether there is an item that nobody has begun."""
        return self._begun < len(self.batch)

    def take(self) -> int:
        """The place of the next item."""
        self._begun += 1
        return self._begun - 1

    def put(self, index: int, value: object, error: BaseException | None) -> bool:
        """Keep what came of an item; returns whether the batch is done."""
        self._values[index] = value
        if error is not None:
            self._errors[index] = error
        self._ended += 1
        return self._ended == len(self.batch)

    def go_on(self) -> None:
        """Open the plan, or hand it what came of its batch: it has another batch then, or is over."""
        values, errors = self._values, self._errors
        self.batch, self._errors = (), {}
        try:
            if not self.is_opened:
                self.is_opened = True
                batch = next(self._plan)
            elif errors:
                batch = self._plan.throw(errors[min(errors)])
            else:
                batch = self._plan.send(values)
            while not batch:
                batch = self._plan.send([])
        except StopIteration as end:
            self._result = end.value
        except BaseException as error:  # noqa: BLE001 - raised to whoever asks the future
            self.failure = error
        else:
            self.batch, self._values = batch, [None] * len(batch)
            self._begun = self._ended = 0

    def settle(self) -> None:
        """Let those who wait for the plan know; outside the lock, for they may do anything."""
        if not self.future.set_running_or_notify_cancel():
            return
        if self.failure is not None:
            self.future.set_exception(self.failure)
        else:
            self.future.set_result(self._result)


class _Done(NamedTuple):
    """What came of an item."""

    playing: _Playing[Any, Any, Any]
    place: int
    value: object
    error: BaseException | None
