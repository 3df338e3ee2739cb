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
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakSet

from ollama_utils.errors import (
    BrokenReplyError,
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

Probe = Callable[[ModelClient, float], object]
"""Asks a client for one token, or as little, within so many seconds."""
# How a call fails whose server is away, or may be; if so many in a row do, it counts as away.
_ABSENCES, _UNTIL_AWAY = (ServerUnreachableError, CallTimeoutError, BrokenReplyError), 3
# How long a probe is waited for: twice as long each time, for the server may load the model.
_FIRST_PROBE_S, _SHORTEST_PROBE_S = 2.0, 0.2
_DIGESTS_S = 10.0  # between two checks that the models are still the same, while calls go out
_DECIDED_S = 0.02  # how often a call that failed looks whether a probe has been answered
_SLOWER = 2.0  # a server so many times as slow as another gets calls only while many wait
_AGE_SHARE = 0.5  # a queue that has been there for t seconds is expected to last so many t more


class Server:
    """One server: its client, a limit for each model, and whether it is there.

    Unless it is alone, one call to a model goes first: it may be slow, or load the model.
    """

    def __init__(
        self, client: ModelClient, max_in_flight: int | None, slots: int | None, *, is_alone: bool
    ) -> None:
        self.client, self.host = client, client.host
        self.limits: dict[str, Limit] = {}
        self.away_since_s: float | None = None
        """Since when it is away, by the monotonic clock; None: it is there."""
        self.failed_probe_s = self.back_s = -math.inf  # its last failed probe, its last return
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

    def answered(self) -> None:
        """A call or a probe was answered: it is there."""
        if self.is_away:
            self.back_s = time.monotonic()
        self._absences, self.away_since_s = 0, None

    def failed(self, model: str, error: OllamaError) -> None:
        """A call ended with an error; the server may count as away from then on.

        - A server that answers with an error is there. "Busy" just after an absence proves nothing:
          the server may have been restarted, and be loading its model.
        - A timeout before the first reply proves nothing either: the server may be loading the
          model, or reading a long prompt.
        - If nothing listens at its address, one call is enough.
        """
        is_late = isinstance(error, CallTimeoutError) and not self.limit(model).has_answered
        is_busy = type(error) is ServerBusyError
        if not isinstance(error, _ABSENCES) and not (is_busy and self._absences):
            self._absences = 0
        elif isinstance(error, ServerUnreachableError):
            self._absences = _UNTIL_AWAY
        elif not is_late:
            self._absences += 1
        if self._absences >= _UNTIL_AWAY and not self.is_away:
            self.away_since_s, self.why = time.monotonic(), str(error)

    def models(self) -> dict[str, str]:
        """The models it has by short name, and what identifies their weights; slots are noted.

        Raises:
            OllamaError: it gives no list.
        """
        self._digests = self._list()
        self._slots = self._slots or self.client.slots()
        return self._digests

    def changed_model(self) -> str | None:
        """A model that is called and whose weights are not those of `models`; None: all are."""
        if not any(self._digests.values()):
            return None
        try:
            now = self._list()
        except OllamaError:  # calls will show whether it is there
            return None
        for name in list(self.limits):
            before, after = self._digests.get(name), now.get(name)
            if before and after and before != after:
                return name
        return None

    def _list(self) -> dict[str, str]:
        return {short_name(name): digest for name, digest in self.client.models().items()}


@dataclass(eq=False)
class Place:
    """A call that waits for a place at a server, or has one."""

    model: str
    avoid: Collection[str]
    """Hosts to which it goes only where there is no other."""
    cap: Cap
    server: Server = field(init=False)
    """Where it has its place, once it has one."""
    has_place: bool = False
    wait_is_over: threading.Event = field(default_factory=threading.Event)
    sent_s: float = math.inf

    @property
    def limit(self) -> Limit:
        """The limit that the call counts towards."""
        return self.server.limit(self.model)


class Servers:
    """All servers of a run, shared by all threads and by all dispatchers that send calls to them.

    Args:
        clients: one a server; a host that comes twice counts once.
        apart_s: seconds between two probes of a server that is away.

    The other arguments are those of `Dispatcher`.
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
        self._timeout_s, self._apart_s, self._max_outage_s = timeout_s, apart_s, max_outage_s
        self._ensure_running, self._report = ensure_running, report
        self._lock = threading.Lock()
        self.no_cap = Cap(math.inf)
        """That of the calls that are made with none."""
        self.closed = self.no_cap.closed
        """Set once no call goes out any more."""
        self._caps = WeakSet([self.no_cap])
        self._queues: defaultdict[str, deque[Place]] = defaultdict(deque)
        self._queued_since_s: dict[str, float] = {}  # since when a queue has never been empty
        self._error: Exception | None = None
        self._next_check_s = time.monotonic() + _DIGESTS_S

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

    def enter(self, model: str, avoid: Collection[str], cap: Cap) -> Place:
        """Wait for a place, and take it; whoever has one gives it back with `leave`.

        The call goes to the hosts `avoid` only where there is no other, and holds a place in its
        `cap`, too.

        Raises:
            CallCancelledError: no call goes out any more, or none with this cap.
            OutageError: no server was there for too long.
            ModelChangedError: a model is not what it was when the run began.
        """
        self._check_digests_now_and_then()
        place = Place(model, avoid, cap)
        try:
            with self._lock:
                queue = self._queues[model]
                if not queue:
                    self._queued_since_s[model] = time.monotonic()
                queue.append(place)
                self._admit()
            while not place.wait_is_over.wait(POLL_S) and not cap.closed.is_set():
                pass
            self.raise_if_ended()
            cap.raise_if_closed()
        except BaseException:  # Ctrl-C and exits, too
            self.leave(place)
            raise
        return place

    def leave(self, place: Place) -> None:
        """Give a place back, or wait for it no longer."""
        with self._lock:
            if place.has_place:
                place.limit.in_flight -= 1
                place.cap.in_flight -= 1
            elif place in self._queues[place.model]:
                self._queues[place.model].remove(place)
            self._admit()

    def sent(self, place: Place) -> bool:
        """A call that has a place goes out; returns whether its reply is to be streamed."""
        with self._lock:
            place.sent_s = time.monotonic()
            place.limit.send(place.sent_s)
            return place.limit.is_long

    def answered(self, place: Place, usage: Usage | None) -> None:
        """A call ended with a reply."""
        with self._lock:
            place.limit.answer(place.sent_s, time.monotonic(), usage)
            place.server.answered()

    def failed(self, place: Place, error: BaseException, probe: Probe) -> None:
        """A call ended with an error; `probe` asks for as little as possible in the same way."""
        server, is_overload = place.server, isinstance(error, ServerOverloadedError)
        with self._lock:
            place.limit.fail(place.sent_s, time.monotonic(), is_overload=is_overload)
            is_old = place.sent_s < server.back_s  # it failed in the last outage, which is over
            if self._max_outage_s is None or is_old or not isinstance(error, OllamaError):
                return
            was_away = server.is_away
            server.failed(place.model, error)
            since_s = None if was_away else server.away_since_s
        if since_s is not None:
            start_thread(lambda: self._watch(server, since_s, probe))

    def was_away(self, place: Place) -> bool:
        """Whether a call failed because its server was away.

        While the server counts as away, this waits for a probe: if that fails, the server was away,
        and if it is answered, the call failed by itself.
        """
        server, cancelled = place.server, place.cap.closed
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
        """The models that all servers have, by short name, with their digests at each.

        Without retries. Where a server reports its slots, they are noted.

        Raises:
            OllamaError: a server gives no list.
        """
        first, *others = (server.models() for server in self.all)
        return {
            name: [digest, *(other[name] for other in others)]
            for name, digest in first.items()
            if all(name in other for other in others)
        }

    def close(self, error: Exception | None = None) -> None:
        """Turn away all calls that wait and all later ones; an error is raised to all of them."""
        with self._lock:
            if not self.closed.is_set():
                self._error = error
            for cap in self._caps:
                cap.close()
            self._admit()
        if self._error:
            self.abort()

    def abort(self) -> None:
        """End the calls that are under way."""
        for server in self.all:
            server.client.close()

    def _admit(self) -> None:
        """Let in whoever came first while there is room; the lock is held."""
        for model, queue in self._queues.items():
            for place in list(queue):
                cap = place.cap
                if not cap.closed.is_set():
                    if not any(server.has_room(model) for server in self.all):
                        break
                    server = self._best(place) if cap.in_flight < cap.limit else None
                    if server is None:
                        continue
                    place.server, place.has_place = server, True
                    place.limit.in_flight += 1
                    cap.in_flight += 1
                    cap.max_in_flight = max(cap.max_in_flight, cap.in_flight)
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

    def _watch(self, server: Server, since_s: float, probe: Probe) -> None:
        """Probe a server until its outage is over; an error in this thread ends the run."""
        try:
            self._wait_for(server, since_s, probe)
        except Exception as error:  # noqa: BLE001 - raised to all who call
            self.close(error)

    def _wait_for(self, server: Server, since_s: float, probe: Probe) -> None:
        """Ask for a server that is away since then until it answers, or the run ends."""
        most_s = self._max_outage_s or 0.0
        is_reported, probe_s = False, _FIRST_PROBE_S
        while server.away_since_s == since_s and not self.closed.is_set():
            if why := self._ensure_running():
                raise OutageError(why)
            left_s = max(_SHORTEST_PROBE_S, since_s + most_s - time.monotonic())
            if self._answers_probe(server, probe, min(probe_s, self._timeout_s, left_s)):
                break
            server.failed_probe_s = time.monotonic()
            if not is_reported and server.is_away:
                is_reported = True
                self._report(self._outage_line(server))
            with self._lock:
                away = [each.away_since_s for each in self.all if each.away_since_s is not None]
            if len(away) == len(self.all) and time.monotonic() - max(away) > most_s:
                whys = "; ".join(each.why for each in self.all)
                raise OutageError(f"no server was there for {most_s:g} s (--max-outage): {whys}")
            self.closed.wait(self._apart_s)
            probe_s *= 2
        self._check_digests(server)
        if self.closed.is_set():
            return
        with self._lock:
            if server.away_since_s == since_s:
                server.answered()
                self._admit()
        if is_reported:
            after_s = time.monotonic() - since_s
            self._report(f"{server.host} answers again after {after_s:.0f} s: going on")

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
        return f"{line}: waiting for it; the run ends after {self._max_outage_s:g} s (--max-outage)"

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
