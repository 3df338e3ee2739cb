"""The parent's end of `evaluation.wrappers.worker`: starts the process, talks to it, and ends it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from evaluation.wrappers.errors import RemotePolicyError
from evaluation.wrappers.tracebacks import RemoteTraceback, error_line

_ROOT = Path(__file__).resolve().parents[2]
_LAST_WORDS_S = 1.0
"""How long a process that let go of its connection may take to end by itself."""


class WorkerProcess:
    """A worker and the connection to it. What policies print there goes to standard error."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "evaluation.wrappers.worker",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=2,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
                pass_fds=[theirs.fileno()],
                process_group=0,  # signals to a terminal's group are for the parent
            )
        self._greeted = False

    def reply(self, request: tuple[Any, ...], timeout_s: float | None) -> tuple[Any, ...] | None:
        """The reply to a request; None where there is none in time.

        Raises:
            EOFError: the process has ended.
            OSError: likewise.
        """
        if not self._greeted:
            self._connection.send(("paths", [os.path.abspath(path) for path in sys.path]))  # noqa: PTH100 - "" too
            self._connection.recv()
            self._greeted = True
        self._connection.send(request)
        if not self._connection.poll(timeout_s):
            return None
        reply: tuple[Any, ...] = self._connection.recv()
        return reply

    def has_ended(self) -> bool:
        """Whether it is no more."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill it; whoever waits for a reply learns of it. From any thread."""
        self._process.kill()

    def end(self) -> int:
        """Kill it unless it has ended, and give its exit code; no other thread may wait for a reply."""
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):  # it may be on its way out already, with a code of its own
            return self._process.wait(_LAST_WORDS_S)
        self._process.kill()
        return self._process.wait()


def remote_error(payload: bytes | None, trace: str) -> Exception:
    """The exception that a policy raised in its process, with the traceback there as its cause."""
    error: Exception | None = None
    with suppress(Exception):  # its class may not be there to import
        error = pickle.loads(payload) if payload else None  # noqa: S301 - from a process of ours
    error = error or RemotePolicyError(error_line(trace))
    error.__cause__ = RemoteTraceback(trace)
    return error
