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
from pathlib import Path

from records.interrupt import SIGNALS, Interrupted, interruptible
from records.terminal import write_stderr


def main() -> None:
    """Run `mutagym` with the process's arguments."""

    def command() -> int:
        from cli.main import execute

        return execute(sys.argv[1:])

    launch(command)


def launch(command: Callable[[], int]) -> None:
    """Run a command as this process, and end it with the command's exit code or a signal's.

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
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 - stderr's number
        os.set_inheritable(number, True)
    os.close(number)
    for name in ("stdin", "stdout"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r+", encoding="utf-8"))  # noqa: SIM115
    encoding = sys.stderr.encoding if sys.stderr else "utf-8"
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_LossyFile(2, "w", closefd=False)),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=True,
    )
