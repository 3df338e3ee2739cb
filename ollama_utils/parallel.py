"""Many calls at once: order kept, every result saved."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ollama_utils.threads import POLL_S, start_thread
from records.errors import WrappedError

T = TypeVar("T")
R = TypeVar("R")
MOST_WORKERS = 1024
"""The most threads of a call of `map_parallel` that sets no number."""


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
        max_workers: the most calls at once; with 1 they are made on this thread. None: as many as
            there are items, up to MOST_WORKERS (a dispatcher then decides what is in flight).

    Raises:
        ParallelError: some items raised; the others were done all the same.
        ValueError: `max_workers` is less than 1.
        BaseException: Ctrl-C or an exit in an item, at once; no item begins after it.
    """
    if max_workers is not None and max_workers < 1:
        raise ValueError(f"max_workers must be at least 1, got {max_workers!r}")

    def attempt(item: T) -> tuple[Any, Exception | None]:
        try:
            return fn(item), None
        except Exception as error:  # noqa: BLE001 - raised below
            return None, error

    items = list(items)
    workers = min(max_workers or MOST_WORKERS, len(items))
    ended = iterate_parallel(attempt, items, workers) if workers > 1 else map(attempt, items)
    results, failures = [], {}
    for index, (result, error) in enumerate(ended):
        results.append(result)
        if error is not None:
            failures[index] = error
    if failures:
        raise ParallelError(results, failures) from failures[min(failures)]
    return results


def in_parallel(fn: Callable[[T], R], items: Iterable[T], max_workers: int | None) -> list[R]:
    """`map_parallel`, but what the first failed item raised is raised as it is."""
    try:
        return map_parallel(fn, items, max_workers)
    except ParallelError as error:
        raise error.failures[min(error.failures)] from None


def iterate_parallel(
    fn: Callable[[T], R],
    items: Iterable[T],
    max_workers: int,
    tick: Callable[[int], None] = lambda _done: None,
) -> Generator[R, None, None]:
    """`map(fn, items)`, many at once: the results in order, each as soon as it is there.

    Items begin in order; once one has raised, or the iterator is closed, no more begin.

    Args:
        fn: called once an item, on any thread.
        items: what it is called with.
        max_workers: the most calls at once.
        tick: called now and then with how many items are done.

    Raises:
        BaseException: whatever an item raises, at once.
    """
    left = deque(enumerate(items))
    ended: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
    count, done = len(left), 0
    results: dict[int, R] = {}

    def work() -> None:
        """Do items until none is left; one that raises is the last one."""
        while True:
            try:
                index, item = left.popleft()
            except IndexError:
                return
            try:
                ended.put((index, fn(item), None))
            except BaseException as error:  # noqa: BLE001 - raised to the caller
                left.clear()
                ended.put((index, None, error))

    try:
        workers = min(max_workers, count)
        while left and workers > 0:  # short items may all be done before all have begun
            start_thread(work)
            workers -= 1
        for index in range(count):
            while index not in results:
                try:
                    place, result, error = ended.get(timeout=POLL_S)
                except Empty:  # the timeout also lets a Ctrl-C through
                    tick(done)
                    continue
                if error is not None:
                    raise error
                results[place], done = result, done + 1
                tick(done)
            yield results.pop(index)
    finally:
        left.clear()


def run_parallel(
    fn: Callable[..., R], items: Iterable[Sequence[Any]], max_workers: int | None = None
) -> list[R]:
    """`[fn(*item) for item in items]`, many at once: see `map_parallel`."""
    return map_parallel(lambda item: fn(*item), items, max_workers)


def score_batch_parallel(
    score_fn: Callable[..., float], items: Iterable[Sequence[Any]], max_workers: int | None = None
) -> list[float]:
    """The scores of many replies at once; NaN, and a warning in the log, where scoring failed.

    Args:
        score_fn: called as `score_fn(system_prompt, query, response)`.
        items: triples `(system_prompt, query, response)`.
        max_workers: as for `map_parallel`.
    """
    try:
        return run_parallel(lambda *item: float(score_fn(*item)), items, max_workers)
    except ParallelError as error:
        for index, failure in sorted(error.failures.items()):
            logging.getLogger(__name__).warning("item %d has no score: %r", index, failure)
        return [math.nan if i in error.failures else score for i, score in enumerate(error.results)]
