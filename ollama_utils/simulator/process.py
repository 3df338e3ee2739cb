"""The simulator as a process of its own, which ends when whoever started it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import urlsplit

from ollama_utils.simulator.settings import Settings

_ROOT = Path(__file__).resolve().parents[2]
_REPLY_S = 10.0
_END_S = 5.0


class SimulatorError(RuntimeError):
    """The embedded server did not start, or does not answer."""


class EmbeddedServer:
    """A simulator in its own process, as a context manager.

    The process listens before the constructor returns, and ends at `close()` or when this process
    dies, however it dies: it reads a pipe that then closes.

    Args:
        settings: what it serves.

    Raises:
        SimulatorError: it did not start; the message carries what it wrote on stderr.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = _start(settings, self._stderr)
        try:
            self.host = self._listening_host()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def stats(self) -> dict[str, Any]:
        """What the server saw since the start or the last reset."""
        return self._request("GET", "/simulator/stats")

    def reset_stats(self) -> dict[str, Any]:
        """Zero the counts; gives what they were."""
        return self._request("DELETE", "/simulator/stats")

    def set_faults(self, faults: Sequence[dict[str, Any]]) -> None:
        """Play these faults from now on: `{"kind": ..., "rate": 0..1, "model": optional name}`."""
        self._request("POST", "/simulator/faults", list(faults))

    def set_slots(self, slots: int) -> None:
        """Give every model this many slots from now on."""
        self._request("POST", "/simulator/slots", {"slots": slots})

    def close(self) -> None:
        """End the process and wait for it; a second time does nothing."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _listening_host(self) -> str:
        """The host it announces; it announces nothing when it cannot start."""
        announced = self._process.stdout.readline() if self._process.stdout else b""
        try:
            return str(json.loads(announced)["host"])
        except (ValueError, KeyError, TypeError):
            self._process.wait(_END_S)
            raise SimulatorError(f"the embedded server did not start: {self._complaint()}") from None

    def _complaint(self) -> str:
        self._stderr.seek(0)
        text = self._stderr.read().decode("utf-8", "replace").strip()
        return text or f"it ended with status {self._process.returncode} and said nothing"

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
    command = [sys.executable, "-P", "-m", "ollama_utils.simulator", "--until-stdin-closes"]
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(  # noqa: S603 - our own module, our own flags
        [*command, *settings.arguments()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        # Ctrl-C in a terminal is for the parent, which still needs the server while it saves.
        process_group=0,
    )
