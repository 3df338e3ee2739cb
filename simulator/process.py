"""The simulator as a process of its own, which ends when whoever started it ends."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Sequence
from dataclasses import asdict
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import httpx

from simulator.child import ChildError, ChildServer
from simulator.settings import Settings

_REPLY_S = 10.0


class SimulatorError(ChildError):
    """The embedded simulator did not start, or does not answer."""


class EmbeddedServer(ChildServer):
    """A simulator in its own process, as a context manager; see `ChildServer`.

    Args:
        settings: what it serves.
        start_s: seconds it may take until it listens.

    Raises:
        SimulatorError: it did not start; the message carries the last line it wrote on stderr.
    """

    error = SimulatorError

    def __init__(self, settings: Settings, *, start_s: float = 60.0) -> None:
        self.settings = settings
        settings_json = json.dumps(asdict(settings))
        super().__init__("simulator", [settings_json], what="embedded simulator", start_s=start_s)

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

    def _request(self, method: str, path: str, payload: object = None) -> dict[str, Any]:
        address = urlsplit(self.host)
        connection = HTTPConnection(str(address.hostname), address.port, timeout=_REPLY_S)
        try:
            connection.request(method, path, None if payload is None else json.dumps(payload))
            reply = connection.getresponse()
            body: dict[str, Any] = json.loads(reply.read())
        except (OSError, HTTPException, ValueError) as error:
            raise SimulatorError(
                f"the embedded simulator at {self.host} does not answer: {error!r}"
            ) from error
        finally:
            connection.close()
        if "error" in body:
            raise ValueError(body["error"])
        return body


_PROBE_REPLY_S = 5.0
_PROBE_BYTES = 2**20
_OK = 200


def is_simulator(host: str) -> bool:
    """Whether the server at this URL is the simulator; a real one knows no such route.

    It is asked of servers of any kind: none is followed elsewhere, and none can send for longer or more.
    """
    address = urlsplit(host)
    name, port = str(address.hostname), address.port
    if address.scheme == "http":
        connection = HTTPConnection(name, port, timeout=_PROBE_REPLY_S)
    else:
        tls = httpx.create_ssl_context(trust_env=False)
        connection = HTTPSConnection(name, port, timeout=_PROBE_REPLY_S, context=tls)
    patience = threading.Timer(_PROBE_REPLY_S, _hang_up, [connection])
    patience.daemon = True
    patience.start()
    try:
        connection.request("GET", f"{address.path}/simulator/stats", headers={"Accept-Encoding": "identity"})
        reply = connection.getresponse()
        return reply.status == _OK and "slots" in json.loads(reply.read(_PROBE_BYTES))
    except (OSError, HTTPException, ValueError, TypeError, RecursionError):
        return False
    finally:
        patience.cancel()
        connection.close()


def _hang_up(connection: HTTPConnection) -> None:
    """End what another thread reads."""
    with contextlib.suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)
