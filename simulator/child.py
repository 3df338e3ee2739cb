"""A server as a process of its own: it ends with whoever started it, and is started again if it dies."""

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
from threading import Lock, Timer
from types import TracebackType
from typing import IO, Self
from urllib.parse import urlsplit

_ROOT = Path(__file__).resolve().parents[1]
_END_S = 5.0
_MOST_READ = 2**20
MOST_RESTARTS = 3
"""How often a server that died is started again."""


class ChildError(RuntimeError):
    """A server that was to run as a child process did not start, or does not answer."""


class ChildServer:
    """A module of ours that serves in its own process, as a context manager.

    The process announces on stdout where it listens, as one line of JSON with `host`, before the constructor
    returns; it ends at `close()`, or soon after this process dies, however it dies: it is given this
    process's number and watches whose child it is. It ignores Ctrl-C. Should it die before, `ensure_running`
    starts it again at the same host.

    Args:
        module: is run, with `arguments`, the port to listen on (0 for any) and the number of this process.
        arguments: the module's own.
        what: the server in messages, as "embedded server".
        start_s: seconds it may take until it listens.

    Raises:
        ChildError: it did not start; the message carries the last line it wrote on stderr.
    """

    error: type[ChildError] = ChildError
    """What is raised."""

    def __init__(self, module: str, arguments: Sequence[str], *, what: str, start_s: float) -> None:
        self._module, self._what, self._start_s = module, what, start_s
        self._arguments = list(arguments)
        """Those of the next start, too."""
        self.restarts = 0
        """How often it was started again."""
        self._restarting = Lock()
        self._gone: str | None = None
        """Why it will never run again."""
        self._undo = ExitStack()
        self._process = self._started(0)
        self.host = self._process.host

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.alive()

    def ensure_running(self) -> str | None:
        """See to it that the process runs: one that has died is started again, up to `MOST_RESTARTS` times.

        It listens at the same host again, with the same arguments; whatever else it knew is lost. Many
        threads may call at once: one starts it, which is told in a line on stderr, and the others wait.

        Returns None when it runs, else in one line why it never will again.
        """
        if self.alive():
            return None
        with self._restarting:
            if self._gone is None and not self.alive():
                self._gone = self._start_again()
            return self._gone

    def close(self) -> None:
        """End the process and wait for it; a second time does nothing."""
        with self._restarting:
            self._gone = self._gone or f"the {self._what} at {self.host!r} was closed"
            self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _started(self, port: int) -> _Process:
        try:
            process = _Process(self._module, [*self._arguments, str(port)], self._start_s)
        except (OSError, ValueError, ChildError) as error:
            raise self.error(f"the {self._what} did not start: {error}") from error
        # Those that ended stay in there: other threads may be asking what they said.
        self._undo.callback(process.close)
        return process

    def _start_again(self) -> str | None:
        """Start it at its port; gives why it will not run again, or None."""
        reason = f"the {self._what} at {self.host!r} has ended: {self._process.complaint()}"
        if self.restarts == MOST_RESTARTS:
            return f"{reason}; it had been started again {MOST_RESTARTS} times"
        try:
            process = self._started(urlsplit(self.host).port or 0)
        except self.error as error:
            return f"{reason}; to start it again failed: {error}"
        why, self._process = self._process.complaint(), process
        self.restarts += 1
        count = f"{self.restarts} of {MOST_RESTARTS}"
        sys.stderr.write(f"the {self._what} had ended ({why}); started again, {count}\n")
        return None


class _Process:
    """One run of a module that serves.

    Args:
        module: is run.
        arguments: the module's, before the number of this process.
        start_s: seconds it may take until it listens.

    Raises:
        ChildError: it did not start; the message says why.
        OSError, ValueError: it cannot be run at all.
    """

    def __init__(self, module: str, arguments: Sequence[str], start_s: float) -> None:
        with ExitStack() as undo:
            self._stderr: IO[bytes] = undo.enter_context(tempfile.TemporaryFile())
            self._process = undo.enter_context(_start(module, arguments, self._stderr))
            undo.callback(self._end)
            self.host = self._listening_host(start_s)
            self.close = undo.pop_all().close

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def complaint(self) -> str:
        """The last line on stderr: after a traceback, that is the error itself."""
        written = os.pread(self._stderr.fileno(), _MOST_READ, 0)  # several threads may ask at once
        lines = written.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with status {self._process.returncode} and said nothing"

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
        raise ChildError(f"it announced no host within {start_s:g} s" if late else self.complaint())

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


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
