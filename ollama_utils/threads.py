"""Threads that never keep the process alive.

The standard library's executors wait for their threads when the process ends; a call that hangs
would then hold up Ctrl-C.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

POLL_S = 0.25
"""Seconds between two looks of a thread that waits: whether its call was cancelled, or whether a
signal came just before the thread fell asleep and did not wake it. A thousand threads that look ten
times a second would take a fifth of a core."""

Result = TypeVar("Result")


def start_thread(job: Callable[[], None]) -> None:
    """Do a job on a thread of its own; it must not raise."""
    threading.Thread(target=job, name="mutagym", daemon=True).start()


def submit(work: Callable[[], Result]) -> Future[Result]:
    """Do work on a thread of its own; the future gets its result, or what it raised."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised to whoever asks the future
            future.set_exception(error)

    start_thread(do)
    return future
