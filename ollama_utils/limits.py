"""What one server takes: a gate for each model, whose limit is given or follows what the replies report.

`capacity` finds the limit, `swaps` opens the gates by turns where models do not fit into the server's memory
together, `health` knows whether the server is there. Which server a call goes to is for `fleet` to say.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from ollama_utils.capacity import Capacity, CapacityEstimate, SentCall
from ollama_utils.errors import OllamaError, ServerOverloadedError
from ollama_utils.gates import CallQueue, Gate
from ollama_utils.health import Health
from ollama_utils.model_client import ModelClient
from ollama_utils.swaps import Swaps
from ollama_utils.types import Usage, short_name

MaxInFlight = int | Literal["auto"]
"""The most calls at once to one model of one server; `auto`: more than it serves, as its replies show."""
_LONG_S = 5.0
"""A call that takes longer is streamed: its words show that the server is at work."""
_SHARE = 1 / 8
"""The weight of the newest call in the mean time of calls."""


class Owner(Protocol):
    """Who has the servers; see `ollama_utils.fleet.Fleet`."""

    @property
    def is_one(self) -> bool:
        """Whether there is one server alone.

        Of several, each has one call under way to a model until it has answered: it may be slow, or load the
        model first.
        """
        ...

    def queue(self, model: str) -> CallQueue:
        """The queue in which the calls to a model wait, by its short name."""
        ...

    def gone(self, server: Server) -> None:
        """Hear that a server is away from now on."""
        ...


@dataclass
class Admission:
    """A call that was let out to a server; whoever made it notes here what the server reported."""

    host: str = ""
    """The server."""
    sent_s: float = math.nan
    """When it was let out, by the monotonic clock."""
    streams: bool = False
    """Whether the reply is to come word by word."""
    usage: Usage | None = None
    """None when it failed, or nothing was reported."""


class Server:
    """One server as its callers see it: its client, a gate for each model, and its health.

    Args:
        client: the way to it.
        max_in_flight: the most calls at once to one of its models, or `auto`.
        owner: has the queues in which calls wait, and hears when this server goes away.
    """

    def __init__(self, client: ModelClient, *, max_in_flight: MaxInFlight, owner: Owner) -> None:
        self.client = client
        self.health = Health()
        self.swaps = Swaps(lambda: self.gates, waiting=lambda model: owner.queue(model).waiting)
        self._max_in_flight = max_in_flight
        self._owner = owner
        self._digests: dict[str, str] = {}
        self._looked_s = time.time()
        self.is_looked_at = False
        """Whether it is being asked for its models: it may be slow to tell."""
        self.probe: Callable[[ModelClient, float], object] = lambda client, _within_s: (
            client.models()
        )
        """Asks a client for one token, or as little, as the latest call did, within so many seconds."""
        self._services: dict[str, _ModelLimit] = {}
        self._told_slots: int | None = None
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

    def models(self) -> dict[str, str]:
        """The models it has, each with what stands for its weights; where it tells its slots, they are noted.

        Raises:
            OllamaError: it gives no list.
        """
        found = self.client.models()
        self._digests = {short_name(name): digest for name, digest in found.items()}
        self._told_slots = self.client.slots()
        return found

    def digest(self, model: str) -> str:
        """What stands for the weights of a model, as they were at the first look; "": it is not known."""
        return self._digests.get(model, "")

    def changed_model(self) -> tuple[str, float] | None:
        """A model that is called and whose weights are not those of the first look; None: all are.

        What the server does not tell has not changed.

        Returns:
            The model, and when its weights were still the same, by `time.time`.
        """
        asked_s = time.time()
        self.is_looked_at = True
        try:
            found = {short_name(name): digest for name, digest in self.client.models().items()}
        except OllamaError:
            return None
        finally:
            self.is_looked_at = False
        for model in self.gates:
            before, now = (
                self._digests.setdefault(model, found.get(model, "")),
                found.get(model, ""),
            )
            if before and now and before != now:
                return model, self._looked_s
        self._looked_s = asked_s
        return None

    def gate(self, model: str) -> Gate:
        """The gate of a model, made where there is none; `x` and `x:latest` are one."""
        return self._service(short_name(model)).gate

    def follow_health(self) -> None:
        """Let nobody in while it is away, and let them in again once it is back."""
        with self._lock:  # so that whoever comes last goes by what holds then
            for service in self._services.values():
                service.gate.held = self.health.is_away

    def capacities(self) -> dict[str, CapacityEstimate]:
        """What is known of its capacity for each model called so far, by short name."""
        with self._lock:
            services = dict(self._services)
        return {name: service.found() for name, service in services.items()}

    @contextmanager
    def under_way(self, model: str, admission: Admission) -> Iterator[None]:
        """Within `with`: a call with a place in the model's gate is under way; what becomes of it is noted."""
        service = self._service(short_name(model))
        sent = service.sent()
        admission.sent_s, admission.streams = sent.sent_s, service.is_long
        self.health.sent()
        error: BaseException | None = None
        try:
            yield
        except BaseException as failure:
            error = failure
            raise
        finally:
            service.came_back(sent, admission.usage, error)
            if self.health.over(error):
                self._owner.gone(self)

    def _service(self, name: str) -> _ModelLimit:
        with self._lock:
            if name not in self._services:
                gate = Gate(1, host=self.host, queue=self._owner.queue(name))
                gate.held = self.health.is_away
                service = _ModelLimit(gate, self._max_in_flight, self._told_slots, self._owner)
                self._services[name] = service
            return self._services[name]


_FEWER = 4
"""After a fault for want of memory, one call in so many goes out no more; one at least."""
_RECOVERY = 8
"""Rounds of replies without such a fault after which one call more goes out."""


class _ModelLimit:
    """One model at one server: its gate, whose limit is given or follows what its replies report."""

    def __init__(
        self, gate: Gate, max_in_flight: MaxInFlight, told_slots: int | None, owner: Owner
    ) -> None:
        self.gate = gate
        self._given = None if max_in_flight == "auto" else max_in_flight
        self._capacity = Capacity(told_slots)
        self._most = math.inf
        """No more go out at once: with more, the server dropped them all."""
        self._lowered_s = -math.inf
        self._owner = owner
        self.has_answered = False
        """Whether any call was answered."""
        self._call_s = 0.0
        self._lock = threading.Lock()
        self._follow()

    def sent(self) -> SentCall:
        """A call that was let in goes out."""
        with self._lock:
            return self._capacity.sent(time.monotonic())

    @property
    def is_long(self) -> bool:
        """Whether calls take so long, or may, that they are streamed."""
        return not 0 < self._call_s <= _LONG_S

    def came_back(self, sent: SentCall, usage: Usage | None, error: BaseException | None) -> None:
        """A call is over; what it reported moves the limit."""
        if isinstance(error, ServerOverloadedError):
            self._lower(sent)
        with self._lock:
            now_s = time.monotonic()
            self._capacity.came_back(sent, now_s, usage)
            if error is None:
                self._most += 1 / (_RECOVERY * self._most)
                self.has_answered = True
                self._note_time(usage or Usage(), now_s - sent.sent_s)
            self._follow()

    def found(self) -> CapacityEstimate:
        """What is known of the capacity, with the limit that holds."""
        with self._lock:
            return replace(self._capacity.found, limit=self.gate.limit)

    def _note_time(self, usage: Usage, trip_s: float) -> None:
        """Note how long a call took once it was served, a load of the model included; the lock is held.

        Args:
            usage: what the server reported.
            trip_s: seconds by our own clock, for a server that reports none.
        """
        call_s = usage.total_s - usage.queue_s if usage.total_s else trip_s
        self._call_s += (call_s - self._call_s) * (_SHARE if self._call_s else 1.0)
        if not self._owner.is_one:
            self.gate.call_s, self.gate.slots = self._call_s, self._capacity.slots

    def _lower(self, sent: SentCall) -> None:
        """The server dropped all it was doing, for too many were under way: fewer from now on.

        Those that went out before the limit was lowered fell with this one, and tell nothing new.
        """
        with self._lock:
            if sent.sent_s > self._lowered_s:
                self._lowered_s = time.monotonic()
                under_way = self.gate.in_flight
                self._most = max(1, under_way - max(1, under_way // _FEWER))
                self._follow()

    @property
    def _limit(self) -> int:
        if not (self._owner.is_one or self.has_answered):
            return 1
        return int(min(self._given or self._capacity.limit, self._most))

    def _follow(self) -> None:
        if self._limit != self.gate.limit:
            self.gate.limit = self._limit
