"""Many calls at once: order kept, every result saved."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from ollama_utils.plans import POLL_S, start_thread
from records.errors import WrappedError
from records.interrupt import raise_if_interrupted

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger(__name__)


class ParallelError(WrappedError):
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


def map_parallel(
    fn: Callable[[T], R], items: Iterable[T], max_workers: int | None = None
) -> list[R]:
    """`[fn(item) for item in items]`, many at once.

    Args:
        fn: called once an item, on any thread.
        items: what it is called with.
        max_workers: the most calls at once, one of them on this thread; None: as many as there are items
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
    if not items:
        return []
    if len(items) == 1:  # most calls of a lane: straight on
        try:
            return [fn(items[0])]
        except Exception as error:
            raise ParallelError([None], {0: error}) from error
    batch = _Batch(fn, items, max_workers or len(items))
    try:
        batch.work()
        while not batch.is_over.wait(POLL_S):
            raise_if_interrupted()
    except BaseException:
        batch.left.clear()
        raise
    if failures := batch.failures:
        interrupts = [error for error in failures.values() if not isinstance(error, Exception)]
        if interrupts:
            raise interrupts[0]
        raise ParallelError(batch.results, failures) from failures[min(failures)]
    return batch.results


class _Batch(Generic[T, R]):
    """Items that several threads take one after another."""

    def __init__(self, fn: Callable[[T], R], items: Sequence[T], max_workers: int) -> None:
        self._fn = fn
        self._items = items
        self._workers_left = deque(range(max_workers))
        self._ended: list[int] = []
        self.left = deque(range(len(items)))
        self.results: list[Any] = [None] * len(items)
        self.failures: dict[int, BaseException] = {}
        self.is_over = threading.Event()
        """Set once every item is done, or one raised what is no mere failure: Ctrl-C, an exit."""

    def work(self) -> None:
        """Do items until none is left."""
        with suppress(IndexError):  # no item is left, or nobody to help
            self._workers_left.popleft()
            index = self.left.popleft()
            # Each has the next one started: where the items are short, few wake up in vain.
            if self._workers_left and self.left:
                start_thread(self.work)
            while True:
                self._do(index)
                index = self.left.popleft()

    def _do(self, index: int) -> None:
        try:
            self.results[index] = self._fn(self._items[index])
        except BaseException as error:  # noqa: BLE001 - it belongs to the item
            self.failures[index] = error
            if not isinstance(error, Exception):
                self.left.clear()
                self.is_over.set()
        self._ended.append(index)
        if len(self._ended) == len(self._items):
            self.is_over.set()


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
