"""A server as a process of its own, which ends when whoever started it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import IO, Self

_ROOT = Path(__file__).resolve().parents[1]
_END_S = 5.0
_MOST_READ = 2**20


class ChildError(RuntimeError):
    """A server that was to run as a child process did not start, or does not answer."""


class ChildServer:
    """A module of ours that serves in its own process, as a context manager.

    The process announces on stdout where it listens, as one line of JSON with `host`, before the constructor
    returns; it ends at `close()`, or soon after this process dies, however it dies: it is given this
    process's number and watches whose child it is. It ignores Ctrl-C.

    Args:
        module: is run, with `arguments` and the number of this process.
        arguments: the module's own.
        what: the server in messages, as "embedded server".
        start_s: seconds it may take until it listens.

    Raises:
        ChildError: it did not start; the message carries the last line it wrote on stderr.
    """

    error: type[ChildError] = ChildError
    """What is raised."""

    def __init__(self, module: str, arguments: Sequence[str], *, what: str, start_s: float) -> None:
        self._what = what
        try:
            with ExitStack() as undo:
                self._stderr: IO[bytes] = undo.enter_context(tempfile.TemporaryFile())
                self._process = undo.enter_context(_start(module, arguments, self._stderr))
                undo.callback(self._end)
                self.host = self._listening_host(start_s)
                self._undo = undo.pop_all()
        except (OSError, ValueError) as error:
            raise self.error(f"the {what} did not start: {error}") from error

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def exit_reason(self) -> str | None:
        """What to say when it has ended; None while it runs."""
        if self.alive():
            return None
        return f"the {self._what} at {self.host!r} has ended: {self._complaint()}"

    def close(self) -> None:
        """End the process and wait for it; a second time does nothing."""
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _listening_host(self, start_s: float) -> str:
        """The host it announces; the end of its output is that of a process that cannot start."""
        started_s = time.monotonic()
        timer = Timer(start_s, self._process.kill)
        try:
            timer.start()
            for line in self._process.stdout or ():
                # Others may print too, such as a `sitecustomize` of the user's.
                with suppress(ValueError, KeyError, TypeError):
                    return str(json.loads(line)["host"])
        finally:
            timer.cancel()
        self._end()
        late = time.monotonic() - started_s >= start_s
        why = f"it announced no host within {start_s:g} s" if late else self._complaint()
        raise self.error(f"the {self._what} did not start: {why}")

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _complaint(self) -> str:
        """The last line on stderr: after a traceback, that is the error itself."""
        written = os.pread(self._stderr.fileno(), _MOST_READ, 0)  # several threads may ask at once
        lines = written.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with status {self._process.returncode} and said nothing"


def _start(module: str, arguments: Sequence[str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", module, *arguments, str(os.getpid())]
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    # aiohttp opens the log of TLS keys when it is imported; the server has none to log.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "SSLKEYLOGFILE": ""}
    return subprocess.Popen(  # noqa: S603 - our own module
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment,
        # Signals to a terminal's group are for the parent, which still needs the server while it saves.
        process_group=0,
    )
