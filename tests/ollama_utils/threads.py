"""Threads for tests: start one, wait for a state; and a server that waits for the test."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import pytest

from tests.ollama_utils.scripted import SAID, ScriptedServer

T = TypeVar("T")

PATIENCE_S = 60.0
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


@contextmanager
def interrupted_once(is_ready: Callable[[], object]) -> Iterator[None]:
    """The block that is left by one Ctrl-C, after `is_ready` has returned; for the main thread.

    A signal that arrives just before the main thread goes to sleep does not wake it, and on a busy
    machine that happens: the signal is sent until one got through, and those that come later do
    nothing.
    """
    got_through = threading.Event()

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        if not got_through.is_set():
            got_through.set()
            raise KeyboardInterrupt

    def send() -> None:
        is_ready()
        while not got_through.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            got_through.wait(0.01)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        sender = start(send)
        with pytest.raises(KeyboardInterrupt):
            yield
        sender.result(PATIENCE_S)
    finally:
        signal.signal(signal.SIGINT, before)


class SlowServer(ScriptedServer):
    """Answers once `go_on` is set."""

    def __init__(self, status: int = 200) -> None:
        self.go_on = threading.Event()
        super().__init__(lambda _: (status if self.go_on.wait(PATIENCE_S) else 0, SAID))
