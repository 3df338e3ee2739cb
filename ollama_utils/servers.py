"""The servers of a dispatcher together: which one a call goes to, and what all of them have."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from weakref import WeakSet

from ollama_utils.capacity import Found
from ollama_utils.client import OllamaClient
from ollama_utils.errand import Errand
from ollama_utils.gate import Gate
from ollama_utils.server import MaxInFlight, Server
from ollama_utils.types import short_name


class Servers:
    """One or several servers, each with its gates.

    Args:
        clients: the way to each; a host that comes twice counts once.
        max_in_flight: the most calls at once to one model of one server, or `auto`.

    Raises:
        ValueError: the limit is below 1.
    """

    def __init__(self, clients: Iterable[OllamaClient], *, max_in_flight: MaxInFlight) -> None:
        if max_in_flight != "auto" and max_in_flight < 1:
            raise ValueError(f"max_in_flight must be 'auto' or at least 1, got {max_in_flight!r}")
        self._by_host = {client.host: Server(client, max_in_flight=max_in_flight) for client in clients}
        self._caps: WeakSet[Gate] = WeakSet()
        self._cancelled = False
        self._lock = threading.Lock()

    def __getitem__(self, host: str) -> Server:
        return self._by_host[host]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Their base URLs."""
        return tuple(self._by_host)

    def new_cap(self, limit: int) -> Gate:
        """A gate over all of them for those who bring it to their visits; it is closed with theirs."""
        cap = Gate(limit)
        with self._lock:
            self._caps.add(cap)
            if self._cancelled:
                cap.close()
        return cap

    def route(self, errand: Errand) -> Server:
        """The server with the most room for a model; those that are away, or failed this call, come last."""

        def merits(server: Server) -> tuple[bool, bool, int]:
            return not server.is_away, server.host not in errand.hosts, server.gate(errand.model).room

        first, *others = self._by_host.values()
        return max((first, *others), key=merits) if others else first

    def models(self) -> dict[str, list[str]]:
        """The models that every server has, as the first one lists them, each with its digest at each server.

        Raises:
            OllamaError: a server gives no list.
        """
        first, *others = (server.client.models() for server in self._by_host.values())
        digests = [{short_name(name): digest for name, digest in there.items()} for there in others]
        return {
            name: [digest, *(there[short_name(name)] for there in digests)]
            for name, digest in first.items()
            if all(short_name(name) in there for there in digests)
        }

    def capacities(self) -> dict[tuple[str, str], Found]:
        """What is known of the capacity for each model called so far, by host and short name."""
        return {
            (host, model): found
            for host, server in self._by_host.items()
            for model, found in server.capacities().items()
        }

    def cancel(self) -> None:
        """Turn away all who wait for a place and all who come later."""
        with self._lock:
            self._cancelled = True
            caps = list(self._caps)
        for cap in caps:
            cap.close()
        for server in self._by_host.values():
            server.cancel()

    def close(self) -> None:
        """Cancel, and drop the idle connections."""
        self.cancel()
        for server in self._by_host.values():
            server.close()
