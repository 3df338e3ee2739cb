"""The servers of a run: where a call goes and when, and what happens while a server is away.

The calls to a model wait in one queue, whatever the number of servers. A place that falls free goes
to the first of them, at the server where the call is expected to end first. How many places a
server has follows from its replies (`limits.Limit`). A server that is away gets no calls: they
wait, or go to the others, while it is asked for one token again and again until it answers.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakSet

from ollama_utils.errors import (
    BrokenReplyError,
    CallCancelledError,
    CallTimeoutError,
    ModelChangedError,
    OllamaError,
    OutageError,
    ServerBusyError,
    ServerOverloadedError,
    ServerUnreachableError,
)
from ollama_utils.limits import Cap, Limit
from ollama_utils.model_client import ModelClient
from ollama_utils.threads import POLL_S, start_thread
from ollama_utils.types import Usage, short_name

_ABSENCES = (ServerUnreachableError, CallTimeoutError, BrokenReplyError)
"""How a call fails whose server is away, or may be."""
Probe = Callable[[ModelClient, float], object]
"""Asks a client for one token, or as little, within so many seconds."""
_ABSENCES_UNTIL_AWAY = 3
"""After so many calls in a row that were late or broken off, the server counts as away."""
_FIRST_PROBE_S, _SHORTEST_PROBE_S = 2.0, 0.2
"""How long a probe is waited for: twice as long each time, for the server may load the model."""
_DIGESTS_S = 10.0
"""Between two checks that the models are still the same, while calls go out."""
_DECIDED_S = 0.02
"""How often a call that failed looks whether a probe has been answered."""
_SLOWER = 2.0
"""A server that takes so many times as long as another gets calls only while many wait."""
_AGE_SHARE = 0.5
"""If there has been a queue for t seconds, it is expected to last for this share of t more."""


class Server:
    """One server: its client, a limit for each model, and whether it is there.

    Args:
        client: the way to it.
        max_in_flight: the most calls at once to one of its models; None: it is found.
        slots: those of each of its models, where they are known.
        is_alone: whether there is no other; beside others one call to a model goes first, for the
            server may be slow, or load the model.
    """

    def __init__(
        self, client: ModelClient, max_in_flight: int | None, slots: int | None, *, is_alone: bool
    ) -> None:
        self.client, self.host = client, client.host
        self.limits: dict[str, Limit] = {}
        self.away_since_s: float | None = None
        """Since when it is away, by the monotonic clock; None: it is there."""
        self.failed_probe_s = self.back_s = -math.inf
        """When it failed a probe last, and when it was there again after it had been away."""
        self.is_watched = False
        """Whether a thread probes it until it answers."""
        self.why = ""
        self._max_in_flight, self._slots, self._is_alone = max_in_flight, slots, is_alone
        self._absences = 0
        self._digests: dict[str, str] = {}

    @property
    def is_away(self) -> bool:
        """Whether no call is sent there."""
        return self.away_since_s is not None

    def limit(self, model: str) -> Limit:
        """The limit of a model, by its short name."""
        if model not in self.limits:
            self.limits[model] = Limit(self._max_in_flight, self._slots)
        return self.limits[model]

    def has_room(self, model: str) -> bool:
        """Whether one more call may go there now."""
        limit = self.limit(model)
        most = limit.value if self._is_alone or limit.has_answered else 1
        return not self.is_away and limit.in_flight < most

    def answered(self) -> bool:
        """A call ended with a reply: it is there; returns whether it was away."""
        was_away = self.is_away
        if was_away:
            self.back_s = time.monotonic()
        self._absences, self.away_since_s = 0, None
        return was_away

    def failed(self, model: str, error: OllamaError) -> bool:
        """A call ended with an error; returns whether the server is away.

        - A server that answers with an error is there. "Busy" just after an absence proves nothing:
          the server may have been restarted, and be loading its model.
        - A timeout before the first reply proves nothing either: the server may be loading the
          model, or reading a long prompt.
        - If nothing listens at its address, one call is enough.
        """
        is_late = isinstance(error, CallTimeoutError) and not self.limit(model).has_answered
        is_busy = isinstance(error, ServerBusyError) and not isinstance(
            error, ServerOverloadedError
        )
        if not isinstance(error, _ABSENCES) and not (is_busy and self._absences):
            self._absences = 0
        elif not is_late:
            is_sure = isinstance(error, ServerUnreachableError)
            self._absences += _ABSENCES_UNTIL_AWAY if is_sure else 1
        if self._absences >= _ABSENCES_UNTIL_AWAY and not self.is_away:
            self.away_since_s, self.why = time.monotonic(), str(error)
        return self.is_away

    def models(self) -> dict[str, str]:
        """The models it has, each with what identifies its weights; its slots are noted.

        Raises:
            OllamaError: it gives no list.
        """
        found = self.client.models()
        self._digests = {short_name(name): digest for name, digest in found.items()}
        self._slots = self._slots or self.client.slots()
        return found

    def changed_model(self) -> str | None:
        """A model that is called and whose weights are not those of `models`; None: all are."""
        if not any(self._digests.values()):
            return None
        try:
            now = {short_name(name): digest for name, digest in self.client.models().items()}
        except OllamaError:  # calls will show whether it is there
            return None
        for name in list(self.limits):
            before, after = self._digests.get(name), now.get(name)
            if before and after and before != after:
                return name
        return None


@dataclass(eq=False)
class Place:
    """A call that waits for a place at a server, or has one."""

    model: str
    avoid: Collection[str]
    """Hosts to which it goes only where there is no other."""
    server: Server = field(init=False)
    """Where it has its place, once it has one."""
    has_place: bool = False
    wait_is_over: threading.Event = field(default_factory=threading.Event)
    sent_s: float = math.inf
    number: int = 0
    """The call's number at its `limit`, once it is sent."""

    @property
    def limit(self) -> Limit:
        """The limit that the call counts towards."""
        return self.server.limit(self.model)


class Servers:
    """All servers of a run, shared by all threads and by all dispatchers that send calls to them.

    Args:
        clients: one a server; a host that comes twice counts once.
        max_in_flight: the most calls at once to one model of one server; None: it is found.
        slots: those of each model, where they are known.
        timeout_s: the longest that a probe is waited for.
        apart_s: seconds between two probes of a server that is away.
        max_outage_s: seconds without any server after which every call raises OutageError. None:
            nothing waits for a server that is away, each call finds out for itself.
        ensure_running: is called before a probe; returns why no server will ever be there again,
            where that can be known, else None.
        report: is given a line for the user when an outage begins and ends.
    """

    def __init__(
        self,
        clients: Sequence[ModelClient],
        *,
        max_in_flight: int | None,
        slots: int | None,
        timeout_s: float,
        apart_s: float,
        max_outage_s: float | None,
        ensure_running: Callable[[], str | None],
        report: Callable[[str], None],
    ) -> None:
        by_host = {client.host: client for client in clients}
        is_alone = len(by_host) == 1
        self.all = [
            Server(client, max_in_flight, slots, is_alone=is_alone) for client in by_host.values()
        ]
        self.closed = threading.Event()
        """Set once no call goes out any more."""
        self._timeout_s, self._apart_s, self._max_outage_s = timeout_s, apart_s, max_outage_s
        self._ensure_running, self._report = ensure_running, report
        self._lock = threading.Lock()
        self._caps: WeakSet[Cap] = WeakSet()
        self._queues: dict[str, deque[Place]] = {}
        self._queued_since_s: dict[str, float] = {}
        """By model, since when its queue has never been empty."""
        self._error: Exception | None = None
        self._next_check_s = time.monotonic() + _DIGESTS_S

    def enter(self, model: str, avoid: Collection[str], cancelled: threading.Event) -> Place:
        """Wait for a place, and take it; whoever has one gives it back with `leave`.

        Args:
            model: the model's short name.
            avoid: hosts to which the call goes only where there is no other.
            cancelled: set once nobody waits for the call any more.

        Raises:
            CallCancelledError: no call goes out any more, or this one is cancelled.
            OutageError: no server was there for too long.
            ModelChangedError: a model is not what it was when the run began.
        """
        self._check_digests_now_and_then()
        place = Place(model, avoid)
        try:
            with self._lock:
                queue = self._queues.setdefault(model, deque())
                if not queue:
                    self._queued_since_s[model] = time.monotonic()
                queue.append(place)
                self._admit(model)
            while not place.wait_is_over.wait(POLL_S) and not cancelled.is_set():
                pass
        except BaseException:  # Ctrl-C, or an exit
            self._end_wait(place)
            if place.has_place:
                self.leave(place)
            raise
        self._end_wait(place)
        if not place.has_place:
            self.raise_if_ended()
            raise CallCancelledError("the run was stopped before the call was made")
        return place

    def leave(self, place: Place) -> None:
        """Give a place back."""
        with self._lock:
            place.limit.in_flight -= 1
            self._admit(place.model)

    def sent(self, place: Place) -> bool:
        """A call that has a place goes out; returns whether its reply is to be streamed."""
        with self._lock:
            place.sent_s = time.monotonic()
            place.number = place.limit.send(place.sent_s)
            return place.limit.is_long

    def answered(self, place: Place, usage: Usage | None) -> None:
        """A call ended with a reply."""
        with self._lock:
            place.limit.answer(place.number, time.monotonic(), usage)
            self._mark_present(place.server)

    def failed(self, place: Place, error: BaseException, probe: Probe) -> None:
        """A call ended with an error.

        Args:
            place: the call's.
            error: what it ended with.
            probe: asks for as little as possible in the way that this call asked.
        """
        server = place.server
        is_overload = isinstance(error, ServerOverloadedError)
        with self._lock:
            place.limit.fail(place.number, time.monotonic(), is_overload=is_overload)
            is_old = place.sent_s < server.back_s  # it failed in the last outage, which is over
            if self._max_outage_s is None or is_old or not isinstance(error, OllamaError):
                return
            must_probe = server.failed(place.model, error) and not server.is_watched
            server.is_watched |= must_probe
        if must_probe:
            start_thread(lambda: self._watch(server, probe))

    def was_away(self, place: Place, cancelled: threading.Event) -> bool:
        """Whether a call failed because its server was away.

        While the server counts as away, this waits for a probe: if that fails, the server was away,
        and if it is answered, the call failed by itself.
        """
        server = place.server
        while server.is_away and server.failed_probe_s < place.sent_s and not cancelled.is_set():
            cancelled.wait(_DECIDED_S)
        return server.failed_probe_s >= place.sent_s

    def raise_if_ended(self) -> None:
        """Raise what ended the run, if anything has.

        Raises:
            OutageError, ModelChangedError: it has ended.
        """
        if self._error is not None:
            raise self._error

    def capacities(self) -> dict[tuple[str, str], Limit]:
        """The limit of each model that was called, by host and short name."""
        with self._lock:
            return {
                (server.host, model): limit
                for server in self.all
                for model, limit in server.limits.items()
            }

    def models(self) -> dict[str, list[str]]:
        """The models that all servers have, as the first lists them, with their digests at each.

        Without retries. Where a server reports its slots, they are noted.

        Raises:
            OllamaError: a server gives no list.
        """
        first, *others = (server.models() for server in self.all)
        there = [{short_name(name): digest for name, digest in each.items()} for each in others]
        return {
            name: [digest, *(each[short_name(name)] for each in there)]
            for name, digest in first.items()
            if all(short_name(name) in each for each in there)
        }

    def new_cap(self, limit: int) -> Cap:
        """A cap on the calls made with it: so many attempts of theirs are under way at most.

        Raises:
            ValueError: the limit is less than 1.
        """
        cap = Cap(limit)
        with self._lock:
            self._caps.add(cap)
            if self.closed.is_set():
                cap.close()
        return cap

    def close(self, error: Exception | None = None) -> None:
        """Turn away all calls that wait and all later ones; an error is raised to all of them."""
        with self._lock:
            if not self.closed.is_set():
                self._error = error
            self.closed.set()
            for cap in self._caps:
                cap.close()
            for model in self._queues:
                self._admit(model)
        if self._error:
            self.abort()

    def abort(self) -> None:
        """End the calls that are under way."""
        for server in self.all:
            server.client.close()

    def _admit(self, model: str) -> None:
        """Let in whoever came first while there is room; the lock is held."""
        queue = self._queues.get(model, deque())
        for place in list(queue):
            if not self.closed.is_set():
                if not any(server.has_room(model) for server in self.all):
                    return
                if (server := self._best(place)) is None:
                    continue
                place.server, place.has_place = server, True
                place.limit.in_flight += 1
            queue.remove(place)
            place.wait_is_over.set()

    def _best(self, place: Place) -> Server | None:
        """The server to which a call goes now, if any has room; None where it had better wait."""
        if len(self.all) == 1:
            return self.all[0]
        model = place.model
        present = [server for server in self.all if not server.is_away]
        allowed = [each for each in present if each.host not in place.avoid] or present
        ready = [server for server in allowed if server.has_room(model)]
        if not ready:
            return None
        best = min(ready, key=lambda server: server.limit(model).order)
        service_s = best.limit(model).service_s
        limits = [server.limit(model) for server in allowed]
        quicker = [each for each in limits if 0 < _SLOWER * each.service_s < service_s]
        if quicker:
            rate = sum((each.slots or each.value) / each.service_s for each in quicker)
            age_s = time.monotonic() - self._queued_since_s[model]
            if max(len(self._queues[model]) / rate, _AGE_SHARE * age_s) < service_s:
                return None
        return best

    def _end_wait(self, place: Place) -> None:
        """Wait no longer, with a place or without."""
        with self._lock:
            if place in (queue := self._queues.get(place.model, deque())):
                queue.remove(place)

    def _watch(self, server: Server, probe: Probe) -> None:
        """Probe a server that is away until it answers; an error in this thread ends the run."""
        try:
            self._wait_for(server, probe)
        except Exception as error:  # noqa: BLE001 - raised to all who call
            self.close(error)

    def _wait_for(self, server: Server, probe: Probe) -> None:
        """Ask for a server that is away until it answers, or the run ends."""
        since_s = server.away_since_s or time.monotonic()
        max_outage_s = math.inf if self._max_outage_s is None else self._max_outage_s
        is_reported, probe_s = False, _FIRST_PROBE_S
        while server.is_away and not self.closed.is_set():
            if why := self._ensure_running():
                raise OutageError(why)
            left_s = max(_SHORTEST_PROBE_S, since_s + max_outage_s - time.monotonic())
            if self._answers_probe(server, probe, min(probe_s, self._timeout_s, left_s)):
                break
            server.failed_probe_s = time.monotonic()
            if not is_reported and server.is_away:
                is_reported = True
                self._report(self._outage_line(server))
            with self._lock:
                away = [each.away_since_s for each in self.all if each.away_since_s is not None]
            if len(away) == len(self.all) and time.monotonic() - max(away) > max_outage_s:
                whys = "; ".join(each.why for each in self.all)
                raise OutageError(
                    f"no server was there for {max_outage_s:g} s (--max-outage): {whys}"
                )
            self.closed.wait(self._apart_s)
            probe_s *= 2
        self._check_digests(server)
        if self.closed.is_set():
            return
        with self._lock:
            server.is_watched = False
            self._mark_present(server)
        if is_reported:
            after_s = time.monotonic() - since_s
            self._report(f"{server.host} answers again after {after_s:.0f} s: going on")

    def _check_digests_now_and_then(self) -> None:
        """Check now and then, beside the calls, that the models are still the same."""
        if time.monotonic() < self._next_check_s:
            return
        self._next_check_s = time.monotonic() + _DIGESTS_S
        for server in self.all:
            if not server.is_away:
                start_thread(partial(self._check_digests, server))

    def _check_digests(self, server: Server) -> None:
        """End the run if a server has another version of a model that is called."""
        if (model := server.changed_model()) and not self.closed.is_set():
            self.close(
                ModelChangedError(
                    f"model {model!r} at {server.host} is not the one that the run began with: "
                    "its digest changed. Pull that version again and go on with --resume, or "
                    "begin a new run"
                )
            )

    def _mark_present(self, server: Server) -> None:
        """Note that a server is there; if it was away, it gets calls again. The lock is held."""
        if server.answered():
            for model in self._queues:
                self._admit(model)

    def _answers_probe(self, server: Server, probe: Probe, within_s: float) -> bool:
        """Whether a server answers a probe, if only with an error: then calls are tried.

        "Busy" is no answer: it may still load the model, or a gateway says so in its absence.
        """
        try:
            probe(server.client, within_s)
        except (*_ABSENCES, ServerBusyError) as error:
            if not isinstance(error, CallTimeoutError):  # which says no more than what is known
                server.why = str(error)
            return False
        except OllamaError:
            return not self.closed.is_set()
        return True

    def _outage_line(self, server: Server) -> str:
        line = f"{server.host} is away ({server.why})"
        if any(not other.is_away for other in self.all):
            return f"{line}: its calls go to the other servers until it is back"
        ends = f"the run ends after {self._max_outage_s:g} s (--max-outage)"
        return f"{line}: waiting for it; {ends}"
