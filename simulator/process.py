"""The simulator as a process of its own, which ends when whoever started it ends."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import urlsplit

import httpx

from simulator.settings import Settings

_ROOT = Path(__file__).resolve().parents[1]
_REPLY_S = 10.0
_END_S = 5.0
_MOST_READ = 2**20


class SimulatorError(RuntimeError):
    """The embedded server did not start, or does not answer."""


class EmbeddedServer:
    """A simulator in its own process, as a context manager.

    The process listens before the constructor returns, and ends at `close()` or soon after this
    process dies, however it dies: it watches whose child it is. It ignores Ctrl-C.

    Args:
        settings: what it serves.
        start_s: seconds it may take until it listens.

    Raises:
        SimulatorError: it did not start; the message carries the last line it wrote on stderr.
    """

    def __init__(self, settings: Settings, *, start_s: float = 60.0) -> None:
        self.settings = settings
        try:
            with ExitStack() as undo:
                self._stderr: IO[bytes] = undo.enter_context(tempfile.TemporaryFile())
                self._process = undo.enter_context(_start(settings, self._stderr))
                undo.callback(self._end)
                self.host = self._listening_host(start_s)
                self._undo = undo.pop_all()
        except (OSError, ValueError) as error:
            raise SimulatorError(f"the embedded server did not start: {error}") from error

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
        return f"the embedded simulator at {self.host!r} has ended: {self._complaint()}"

    def stats(self) -> dict[str, Any]:
        """What the server saw since the start or the last reset."""
        return self._request("GET", "/simulator/stats")

    def reset_stats(self) -> dict[str, Any]:
        """Zero the counts; gives what they were."""
        return self._request("DELETE", "/simulator/stats")

    def set_faults(self, faults: Sequence[dict[str, Any]]) -> None:
        """Play these faults from now on: `[{"kind": "drop", "rate": 0.1, "at": "body"}]` and the like.

        Raises:
            ValueError: one of them cannot be; the message says what was expected.
        """
        self._request("POST", "/simulator/faults", list(faults))

    def set_slots(self, slots: int) -> None:
        """Give every model this many slots from now on."""
        self._request("POST", "/simulator/slots", {"slots": slots})

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
        raise SimulatorError(f"the embedded server did not start: {why}")

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

    def _request(self, method: str, path: str, payload: object = None) -> dict[str, Any]:
        address = urlsplit(self.host)
        connection = HTTPConnection(str(address.hostname), address.port, timeout=_REPLY_S)
        try:
            connection.request(method, path, None if payload is None else json.dumps(payload))
            reply = connection.getresponse()
            body: dict[str, Any] = json.loads(reply.read())
        except (OSError, HTTPException, ValueError) as error:
            raise SimulatorError(f"the embedded server at {self.host} does not answer: {error!r}") from error
        finally:
            connection.close()
        if "error" in body:
            raise ValueError(body["error"])
        return body


def _start(settings: Settings, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "simulator", json.dumps(asdict(settings)), str(os.getpid())]
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


_PROBE_REPLY_S = 5.0


def is_simulator(host: str) -> bool:
    """Whether the server at this URL is the simulator; a real one knows no such route."""
    plain = urlsplit(host).scheme == "http"
    # Without the certificates of authorities, whose reading takes some 40 ms.
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else httpx.create_ssl_context(trust_env=False)
    try:
        reply = httpx.get(f"{host}/simulator/stats", timeout=_PROBE_REPLY_S, trust_env=False, verify=tls)
        return "slots" in reply.json()
    except (httpx.HTTPError, ValueError, TypeError):
        return False
