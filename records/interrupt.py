"""Ctrl-C, SIGTERM, a closed terminal (SIGHUP): they stop a command where it may stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Interrupted(BaseException):
    """A signal asked the run to stop; no `except Exception` catches it.

    Its `exit_code` is 128 + the signal's number.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum
        self.exit_code = 128 + signum


class Interrupt:
    """Turns the first signal into `Interrupted`, at once where `allowed`, else when it next is.

    Signals reach the main thread alone.
    """

    def __init__(self) -> None:
        self._allowed = True
        self._pending: BaseException | None = None

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        self._pending = Interrupted(signum)
        self.raise_if_due()

    def allow(self, *, allowed: bool) -> None:
        """Say whether the run may be stopped from here on; raise what waited for that."""
        self._allowed = allowed
        self.raise_if_due()

    def raise_if_due(self) -> None:
        """Raise what is to stop the run, once, if it may be stopped now."""
        if self._allowed and self._pending is not None:
            error, self._pending = self._pending, None
            self._allowed = False
            raise error


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Handle SIGNALS through an Interrupt, and as before at the end.

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
