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

_WIDEST = 10_000
"""Columns or lines of a terminal: rich draws as many."""


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
    _forget_odd_sizes()
    # torch's threads spin while they wait: an update of the policy takes many times longer on a busy machine.
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
    """Make a closed stream the null device, and stderr one that ends nothing when its reader is gone."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open while the process is
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - likewise
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_LossyFile(2, "w", closefd=False)),
        encoding=sys.stderr.encoding if sys.stderr else "utf-8",
        errors="backslashreplace",
        line_buffering=True,
    )


def _forget_odd_sizes() -> None:
    """Unset a size of the terminal that is no number of columns or lines: what it is then is looked up."""
    for name in ("COLUMNS", "LINES"):
        size = os.environ.get(name, "")
        if not size.isdecimal() or not 0 < int(size) < _WIDEST:
            os.environ.pop(name, None)


if __name__ == "__main__":
    main()
