"""The servers of a run: to which of them a call goes, and what happens while one is away.

Calls to one model wait in one queue, however many servers there are (`gates`); what one server takes at once
is for `limits` to say. A server that is away (`health`) takes no calls: they wait in the queue, or go to another
server where one is there. It is probed with a request for one token, until it
answers: that it lists its models says nothing, for a server may do that and never generate. While no server
is there, everything waits, and nothing is lost but time; after `max_outage_s` the run ends.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from ollama_utils.capacity import CapacityEstimate
from ollama_utils.errors import (
    CallTimeoutError,
    ModelChangedError,
    OllamaError,
    OutageError,
    ServerBusyError,
)
from ollama_utils.gates import CallQueue, Gate
from ollama_utils.health import ABSENCES
from ollama_utils.limits import Admission, MaxInFlight, Server
from ollama_utils.model_client import ModelClient
from ollama_utils.plans import start_thread
from ollama_utils.types import Inventory, short_name

_APART_S = 1.0
"""Between two probes of a server that is away."""
_SHORTEST_PROBE_S, _FIRST_PROBE_S, _LAST_PROBE_S = 0.2, 2.0, 120.0
"""How long a probe is waited for at first, and at last: the server may have to load the model."""
_SAY_S = 30.0
"""Between two lines about the same outage."""
_FOLLOW_S = 2.0
"""Between two looks at the list of hosts."""
_LOOK_S = 10.0
"""Between two looks at the weights of the models while calls go out."""
_NOT_THERE = (*ABSENCES, ServerBusyError)


class Fleet:
    """The servers of a run, shared by all threads.

    Args:
        hosts: where they are.
        open_client: makes the way to one.
        max_in_flight: the most calls at once to one model of one server, or `auto`.
        max_outage_s: seconds without any server after which the run ends; None: while there is none, calls
            fail one by one.
        ensure_running: is called when a server is away; returns why it never will be back, where that can be
            known: the server was ours, has ended, and cannot be started again. Else None.
        hosts_now: returns the hosts as they are to be from now on; None: they stay.
        report: is given a line for the user when an outage begins, goes on, and ends.
        forget_replies: is called when a model was found to be another one, with its name and since when its
            replies may be the other one's, by `time.time`.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        open_client: Callable[[str], ModelClient],
        *,
        max_in_flight: MaxInFlight,
        max_outage_s: float | None = None,
        ensure_running: Callable[[], str | None] = lambda: None,
        hosts_now: Callable[[], Sequence[str]] | None = None,
        report: Callable[[str], None] = lambda _line: None,
        forget_replies: Callable[[str, float], None] = lambda _model, _since_s: None,
    ) -> None:
        self._open_client = open_client
        self._max_in_flight = max_in_flight
        self._max_outage_s = max_outage_s
        self._ensure_running = ensure_running
        self._report = report
        self._forget_replies = forget_replies
        self._lock = threading.Lock()
        self._queues: dict[str, CallQueue] = {}
        self._closed = threading.Event()
        self._ended: Exception | None = None
        self._look_s = time.monotonic() + _LOOK_S
        self._servers: dict[str, Server] = {}
        """By base URL: a host that comes twice counts once."""
        for host in hosts:
            server = self._new_server(host)
            self._servers.setdefault(server.host, server)
        self._servers_ever = dict(self._servers)
        """Those that have left, too: calls may still be under way there."""
        if hosts_now is not None:
            self._in_background(partial(self._follow, hosts_now))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The servers' base URLs, `openai:` before those of OpenAI-compatible ones."""
        return tuple(self._servers)

    @property
    def is_one(self) -> bool:
        """Whether there is one server alone."""
        return len(self._servers) == 1

    def queue(self, model: str) -> CallQueue:
        """The queue in which the calls to a model wait, by its short name."""
        with self._lock:
            if model not in self._queues:
                self._queues[model] = CallQueue()
                if self._closed.is_set():
                    self._queues[model].close(self._ended)
            return self._queues[model]

    def models(self) -> dict[str, list[str]]:
        """The models that all servers have, as the first lists them, each with its digest at each server.

        Without retries. Where a server tells its slots, they are noted.

        Raises:
            OllamaError: a server gives no list; ServerUnreachableError when it does not answer.
        """
        first, *others = (server.models() for server in self._servers.values())
        digests = [{short_name(name): digest for name, digest in there.items()} for there in others]
        return {
            name: [digest, *(there[short_name(name)] for there in digests)]
            for name, digest in first.items()
            if all(short_name(name) in there for there in digests)
        }

    def inventories(self) -> dict[str, Inventory]:
        """What each server tells of itself and its models, by host. Without retries.

        Raises:
            OllamaError: a server does not tell.
        """
        return {host: server.client.inventory() for host, server in self._servers.items()}

    def completes(self, model: str) -> bool:
        """Whether a model writes replies, by the first server.

        Raises:
            OllamaError: the server does not say.
        """
        return next(iter(self._servers.values())).client.completes(model)

    def capacities(self) -> dict[tuple[str, str], CapacityEstimate]:
        """How many calls each server was found to take, and the limit that holds, by host and model."""
        return {
            (host, model): found
            for host, server in self._servers.items()
            for model, found in server.capacities().items()
        }

    @contextmanager
    def admit(
        self,
        model: str,
        *,
        probe: Callable[[ModelClient, float], object],
        avoid: Collection[str] = (),
        cap: Gate | None = None,
        wait_for_rate: Callable[[], object] | None = None,
    ) -> Iterator[tuple[ModelClient, Admission]]:
        """Within `with`: a call that was let out to a server, after waiting for a place there.

        Args:
            model: the model's name.
            probe: asks a client for one token, or as little, as this call would, within so many seconds.
            avoid: hosts to which it goes only where there is no other.
            cap: a gate of the caller's own. It comes second: who waits for the model holds no place in it.
            wait_for_rate: waits until the rate allows the call. It comes last, so that calls go out at that
                rate.

        Raises:
            CallCancelledError: no call goes out any more, or the caller's gate is closed.
            OutageError: no server was there for too long.
            ModelChangedError: a model is not what it was when the run began.
        """
        name = short_name(model)
        self._look_at_weights()
        queue = self._queue_with_gates(name)
        admission = Admission()
        with ExitStack() as places:
            gate = queue.enter(avoid=avoid, waits=self._take_turns)
            server = self._servers_ever[gate.host]
            server.probe = probe
            server.swaps.came(name)
            places.callback(self._left, server, name, admission)
            places.callback(gate.leave)
            if cap is not None:
                cap.enter()
                places.callback(cap.leave)
            if wait_for_rate is not None:
                wait_for_rate()
            admission.host = server.host
            with server.under_way(name, admission):
                yield server.client, admission

    def away_s(self, host: str) -> float:
        """For how many seconds a server has been away; 0.0: it is not."""
        since_s = self._servers_ever[host].health.away_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def gone(self, server: Server) -> None:
        """Hear that a server is away from now on: hold its calls, and ask for it until it is back."""
        if self._max_outage_s is None and not self._is_another_there(server):
            server.health.back()  # nobody waits: each call finds out for itself
            return
        server.follow_health()
        self._in_background(partial(self._wait_for, server))

    def raise_if_ended(self) -> None:
        """Raise what ended the run, if anything has: a reply that comes now may be another model's.

        Raises:
            OutageError, ModelChangedError: it has ended.
        """
        if self._ended is not None:
            raise self._ended

    def close(self) -> None:
        """Turn away all who wait for a place and all who come later."""
        self._end(None)

    def abort(self) -> None:
        """End the calls that are still under way."""
        for server in self._servers_ever.values():
            server.client.abort()

    def _queue_with_gates(self, name: str) -> CallQueue:
        queue = self.queue(name)
        for server in self._servers.values() if not queue.has_gates else ():
            server.gate(name)
        return queue

    def _take_turns(self) -> None:
        """Calls wait, or wait no more: where models take turns, one may begin or end by that."""
        for server in self._servers.values():
            server.swaps.look()

    def _left(self, server: Server, name: str, admission: Admission) -> None:
        sent_s = None if math.isnan(admission.sent_s) else admission.sent_s
        server.swaps.left(name, sent_s, time.monotonic(), admission.usage)
        self._take_turns()

    def _is_another_there(self, server: Server) -> bool:
        return any(
            other is not server and not other.health.is_away for other in self._servers.values()
        )

    def _in_background(self, job: Callable[[], None]) -> None:
        """Do a job on a thread of its own. What it raises ends the run, for nobody else hears of it."""

        def run() -> None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - raised to all who call
                self._end(error)

        start_thread(run)

    def _end(self, error: Exception | None) -> None:
        """No call goes out any more; the error, if there is one, is raised to all who call."""
        with self._lock:
            if not self._closed.is_set():
                self._ended = error
            self._closed.set()
            queues = list(self._queues.values())
        for queue in queues:
            queue.close(self._ended)
        if self._ended:
            self.abort()

    def _wait_for(self, server: Server) -> None:
        """Probe a server that is away until it answers, or the run ends."""
        probe_s, say_s, told = _FIRST_PROBE_S, -math.inf, False
        while not self._closed.is_set() and server.host in self._servers:
            if why := self._ensure_running():
                self._end(OutageError(why))
                return
            if self._answers(server, min(probe_s, self._left_s(server))):
                break
            if time.monotonic() >= say_s:
                say_s, told = time.monotonic() + _SAY_S, True
                self._report(self._outage_line(server))
            self._end_if_too_long()
            self._closed.wait(_APART_S)
            probe_s = min(2 * probe_s, _LAST_PROBE_S)
        if server.host not in self._servers:
            return  # it left the list: its calls move
        self._check_weights(server)
        if not self._closed.is_set():
            away_s = server.health.back()
            server.follow_health()
            if told:
                self._report(f"{server.host} answers again after {away_s:.0f} s: going on")

    def _answers(self, server: Server, within_s: float) -> bool:
        """Whether a server answers a probe, if only with an error: it is there then, and calls are tried.

        "Busy" is no answer: it may still load the model, or a gateway says so in its absence.
        """
        try:
            server.probe(server.client, within_s)
        except _NOT_THERE as error:
            if not isinstance(error, CallTimeoutError):  # which says no more than what is known
                server.health.why = str(error)
            return False
        except OllamaError:
            return not self._closed.is_set()
        return True

    def _left_s(self, server: Server) -> float:
        """For how many more seconds a server is waited for, some at least."""
        most_s = math.inf if self._max_outage_s is None else self._max_outage_s
        return max(_SHORTEST_PROBE_S, most_s - self.away_s(server.host))

    def _end_if_too_long(self) -> None:
        """End the run if no server has been there for too long."""
        away = [server.health.away_since_s for server in self._servers.values()]
        if self._max_outage_s is None or None in away:
            return
        if time.monotonic() - max(filter(None, away)) > self._max_outage_s:
            whys = "; ".join(server.health.why for server in self._servers.values())
            self._end(
                OutageError(
                    f"no server was there for {self._max_outage_s:g} s (--max-outage): {whys}"
                )
            )

    def _outage_line(self, server: Server) -> str:
        begins = f"{server.host} is away for {self.away_s(server.host):.0f} s ({server.health.why})"
        if self._is_another_there(server):
            return f"{begins}: its calls go to the other servers until it is back"
        calls = sum(queue.waiting for queue in self._queues.values()) + server.health.under_way
        most_s = self._max_outage_s
        end = "" if most_s is None else f"; the run ends after {most_s:g} s (--max-outage)"
        return f"{begins}: waiting for it, {calls} calls held{end}"

    def _look_at_weights(self) -> None:
        """Now and then, and beside the calls, see whether the models are still what they were."""
        now_s = time.monotonic()
        if now_s < self._look_s:
            return
        self._look_s = now_s + _LOOK_S
        for server in self._servers.values():
            if not server.health.is_away and not server.is_looked_at:
                self._in_background(partial(self._check_weights, server))

    def _check_weights(self, server: Server) -> None:
        """End the run if the weights of a model that is called have changed at a server."""
        if (changed := server.changed_model()) is None or self._closed.is_set():
            return
        model, since_s = changed
        self._end(
            ModelChangedError(
                f"model {model!r} at {server.host} is not the one that the run began with: its digest "
                f"changed in the last {time.time() - since_s:.0f} s. Pull that version again and go on with "
                "--resume, or begin a new run"
            )
        )
        self._forget_replies(model, since_s)

    def _follow(self, hosts_now: Callable[[], Sequence[str]]) -> None:
        """Let servers join and leave as their list changes."""
        told: set[str] = set()
        followed: Sequence[str] | None = None
        while not self._closed.wait(_FOLLOW_S):
            try:
                named = hosts_now()
                if named == followed:
                    continue
                wanted = {server.host: server for server in map(self._new_server, named)}
            except ValueError as error:
                news = [str(error)]
            else:
                news = [*self._let_join(wanted), *self._let_leave(wanted)]
                followed = named if wanted.keys() == self._servers.keys() else None
            for line in news:
                if line not in told:
                    self._report(line)
            told = set(news)

    def _let_join(self, wanted: Mapping[str, Server]) -> Iterator[str]:
        """Use the servers that are new, once they have every model that is called; what there is to say."""
        for host, server in wanted.items():
            if host in self._servers:
                server.client.close()
                continue
            try:
                found = server.models()
            except OllamaError as error:
                server.client.close()
                yield f"{host} cannot join: {error}"
                continue
            if (model := self._unlike(found)) is not None:
                server.client.close()
                yield f"{host} cannot join: it has not the same {model!r} as the others"
                continue
            self._servers_ever[host] = server
            self._servers = {**self._servers, host: server}
            for name in list(self._queues):
                server.gate(name)
            yield f"{host} joins"

    def _unlike(self, found: Mapping[str, str]) -> str | None:
        """The first model that is called and that is not, or is another one, among those of a server."""
        there = {short_name(name): digest for name, digest in found.items()}
        for name in list(self._queues):
            known = {digest for server in self._servers.values() if (digest := server.digest(name))}
            if name not in there or (known and there[name] and there[name] not in known):
                return name
        return None

    def _let_leave(self, wanted: Mapping[str, Server]) -> Iterator[str]:
        """Send no more calls to servers that are not in the list; what there is to say."""
        leaving = {host: server for host, server in self._servers.items() if host not in wanted}
        if len(leaving) == len(self._servers):
            yield f"{', '.join(leaving)} cannot leave before another has joined"
            return
        self._servers = {
            host: server for host, server in self._servers.items() if host not in leaving
        }
        for host, server in leaving.items():
            for name, gate in server.gates.items():
                self.queue(name).remove(gate)
            yield f"{host} leaves"

    def _new_server(self, host: str) -> Server:
        return Server(self._open_client(host), max_in_flight=self._max_in_flight, owner=self)
