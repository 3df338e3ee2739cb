"""The budget of `mutagym eval`: so many threads do the work of all missions, episodes and agents.

Nothing here waits for anything else here: whoever ends the last task of a group goes on with what comes
after it. So a thread is idle only when there is no work, and no level needs a pool of its own.

Plays what an evaluation consists of: side by side within the budget, told of in order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

T = TypeVar("T")


class Jobs:
    """Does tasks in the order in which they came, `count` at a time.

    Args:
        count: the most tasks at once; with 1 they are done one after another.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.failure: BaseException | None = None
        """The first error that a task raised: nothing is begun after it."""
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="job")
        self._lock = threading.Lock()
        self._closed = False

    def start(self, task: Callable[[], None]) -> None:
        """Have a task done."""
        with self._lock:
            if not self._closed:
                self._pool.submit(self._do, task)

    def together(self, tasks: Sequence[Callable[[], T]], then: Callable[[list[T]], None]) -> None:
        """Have tasks done side by side, and then `then` with their results, in their order.

        Args:
            tasks: at least one.
            then: called once, by the thread that ends the last task.
        """
        results: list[Any] = [None] * len(tasks)
        left = len(tasks)

        def do(place: int) -> None:
            nonlocal left
            results[place] = tasks[place]()
            with self._lock:
                left -= 1
                is_last = left == 0
            if is_last:
                then(results)

        for place in range(len(tasks)):
            self.start(lambda place=place: do(place))  # type: ignore[misc] # mypy knows no default here

    def close(self) -> None:
        """Begin no further task; those under way are left to end."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _do(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for the results
            self.failure = self.failure or error
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


LOOK_UP_S = 0.2
"""Whoever waits looks up as often: for Ctrl-C, for an error, to say how far it is."""


class Playable(Protocol):
    """What plays itself once it is started: an episode, a fit."""

    def start(self, ended: Callable[[], None]) -> None:
        """Begin; `ended` is called once, on any thread, when it is over."""
        ...


P = TypeVar("P", bound=Playable)


def play(
    makers: Sequence[Callable[[], P]], jobs: Jobs, tick: Callable[[int], None] = lambda _ended: None
) -> Iterator[P]:
    """Play things side by side, at most as many as there are jobs; gives them in their order as they end.

    Args:
        makers: make them; each is called when its turn to begin has come.
        jobs: what they run on; an error of one of them ends all, and is raised here.
        tick: told now and then how many have ended.
    """
    opened: dict[int, P] = {}
    ended: SimpleQueue[int] = SimpleQueue()
    to_open = iter(range(len(makers)))
    lock = threading.Lock()

    def open_next() -> None:
        with lock:
            place = next(to_open, None)
        if place is not None:
            opened[place] = made = makers[place]()
            made.start(partial(end, place))

    def end(place: int) -> None:
        open_next()
        ended.put(place)

    for _ in range(jobs.count):
        jobs.start(open_next)
    waiting: set[int] = set()
    for due in range(len(makers)):
        while due not in waiting:
            if jobs.failure:
                raise jobs.failure
            with suppress(Empty):
                waiting.add(ended.get(timeout=LOOK_UP_S))
            tick(due + len(waiting))
        waiting.discard(due)
        yield opened.pop(due)
