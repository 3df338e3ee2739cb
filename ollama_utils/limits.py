"""What one server takes: a gate for each model, whose limit is given or follows what the replies report.

`capacity` finds the limit, `swaps` opens the gates by turns where models do not fit into the server's memory
together, `health` knows whether the server is there. Which server a call goes to is for `fleet` to say.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Literal, Protocol

from ollama_utils.capacity import Capacity, CapacityEstimate, SentCall
from ollama_utils.errors import OllamaError, ServerOverloadedError
from ollama_utils.gates import CallQueue, Gate
from ollama_utils.health import SILENT_S, Health
from ollama_utils.http import call_watch
from ollama_utils.swaps import Swaps
from ollama_utils.types import Usage, short_name
from ollama_utils.wires import ModelClient

MaxInFlight = int | Literal["auto"]
"""The most calls at once to one model of one server; `auto`: more than it serves, as its replies show."""
_LONG_S = SILENT_S
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

    def check(self, server: Server, *, may_move: bool) -> None:
        """Raise what ends a call to a server that is under way, if anything does.

        Args:
            server: where it is.
            may_move: whether it is to go to another server where this one is away.
        """
        ...


@dataclass
class Admission:
    """A call that was let out to a server; whoever made it notes here what the server reported."""

    host: str = ""
    """The server."""
    sent_s: float = math.nan
    """When it was let out, by the monotonic clock."""
    may_move: bool = True
    """Whether it goes to another server if this one turns out to be away."""
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
        self.probe: Callable[[ModelClient], object] = methodcaller("models")
        """Asks a client for one token, or as little, as the latest call did."""
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
            before, now = self._digests.setdefault(model, found.get(model, "")), found.get(model, "")
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
        """Within `with`: a call with a place in the model's gate is under way; what becomes of it is noted.

        The time that its reply may take counts from when the last call that was sent before it was answered:
        until then it may have waited in the server's queue.
        """
        service = self._service(short_name(model))
        sent = service.sent()
        admission.sent_s, admission.streams = sent.sent_s, service.is_long
        self.health.sent()
        token = call_watch.set(_Watch(self, service, sent, admission))
        error: BaseException | None = None
        try:
            yield
        except BaseException as failure:
            error = failure
            raise
        finally:
            call_watch.reset(token)
            service.came_back(sent, admission.usage, error)
            if self.health.over(error):
                self._owner.gone(self)

    def check(self, *, may_move: bool) -> None:
        """Raise what ends a call to this server that is under way, if anything does.

        Args:
            may_move: whether it is to go to another server where this one is away.
        """
        if self.health.has_fallen_silent():
            self._owner.gone(self)
        self._owner.check(self, may_move=may_move)

    def _service(self, name: str) -> _ModelLimit:
        with self._lock:
            if name not in self._services:
                gate = Gate(1, host=self.host, queue=self._owner.queue(name))
                gate.held = self.health.is_away
                service = _ModelLimit(gate, self._max_in_flight, self._told_slots, self._owner)
                self._services[name] = service
            return self._services[name]


class _Watch:
    """Watches one call for the HTTP client; see `ollama_utils.http.CallWatch`."""

    def __init__(self, server: Server, service: _ModelLimit, sent: SentCall, admission: Admission) -> None:
        self._server = server
        self._service = service
        self._sent = sent
        self._admission = admission
        self._last_s = -math.inf

    def counts_from_s(self) -> float:
        """Since when the reply can be late: since the last one before it, or since its own last word."""
        return max(self._service.answered_before_s(self._sent), self._last_s)

    def arrived(self) -> None:
        """Some of the reply came."""
        self._server.health.received()
        if self._admission.streams:
            self._last_s = time.monotonic()

    def check(self) -> None:
        """Raise what ends the call.

        A first one may have its model loaded, silently: another server might have to load it, too, and Ollama
        gives up a load whose call was ended.
        """
        self._server.check(may_move=self._admission.may_move and self._service.has_answered)


_REMEMBERED = 4096
"""Replies whose ends are kept, for the timeouts of the calls sent after them."""


_FEWER = 4
"""After a fault for want of memory, one call in so many goes out no more; one at least."""
_RECOVERY = 8
"""Rounds of replies without such a fault after which one call more goes out."""


class _ModelLimit:
    """One model at one server: its gate, whose limit is given or follows what its replies report."""

    def __init__(self, gate: Gate, max_in_flight: MaxInFlight, told_slots: int | None, owner: Owner) -> None:
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
        self._replies: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)
        """Which calls were answered, by their numbers, and when."""
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
                self._replies.append((sent.number, now_s))
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

    def answered_before_s(self, sent: SentCall) -> float:
        """When the last reply came to a call that was sent before this one, by the monotonic clock."""
        with self._lock:
            return max((at_s for number, at_s in self._replies if number < sent.number), default=-math.inf)
