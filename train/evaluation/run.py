"""Plays what an evaluation consists of: side by side within the budget, told of in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from train.errors import RunStoppedError
from train.evaluation.jobs import Jobs

LOOK_UP_S = 0.2
"""Whoever waits looks up as often: for Ctrl-C, for an error, to say how far it is."""
UNSCORED_WINDOW = 128
"""Steps over which the share of unscored ones is judged."""


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


class UnscoredLimit:
    """Stops an evaluation when calls keep failing.

    Args:
        most: the share of the latest steps that may be unscored.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._recent: deque[str] = deque(maxlen=UNSCORED_WINDOW)

    def heed(self, errors: Sequence[str]) -> None:
        """Note further steps, each by why it could not be scored; "" is one that was.

        Raises:
            RunStoppedError: too many of the latest could not be scored.
        """
        for error in errors:
            self._recent.append(error)
            if len(self._recent) == UNSCORED_WINDOW:
                self.check()

    def check(self) -> None:
        """Judge the latest steps, however few they are.

        Raises:
            RunStoppedError: too many of them could not be scored.
        """
        errors = [error for error in self._recent if error]
        share = len(errors) / max(len(self._recent), 1)
        if share > self._most:
            raise RunStoppedError(
                f"{share:.0%} of the last {len(self._recent)} steps could not be scored "
                f"(--max-unscored {self._most:g}); last error: {errors[-1]}"
            )
