"""A search on a thread of its own: a signal interrupts the wait for it, and never the search itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

LOOK_UP_S = 0.2
"""Whoever waits looks up as often: for Ctrl-C, for failing calls, to say how far it is."""


class Background(Generic[T]):
    """Work that is done while this thread waits.

    Args:
        work: done once, on a thread that never keeps the process alive.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._do, name="search", daemon=True)

    def result(self, look_up: Callable[[bool], None]) -> T:
        """Begin the work, and wait for what comes of it.

        Args:
            look_up: called now and then, and at last with whether it is over; where it raises, nobody waits
                any more, and what the work itself raised is left untold.

        Raises:
            Exception: whatever the work raised.
        """
        self._thread.start()
        over = False
        while not over:
            self._thread.join(LOOK_UP_S)
            over = not self._thread.is_alive()
            look_up(over)
        if self._failure is not None:
            raise self._failure
        return self._results[0]

    def abandon(self, wait_s: float) -> None:
        """Give it some time to notice that it is to end; what comes of it is dropped."""
        if self._thread.ident is not None:
            self._thread.join(wait_s)

    def _do(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
            self._failure = error
