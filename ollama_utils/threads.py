"""Threads that are started when there is work, and that never keep the process alive."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import TypeVar

POLL_S = 0.1
"""A signal that comes just before a thread falls asleep does not wake it: who waits looks again."""

Result = TypeVar("Result")


class Threads:
    """Threads that are started when there is work, stay for more, and never keep the process alive.

    The standard library's executors wait for their threads when the process ends; a call that
    hangs would then hold up Ctrl-C.

    Args:
        name: what they are called, before a number.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = 0
        self._idle = 0
        self._jobs: deque[Callable[[], None]] = deque()
        self._ready = threading.Condition()

    def start(self, job: Callable[[], None]) -> None:
        """Have a job done, which raises nothing, on a thread that is idle or new."""
        with self._ready:
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._ready.notify()
                return
            self._started += 1
            threading.Thread(
                target=self._live, name=f"{self._name}-{self._started}", daemon=True
            ).start()

    def _live(self) -> None:
        while True:
            with self._ready:
                self._idle += 1
                while not self._jobs:
                    self._ready.wait()
                self._idle -= 1
                job = self._jobs.popleft()
            job()


@cache
def _threads(pid: int) -> Threads:
    """This process's threads; a forked child gets its own, as threads do not survive a fork."""
    del pid
    return Threads("plan")


def start_thread(job: Callable[[], None]) -> None:
    """Have a job done, which raises nothing, on a thread of the process; it starts at once."""
    _threads(os.getpid()).start(job)


def submit(work: Callable[[], Result]) -> Future[Result]:
    """Have work done on a thread of the process; the future gets its result, or what it raised."""
    future: Future[Result] = Future()

    def do() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised to whoever asks the future
            future.set_exception(error)

    start_thread(do)
    return future
