"""Threads that never keep the process alive.

The standard library's executors wait for their threads when the process ends; a call that hangs
would then hold up Ctrl-C.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

POLL_S = 0.1
"""A signal that comes just before a thread falls asleep does not wake it: who waits looks again."""

Result = TypeVar("Result")


def start_thread(job: Callable[[], None]) -> None:
    """Have a job done, which raises nothing, on a thread of its own."""
    threading.Thread(target=job, name="mutagym", daemon=True).start()


def submit(work: Callable[[], Result]) -> Future[Result]:
    """Have work done on a thread of its own; the future gets its result, or what it raised."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised to whoever asks the future
            future.set_exception(error)

    start_thread(do)
    return future
