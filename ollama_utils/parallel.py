"""Many calls at once: order kept, every result saved."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ollama_utils.plans import POLL_S, start_thread
from records.errors import WrappedError

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


def map_parallel(fn: Callable[[T], R], items: Iterable[T], max_workers: int | None = None) -> list[R]:
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
    if len(items) == 1:  # most calls of a lane: straight on
        try:
            return [fn(items[0])]
        except Exception as error:
            raise ParallelError([None], {0: error}) from error
    results: list[R | None] = [None] * len(items)
    failures: dict[int, BaseException] = {}
    left = deque(range(len(items)))

    def work() -> None:
        with suppress(IndexError):  # no item is left
            while True:
                index = left.popleft()
                try:
                    results[index] = fn(items[index])
                except Exception as error:  # noqa: BLE001 - it belongs to the item
                    failures[index] = error

    _on_threads(work, min(len(items), max_workers or len(items)), stop=left.clear)
    if failures:
        raise ParallelError(results, failures) from failures[min(failures)]
    return results  # type: ignore[return-value] # every item has its result now


def _on_threads(work: Callable[[], None], count: int, stop: Callable[[], None]) -> None:
    """Have work done on so many threads, this one among them: where it is short, no other wakes up for it.

    Where this thread is interrupted, it calls `stop` and waits for nobody.
    """
    ended: SimpleQueue[Future[None]] = SimpleQueue()

    def help_out() -> None:
        future: Future[None] = Future()
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            future.set_exception(error)
        else:
            future.set_result(None)
        ended.put(future)

    try:
        for _ in range(count - 1):
            start_thread(help_out)
        work()
        waiting = count - 1
        while waiting > 0:
            with suppress(Empty):
                ended.get(timeout=POLL_S).result()
                waiting -= 1
    except BaseException:
        stop()
        raise


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
