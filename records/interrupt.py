"""Ctrl-C, SIGTERM, a closed terminal (SIGHUP): they stop a command where it may stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked the run to stop; no `except Exception` catches it."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum
        self.exit_code = 128 + signum


class Interrupt:
    """Turns the first signal into `Interrupted`, at once where `allowed`, else when it next is."""

    def __init__(self) -> None:
        self.has_stopped = False
        """Whether a signal has been turned into `Interrupted`."""
        self._allowed = True
        self._pending: BaseException | None = None

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        """The signal handler, on the main thread."""
        self._pending = Interrupted(signum)
        self.allow(allowed=self._allowed)

    def allow(self, *, allowed: bool) -> None:
        """Say whether the run may be stopped from here on; raise, once, what waited for that."""
        self._allowed = allowed
        if allowed and self._pending:
            error, self._pending, self._allowed = self._pending, None, False
            self.has_stopped = True
            raise error


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Handle SIGNALS through an Interrupt, and as before at the end.

    A signal that still waits at the end stops the command then, unless an error ends it.

    A signal that is ignored stays ignored, as SIGHUP under `nohup` and SIGINT for a job in the
    background are.
    """
    interrupt = Interrupt()
    before = {s: signal.getsignal(s) for s in SIGNALS if signal.getsignal(s) != signal.SIG_IGN}
    for signum in before:
        signal.signal(signum, interrupt.handle)
    try:
        yield interrupt
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if not interrupt.has_stopped:
        interrupt.allow(allowed=True)
