"""The simulator as a process of its own, which ends when whoever started it ends."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from simulator.child import ChildError, ChildServer
from simulator.names import FORMAT
from simulator.settings import Settings

_REPLY_S = 10.0


class SimulatorError(ChildError):
    """The embedded simulator did not start, or does not answer."""


class EmbeddedServer(ChildServer):
    """A simulator in its own process, as a context manager; see `ChildServer`.

    A restart keeps its settings and slots. Lost are counts, outage, pace, digests, and the faults that were
    set after the start; those of the settings begin anew.

    Args:
        settings: what it serves.
        start_s: seconds it may take until it listens.

    Raises:
        SimulatorError: it did not start; the message carries the last line it wrote on stderr.
    """

    error = SimulatorError

    def __init__(self, settings: Settings, *, start_s: float = 60.0) -> None:
        self.settings = settings
        self._restarts_before = 0
        super().__init__("simulator", [_as_json(settings)], what="embedded simulator", start_s=start_s)

    def stats(self) -> dict[str, Any]:
        """What the server saw since the start or the last reset; with `restarts`, how often it died since.

        A server that dies takes its counts along: with `restarts` above 0 they are those since the last.
        """
        restarts = self.restarts - self._restarts_before
        return self._request("GET", "/simulator/stats") | {"restarts": restarts}

    def reset_stats(self) -> dict[str, Any]:
        """Zero the counts; gives what they were."""
        restarts = self.restarts - self._restarts_before
        self._restarts_before = self.restarts
        return self._request("DELETE", "/simulator/stats") | {"restarts": restarts}

    def set_faults(self, faults: Sequence[dict[str, Any]]) -> None:
        """Play these faults from now on: `[{"kind": "drop", "rate": 0.1, "at": "body"}]` and the like.

        Raises:
            ValueError: one of them cannot be; the message says what was expected.
        """
        self._request("POST", "/simulator/faults", list(faults))

    def set_slots(self, slots: int) -> None:
        """Give every model this many slots from now on, also after a restart."""
        self._request("POST", "/simulator/slots", {"slots": slots})
        self._arguments = [_as_json(replace(self.settings, slots=slots))]

    def set_outage(
        self,
        mode: Literal["hang", "drop"],
        *,
        at: Literal["calls", "all"] = "calls",
        for_s: float | None = None,
    ) -> None:
        """Have the whole server fail from now on; see `simulator.outages`.

        Args:
            mode: `hang` holds requests until the outage ends; `drop` resets their connections.
            at: `calls`, so that the server still tells of itself as if it were well; `all`, everything.
            for_s: seconds by the wall clock; None is until `end_outage`.

        Raises:
            ValueError: it cannot be; the message says what was expected.
        """
        self._request("POST", "/simulator/outage", {"mode": mode, "at": at, "for_s": for_s})

    def end_outage(self) -> None:
        """End the outage, if there is one."""
        self._request("DELETE", "/simulator/outage")

    def set_pace(self, factor: float) -> None:
        """Have everything take `factor` times as long as in the settings from now on, also what is under way.

        Raises:
            ValueError: the factor is no number from 0.001 to 1,000,000.
        """
        self._request("POST", "/simulator/pace", {"factor": factor})

    def set_digest(self, model: str, digest: str | None = None) -> str:
        """Give a model another digest, as a pull of a new version does; what it says stays as it is.

        Args:
            model: its name.
            digest: 64 hexadecimal digits; None makes one up.

        Raises:
            ValueError: there is no such model, or that is no digest.
        """
        return str(self._request("POST", "/simulator/digest", {"model": model, "digest": digest})["digest"])

    def _request(self, method: str, path: str, payload: object = None) -> dict[str, Any]:
        address = urlsplit(self.host)
        connection = HTTPConnection(str(address.hostname), address.port, timeout=_REPLY_S)
        try:
            body = None if payload is None else json.dumps(payload)
            connection.request(method, path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            answer: dict[str, Any] = json.loads(reply.read())
        except (OSError, HTTPException, ValueError) as error:
            raise SimulatorError(
                f"the embedded simulator at {self.host} does not answer: {error!r}"
            ) from error
        finally:
            connection.close()
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer


def _as_json(settings: Settings) -> str:
    return json.dumps(asdict(settings))


_PROBE_REPLY_S = 5.0
_PROBE_BYTES = 2**20
_OK = 200


def is_simulator(host: str) -> bool:
    """Whether the server at this URL is the simulator: a real one has no models of that format.

    Its models tell, since the routes under `/simulator/` are closed to other machines. Servers of any kind
    are asked: none is followed elsewhere, and none can send for longer or more.
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
        connection.request("GET", f"{address.path}/api/tags", headers={"Accept-Encoding": "identity"})
        reply = connection.getresponse()
        models = json.loads(reply.read(_PROBE_BYTES))["models"]
        return reply.status == _OK and any(model["details"]["format"] == FORMAT for model in models)
    except (OSError, HTTPException, ValueError, TypeError, LookupError, RecursionError):
        return False
    finally:
        patience.cancel()
        connection.close()


def _hang_up(connection: HTTPConnection) -> None:
    """End what another thread reads."""
    with contextlib.suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)
