"""Ctrl-C, SIGTERM, a closed terminal (SIGHUP): stop between two updates of the policy, never inside one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """A signal asked the run to stop; `exit_code` is 128 + its number. No `except Exception` catches it."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum
        self.exit_code = 128 + signum


class Interrupt:
    """Turns the first signal into `Interrupted`, at once where `allowed`, else when it next is.

    Signals reach the main thread alone. Work on another one is told with `stop`, and looks up for it:
    see `interruptible_thread`.
    """

    def __init__(self) -> None:
        self._allowed = True
        self._pending: BaseException | None = None
        self.reason: BaseException | None = None
        """Why another thread had it stopped."""

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        self._pending = Interrupted(signum)
        self.raise_if_due()

    def stop(self, reason: BaseException) -> None:
        """Have `reason` raised where the work looks up next; from any thread. The first reason counts."""
        if self.reason is None:
            self._pending = self.reason = reason

    def allow(self, *, allowed: bool) -> None:
        """Say whether the run may be stopped from here on; a signal that came in between is due now."""
        self._allowed = allowed
        self.raise_if_due()

    def raise_if_due(self) -> None:
        """Raise what is to stop the run, once, if it may be stopped now."""
        if self._allowed and self._pending is not None:
            error, self._pending = self._pending, None
            self._allowed = False
            raise error


_of_thread = threading.local()


@contextmanager
def interruptible_thread(interrupt: Interrupt) -> Iterator[None]:
    """Within `with`, what this thread waits for is stopped by `interrupt`."""
    _of_thread.interrupt = interrupt
    try:
        yield
    finally:
        _of_thread.interrupt = None


def look_up() -> None:
    """Raise what is to stop this thread, if anything is; whatever waits for long calls it again and again."""
    interrupt: Interrupt | None = getattr(_of_thread, "interrupt", None)
    if interrupt is not None:
        interrupt.raise_if_due()


SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Handle SIGNALS through an Interrupt; the handlers before it come back at the end."""
    interrupt = Interrupt()
    before = {s: signal.signal(s, interrupt.handle) for s in SIGNALS}
    try:
        yield interrupt
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def postponed() -> Iterator[None]:
    """Within `with`, signals wait: for what must not break off half-way, such as lines on a terminal."""
    if threading.current_thread() is not threading.main_thread():  # no signal is handled there
        yield
        return
    came: list[int] = []
    before = {s: signal.signal(s, lambda signum, _frame: came.append(signum)) for s in SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        for signum in came[:1]:
            signal.raise_signal(signum)
