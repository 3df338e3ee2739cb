"""Servers as processes of their own, which end with whoever started them; the simulator is one.

`ChildServer` runs a module; `EmbeddedServer` is the simulator, with what can be asked of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import RLock, Timer
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import httpx

from simulator.settings import FORMAT, Settings

_ROOT = Path(__file__).resolve().parents[1]
_START_S, _END_S, _REPLY_S = 60.0, 5.0, 10.0
_MOST_BYTES = 2**20
MOST_RESTARTS = 3
"""How often a server that died is started again."""


class ChildError(RuntimeError):
    """A server that was to run as a child process did not start, or does not answer."""


class ChildServer:
    """A module that serves in its own process, as a context manager.

    The process announces on stdout where it listens, as a line of JSON with `host`, before the
    constructor returns. It ignores Ctrl-C. It ends at `stop()`, or soon after the process that
    started it has died.

    Args:
        module: is run, with `arguments`, a port (0 for any) and the number of this process.
        arguments: the module's own.
        what: the server in messages, as "embedded simulator".
        start_s: seconds it may take until it listens.

    Raises:
        ChildError: it did not start; the message carries the last line it wrote on stderr.
    """

    def __init__(self, module: str, arguments: Sequence[str], *, what: str, start_s: float) -> None:
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._what, self._start_s = what, start_s
        self._lock = RLock()
        self.restarts = 0
        """How often it died and was started again."""
        self.host = ""
        self.start()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def start(self) -> None:
        """Start it, after `stop` or `kill` again at the same host.

        Raises:
            ChildError: it did not start.
        """
        self._stopped = False
        port = urlsplit(self.host).port or 0
        paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        self._stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - see `_reap`
        self._process = subprocess.Popen(  # noqa: S603 - a module of ours
            [*self._command, str(port), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            # Signals to a terminal's group are for the parent, which needs the server till the end.
            process_group=0,
        )
        timer = Timer(self._start_s, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout or ():
                with suppress(ValueError, KeyError, TypeError):  # of what else it prints
                    self.host = json.loads(line)["host"]
                    return
        finally:
            timer.cancel()
        self.stop()
        raise ChildError(f"the {self._what} did not start: {self._last_words}")

    def ensure_running(self) -> str | None:
        """Start the process again if it has died, up to `MOST_RESTARTS` times.

        Returns None if it runs now, else one line that says why it cannot be started any more.
        """
        with self._lock:
            if self._process.poll() is None:
                return None
            self._reap()
            why = f"the {self._what} at {self.host!r} has ended: {self._last_words}"
            if self._stopped or self.restarts == MOST_RESTARTS:
                return f"{why}; it was started again {self.restarts} times"
            try:
                self.start()
            except ChildError as error:
                return f"{why}; {error}"
            self.restarts += 1
            sys.stderr.write(f"{why}; started again, {self.restarts} of {MOST_RESTARTS}\n")
            return None

    def stop(self) -> None:
        """End the process and wait for it; a second time does nothing."""
        with self._lock:
            self._stopped = True
            with suppress(subprocess.TimeoutExpired):
                self._process.terminate()
                self._process.wait(_END_S)
            self.kill()

    def kill(self) -> None:
        """End the process at once, as a crash does."""
        with self._lock:
            self._process.kill()
            self._reap()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _reap(self) -> None:
        """Wait for the process's end, and keep the last line of its stderr: the error itself."""
        status = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if not self._stderr.closed:
            self._stderr.seek(0)
            lines = self._stderr.read().strip().splitlines()
            killed = f"killed by signal {-status}" if status < 0 else f"status {status}"
            self._last_words = lines[-1] if lines and status > 0 else killed
            self._stderr.close()


class EmbeddedServer(ChildServer):
    """A simulator in its own process, as a context manager; see `ChildServer`.

    Args:
        settings: what it serves.

    Raises:
        ChildError: it did not start; the message carries the last line it wrote on stderr.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        arguments = [json.dumps(asdict(settings))]
        super().__init__("simulator.app", arguments, what="embedded simulator", start_s=_START_S)

    def stats(self) -> dict[str, Any]:
        """What the server saw since the start or the last reset."""
        return self._ask("GET", "stats")

    def reset_stats(self) -> dict[str, Any]:
        """Count from zero on; gives what was counted."""
        return self._ask("DELETE", "stats")

    def set_faults(self, faults: Sequence[dict[str, Any]]) -> None:
        """Play these faults from now on: `[{"kind": "drop", "rate": 0.1}]`; see `Fault`.

        Raises:
            ValueError: one of them cannot be; the message says what was expected.
        """
        self._ask("POST", "faults", list(faults))

    def set_outage(
        self,
        mode: Literal["hang", "drop"],
        *,
        at: Literal["calls", "all"] = "calls",
        for_s: float | None = None,
    ) -> None:
        """Have the whole server fail for some seconds, or until `end_outage`; see `Outage`."""
        self._ask("POST", "outage", {"mode": mode, "at": at, "for_s": for_s})

    def end_outage(self) -> None:
        """End the outage, if there is one."""
        self._ask("POST", "outage")

    def _ask(self, method: str, name: str, payload: object = None) -> dict[str, Any]:
        """What a control route answers; raises ChildError if it is gone, ValueError if refused."""
        try:
            # Without `verify`, which costs 20 ms, for no certificate is met here.
            client = httpx.Client(timeout=_REPLY_S, trust_env=False, verify=False)  # noqa: S501
            with client:
                url = f"{self.host}/simulator/{name}"
                answer: dict[str, Any] = client.request(method, url, json=payload).json()
        except (httpx.HTTPError, ValueError) as error:
            why = f"the {self._what} at {self.host} does not answer: {error!r}"
            raise ChildError(why) from error
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer


def is_simulator(host: str) -> bool:
    """Whether the server at this URL is the simulator: a real one has no models of its format."""
    end_s, body = time.monotonic() + _REPLY_S, bytearray()
    try:
        with httpx.stream("GET", f"{host}/api/tags", timeout=_REPLY_S, trust_env=False) as reply:
            for part in reply.iter_bytes():
                body += part
                if len(body) > _MOST_BYTES or time.monotonic() > end_s:
                    return False
        formats = [model["details"]["format"] for model in json.loads(body)["models"]]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError, LookupError, RecursionError):
        return False
    return reply.is_success and FORMAT in formats
