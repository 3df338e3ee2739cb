"""Threads for tests: start one, wait for a state, read what it gave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 20.0
"""After this long a test that waits has failed."""


def start(fn: Callable[[], T]) -> Future[T]:
    """Run it on a thread of its own; the future has what it returns or raises."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(fn())
        except BaseException as error:  # noqa: BLE001 - handed over whole
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def wait_until(state: Callable[[], bool]) -> None:
    """Come back when it holds."""
    end_s = time.monotonic() + PATIENCE_S
    while not state():
        assert time.monotonic() < end_s, "the state did not come"
        time.sleep(0.001)
