"""Many calls at once: order kept, every result saved, one pool of threads for the whole process.

The calling thread works too. So a function that is itself run by the pool may use the pool: whoever
waits has first done all the work that nobody else had begun.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_MAX_THREADS = 1024
"""Started as they are needed: more than a server is ever asked at once."""
_log = logging.getLogger(__name__)


class ParallelError(Exception):
    """Some items failed; the results of the others are here.

    Args:
        results: one result an item, in order; None where it failed.
        failures: what each failed item raised, by its index.
    """

    def __init__(self, results: Sequence[Any], failures: Mapping[int, BaseException]) -> None:
        self.results = list(results)
        self.failures = dict(failures)
        first = min(self.failures)
        super().__init__(
            f"{len(self.failures)} of {len(self.results)} items failed; "
            f"the first, item {first}: {self.failures[first]!r}"
        )


def map_parallel(fn: Callable[[T], R], items: Iterable[T], max_workers: int | None = None) -> list[R]:
    """`[fn(item) for item in items]`, many at once.

    Args:
        fn: called once an item, on any thread.
        items: what it is called with.
        max_workers: the most calls at once, this thread's included; None: as many as there are items
            (a dispatcher's gate then decides what is in flight).

    Returns:
        The results in the order of the items; a result may be None.

    Raises:
        ParallelError: some items raised; the others were done all the same.
        ValueError: `max_workers` is less than 1.
    """
    if max_workers is not None and max_workers < 1:
        raise ValueError(f"max_workers must be at least 1, got {max_workers!r}")
    items = list(items)
    if len(items) == 1:  # most calls of a lane
        return [_alone(fn, items[0])]
    batch = _Batch(fn, items)
    helpers = min(batch.size, max_workers or batch.size) - 1
    for _ in range(helpers):
        _threads(os.getpid()).start(batch.help)
    return batch.finish()


def run_parallel(
    fn: Callable[..., R], items: Iterable[Sequence[Any]], max_workers: int | None = None
) -> list[R]:
    """`[fn(*item) for item in items]`, many at once: see `map_parallel`."""
    return map_parallel(lambda item: fn(*item), items, max_workers)


def score_batch_parallel(
    score_fn: Callable[..., float], items: Iterable[Sequence[Any]], max_workers: int | None = None
) -> list[float]:
    """The scores of many replies at once.

    Args:
        score_fn: called as `score_fn(system_prompt, query, response)`.
        items: triples `(system_prompt, query, response)`.
        max_workers: as for `map_parallel`.

    Returns:
        The scores in the order of the items; NaN, and a warning in the log, where scoring failed.
    """
    try:
        return run_parallel(lambda *item: float(score_fn(*item)), items, max_workers)
    except ParallelError as error:
        for index, failure in sorted(error.failures.items()):
            _log.warning("item %d has no score: %r", index, failure)
        return [math.nan if i in error.failures else score for i, score in enumerate(error.results)]


def _alone(fn: Callable[[T], R], item: T) -> R:
    """One item's result, with the errors of a batch of one."""
    try:
        return fn(item)
    except Exception as error:
        raise ParallelError([None], {0: error}) from error


class _Batch(Generic[T, R]):
    """Items that several threads take one after another."""

    def __init__(self, fn: Callable[[T], R], items: list[T]) -> None:
        self._fn = fn
        self._items = items
        self._results: list[R | None] = [None] * len(items)
        self._failures: dict[int, BaseException] = {}
        self._changed = threading.Condition()
        self._begun = 0
        self._ended = 0

    @property
    def size(self) -> int:
        return len(self._items)

    def help(self) -> None:
        """Work until no item is left; nothing is raised."""
        while (index := self._take()) is not None:
            self._do(index)

    def finish(self) -> list[R]:
        """Work, wait for the others, and give the results."""
        try:
            while (index := self._take()) is not None:
                self._do(index)
                self._heed_interrupt(index)
            with self._changed:
                self._changed.wait_for(lambda: self._ended == self.size)
        except BaseException:
            self._drop_the_rest()
            raise
        if self._failures:
            raise ParallelError(self._results, self._failures) from self._failures[min(self._failures)]
        return self._results  # type: ignore[return-value] # every item has its result now

    def _take(self) -> int | None:
        with self._changed:
            if self._begun == self.size:
                return None
            self._begun += 1
            return self._begun - 1

    def _do(self, index: int) -> None:
        try:
            self._results[index] = self._fn(self._items[index])
        except BaseException as error:  # noqa: BLE001 - whatever an item raises belongs to that item
            self._failures[index] = error
        with self._changed:
            self._ended += 1
            if self._ended == self.size:
                self._changed.notify_all()

    def _heed_interrupt(self, index: int) -> None:
        """Pass on what is no mere failure of an item: Ctrl-C, an exit."""
        failure = self._failures.get(index)
        if failure is not None and not isinstance(failure, Exception):
            raise failure

    def _drop_the_rest(self) -> None:
        """Begin no further item: the caller was interrupted."""
        with self._changed:
            self._begun = self.size


class Threads:
    """Threads that are started when there is work, stay, and never keep the process alive.

    Args:
        most: no more threads than this.
        name: what they are called, before a number.
    """

    def __init__(self, most: int, name: str = "parallel") -> None:
        self._most = most
        self._name = name
        self._started = 0
        self._idle = 0
        self._closed = False
        self._jobs: deque[Callable[[], None]] = deque()
        self._ready = threading.Condition()

    def start(self, job: Callable[[], None]) -> None:
        """Have a job done, which raises nothing; it waits while all threads are busy.

        After `close` it is not done.
        """
        with self._ready:
            if self._closed:
                return
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._ready.notify()
            elif self._started < self._most:
                self._started += 1
                threading.Thread(target=self._live, name=f"{self._name}-{self._started}", daemon=True).start()

    def close(self) -> None:
        """Drop the jobs that wait; each thread ends once its job is done. Waits for none."""
        with self._ready:
            self._closed = True
            self._jobs.clear()
            self._ready.notify_all()

    def _live(self) -> None:
        while True:
            with self._ready:
                self._idle += 1
                self._ready.wait_for(lambda: self._jobs or self._closed)
                self._idle -= 1
                if self._closed:
                    return
                job = self._jobs.popleft()
            job()


@functools.cache
def _threads(pid: int) -> Threads:
    """This process's pool; a forked child gets its own, as threads do not survive a fork."""
    del pid
    return Threads(_MAX_THREADS)
