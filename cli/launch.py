"""Starts a command as this process: its streams, its signals, its exit code.

Signals are handled before anything is imported that takes long: Ctrl-C is one line from the start.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from records.interrupt import SIGNALS, Interrupted, interruptible
from records.terminal import write_stderr


def main() -> None:
    """Run `mutagym` with the process's arguments."""
    launch(_mutagym)


def _mutagym() -> int:
    from cli.main import execute

    return execute(sys.argv[1:])


def launch(command: Callable[[], int]) -> None:
    """Run a command as this process, and end the process with its exit code or that of a signal.

    After an error at once: threads of the pool may still be waiting for a slow server.
    """
    _open_streams()
    # torch's threads spin while they wait: on a busy machine an update takes many times longer.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        with interruptible():
            code = command()
    except Interrupted as error:  # before the command began, or when it was over
        write_stderr(f"mutagym: {error}")
        code = error.exit_code
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    if code:
        with suppress(OSError):  # nobody reads it any more, or the disk is full
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _LossyFile(io.FileIO):
    """A file that loses what cannot be written."""

    def write(self, data: bytes, /) -> int:  # type: ignore[override] # typeshed's name for a buffer
        """Write the bytes; returns how many there are."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _open_streams() -> None:
    """Make a closed stream the null device, and stderr one that ends nothing if nobody reads it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # what is opened takes the lowest free number: this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - likewise
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_LossyFile(2, "w", closefd=False)),
        encoding=sys.stderr.encoding if sys.stderr else "utf-8",
        errors="backslashreplace",
        line_buffering=True,
    )
