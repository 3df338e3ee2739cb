"""What the dispatcher keeps of one server: its client, and for each model a gate and what it can take."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Protocol, Self, cast

from ollama_utils.capacity import START, Capacity, Found, Ticket
from ollama_utils.client import OllamaClient
from ollama_utils.errors import ServerUnreachableError
from ollama_utils.gate import Gate
from ollama_utils.swaps import Swaps
from ollama_utils.types import Usage, short_name

_AWAY_S = 5.0
"""How long a server where nobody answered is the last to be asked."""
MaxInFlight = int | Literal["auto"]
"""The most calls at once to one model of one server; `auto`: as many as its replies tell that it can take."""


class Watcher(Protocol):
    """Hears of every call to a server; called from many threads, while no gate's lock is held."""

    def came(self, model: str) -> None:
        """A call comes to the gate of a model (its short name), and is not yet in line."""

    def left(self, model: str, sent_s: float | None, now_s: float, usage: Usage | None) -> None:
        """A call is over, and its place in the gate is free.

        Args:
            model: the model's short name.
            sent_s: when it was let in, by the monotonic clock; None: never.
            now_s: the time now.
            usage: what the server reported; None when the call failed or nothing was reported.
        """


class Server:
    """One server as its callers see it: a place for each call, and one who hears of every reply.

    Args:
        client: the way to it.
        max_in_flight: the most calls at once to one of its models, or `auto`.
    """

    def __init__(self, client: OllamaClient, *, max_in_flight: MaxInFlight) -> None:
        self.client = client
        self.swaps = Swaps(lambda: self.gates)
        self.watchers: list[Watcher] = [self.swaps]
        self._max_in_flight = max_in_flight
        self._services: dict[str, _Service] = {}
        self._closed = False
        self._back_s = -math.inf
        self._lock = threading.Lock()

    @property
    def host(self) -> str:
        """The server's base URL."""
        return self.client.host

    @property
    def gates(self) -> Mapping[str, Gate]:
        """The gates of the models that were called so far, by short name."""
        with self._lock:
            return {name: service.gate for name, service in self._services.items()}

    @property
    def is_away(self) -> bool:
        """Whether nobody answered there a moment ago."""
        return time.monotonic() < self._back_s

    def note(self, error: BaseException) -> None:
        """Hear of a call that failed."""
        if isinstance(error, ServerUnreachableError):
            self._back_s = time.monotonic() + _AWAY_S

    def gate(self, model: str) -> Gate:
        """The gate of a model; `x` and `x:latest` are one."""
        return self._service(short_name(model)).gate

    def capacities(self) -> dict[str, Found]:
        """What is known of its capacity for each model called so far, by short name."""
        with self._lock:
            services = dict(self._services)
        return {name: service.found() for name, service in services.items()}

    def visit(
        self, model: str, *, cap: Gate | None = None, token: Callable[[], float] | None = None
    ) -> Visit:
        """Within `with`: wait for a place in a model's gate, and hold it.

        Args:
            model: the model's name.
            cap: a gate of the caller's own. It comes second: who waits for the model holds no place in it.
            token: waits until the rate allows the call, and gives the moment from which it did. It comes
                last, so that calls go out at the rate at which tokens come.

        Raises:
            CallCancelledError: the server's gates are closed, or the caller's.
        """
        name = short_name(model)
        return Visit(name, self._service(name), self.watchers, cap, token)

    def cancel(self) -> None:
        """Turn away all who wait for a place and all who come later."""
        with self._lock:
            self._closed = True
            services = list(self._services.values())
        for service in services:
            service.gate.close()

    def close(self) -> None:
        """Cancel, and drop the idle connections."""
        self.cancel()
        self.client.close()

    def _service(self, name: str) -> _Service:
        with self._lock:
            if name not in self._services:
                self._services[name] = _Service(self._max_in_flight)
                if self._closed:
                    self._services[name].gate.close()
            return self._services[name]


class _Service:
    """One model at one server: its gate, whose limit follows what its replies tell."""

    def __init__(self, max_in_flight: MaxInFlight) -> None:
        self._follows = max_in_flight == "auto"
        self.gate = Gate(START if max_in_flight == "auto" else max_in_flight)
        self._capacity = Capacity()
        self._lock = threading.Lock()

    def sent(self, admitted_s: float) -> Ticket:
        """A call that was let in goes out."""
        with self._lock:
            sent_s = time.monotonic()
            ticket = self._capacity.sent(sent_s, waking_s=sent_s - admitted_s)
            self._follow()
        return ticket

    def came_back(self, ticket: Ticket, usage: Usage | None) -> None:
        """It is over."""
        with self._lock:
            self._capacity.came_back(ticket, time.monotonic(), usage)
            self._follow()

    def found(self) -> Found:
        """What is known of the capacity, with the limit that holds."""
        with self._lock:
            found = self._capacity.found
            return found if self._follows else replace(found, limit=self.gate.limit)

    def _follow(self) -> None:
        if self._follows and self.gate.limit != self._capacity.limit:
            self.gate.limit = self._capacity.limit


class Visit:
    """A call that waits at a gate, and is inside; whoever made it notes here what the server reported."""

    def __init__(
        self,
        model: str,
        service: _Service,
        watchers: Sequence[Watcher],
        cap: Gate | None = None,
        token: Callable[[], float] | None = None,
    ) -> None:
        self.sent_s = math.nan
        """When it was let in, by the monotonic clock; before that no number."""
        self.usage: Usage | None = None
        self._model = model
        self._service = service
        self._watchers = watchers
        self._gates = (service.gate,) if cap is None else (service.gate, cap)
        self._token = token
        self._entered: list[Gate] = []
        self._ticket: Ticket | None = None

    def __enter__(self) -> Self:
        for watcher in self._watchers:
            watcher.came(self._model)
        try:
            self._ticket = self._service.sent(self._admitted_s())
            self.sent_s = self._ticket.sent_s
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._service.came_back(cast("Ticket", self._ticket), self.usage)
        finally:
            self._leave()

    def _admitted_s(self) -> float:
        """Wait for all that is waited for; the moment since when nothing was in the way."""
        admitted_s = -math.inf
        for gate in self._gates:
            admitted_s = max(admitted_s, gate.enter())
            self._entered.append(gate)
        return admitted_s if self._token is None else max(admitted_s, self._token())

    def _leave(self) -> None:
        while self._entered:
            self._entered.pop().leave()
        self._tell()

    def _tell(self) -> None:
        sent_s = None if self._ticket is None else self.sent_s
        for watcher in self._watchers:
            watcher.left(self._model, sent_s, time.monotonic(), self.usage)
