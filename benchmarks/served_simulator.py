"""The simulator as users start it, `mutagym serve`, in a process that can be killed and stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self
from urllib.error import URLError
from urllib.request import Request, urlopen

START_S = 60.0
_LOOK_S = 0.1


class ServedSimulator:
    """A server on a port that stays its own, whoever dies; a context manager.

    Args:
        flags: of `mutagym serve`.
        log: the file that has what it prints.

    Raises:
        TimeoutError: it does not answer.
    """

    def __init__(self, flags: Sequence[str], log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.host = f"http://127.0.0.1:{port}"
        self._line = [sys.executable, "-m", "mutagym", "serve", "--port", str(port), *flags]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def pid(self) -> int:
        """The process that serves now, or did last."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._line, stdout=log, stderr=log)  # noqa: S603 - our own command
        end_s = time.monotonic() + START_S
        while not self.answers():
            if time.monotonic() > end_s:
                raise TimeoutError(f"{self.host} does not answer; see {self._log}")
            time.sleep(_LOOK_S)

    def answers(self) -> bool:
        """Whether it does."""
        try:
            self.stats()
        except OSError:
            return False
        return True

    def stats(self) -> dict[str, Any]:
        """What the server counted since it was started.

        Raises:
            OSError: it does not answer.
        """
        return self._ask(f"{self.host}/simulator/stats")

    def fail(self, mode: Literal["hang", "drop"], for_s: float) -> None:
        """Have it hang at calls, or drop their connections, for so long; all else is answered."""
        outage = json.dumps({"mode": mode, "at": "calls", "for_s": for_s}).encode()
        headers = {"Content-Type": "application/json"}
        self._ask(Request(f"{self.host}/simulator/outage", outage, headers))  # noqa: S310 - our own host

    def stop(self) -> None:
        """Stop the process where it is, as a machine that is suspended."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Have a stopped process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()

    def _ask(self, what: str | Request) -> dict[str, Any]:
        try:
            with urlopen(what, timeout=START_S) as reply:  # noqa: S310 - our own host
                found: dict[str, Any] = json.loads(reply.read())
        except URLError as error:
            raise OSError(str(error)) from error
        return found
