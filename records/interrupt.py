"""Ctrl-C, SIGTERM, a closed terminal (SIGHUP): stop between two updates of the policy, never inside one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """A signal asked the run to stop; `exit_code` is 128 + its number. No `except Exception` catches it."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum


class Interrupt:
    """Turns the first signal into `Interrupted`, at once where `allowed`, else when it next is."""

    def __init__(self) -> None:
        self._allowed = True
        self._pending: int | None = None

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        self._pending = signum
        self._raise_if_due()

    def allow(self, *, allowed: bool) -> None:
        """Say whether the run may be stopped from here on; a signal that came in between is due now."""
        self._allowed = allowed
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self._allowed and self._pending is not None:
            signum, self._pending = self._pending, None
            self._allowed = False
            raise Interrupted(signum)


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
