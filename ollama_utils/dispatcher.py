"""The dispatcher: every call to a model passes here.

A call takes the first of these that it meets: a known reply; an equal call under way, whose reply it shares
(`single_flight`); a reply on disk (`reply_log`); the server with the most room for its model. There it waits
for its turn under the limits of server, model, caller and rate (`limits`), and goes out (`wires`). A failure
that may pass is met with more attempts, under one rule (`Dispatcher._send`); between them no place in a gate
is held. Where logs of replies are kept, no reply is returned before it is written down.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from operator import methodcaller
from typing import TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from ollama_utils.capacity import CapacityEstimate
from ollama_utils.errors import BadRequestError, CallCancelledError, OllamaError
from ollama_utils.limits import Admission, Gate, MaxInFlight, Server, TokenBucket
from ollama_utils.reply_log import (
    CallOutcome,
    Question,
    ReplyLog,
    as_json,
    embed_question,
    find_in,
    from_json,
    question_of,
)
from ollama_utils.single_flight import ReplyCache, SharedReply, key_of
from ollama_utils.types import CALL_ATTEMPTS, CALL_TIMEOUT_S, Call, Completion, Embeddings, Usage, short_name
from ollama_utils.wires import ClientOpener, ModelClient, open_client

Reply = TypeVar("Reply", Completion, Embeddings)

_POLL_S = 0.01
_MAX_BACKOFF_S = 30.0
_MAX_DOUBLINGS = 64


@dataclass(kw_only=True)
class Account:
    """The calls to one model so far."""

    calls: int = 0
    """Requests sent; each attempt counts."""
    failures: int = 0
    """How many of these failed."""
    retries: int = 0
    """How many of these repeated one that had failed."""
    cache_hits: int = 0
    """Replies that an earlier equal call, or one under way, had paid for."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    queue_s: float = 0.0
    """Seconds that calls waited for a slot of the server, by its own timings."""
    busy_s: float = 0.0
    """Seconds that calls held a slot: prefill and decode, by the server's own timings."""


class Accounts:
    """Counters that many threads write."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_model: dict[str, Account] = {}
        self.in_flight = 0
        """The calls that are under way."""
        self.max_in_flight = 0
        """The most calls that were under way at once."""

    def sent(self, model: str, *, retry: bool) -> None:
        """A call goes out."""
        with self._lock:
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
            account = self._of(model)
            account.calls += 1
            account.retries += retry

    def came_back(self, model: str, usage: Usage | None = None, *, failed: bool = False) -> None:
        """A call that went out is over."""
        with self._lock:
            self.in_flight -= 1
            account = self._of(model)
            account.failures += failed
            if usage is not None:
                account.prompt_tokens += usage.prompt_tokens
                account.completion_tokens += usage.completion_tokens
                account.queue_s += usage.queue_s
                account.busy_s += usage.prefill_s + usage.decode_s

    def hit(self, model: str) -> None:
        """A call was answered without going out."""
        with self._lock:
            self._of(model).cache_hits += 1

    def snapshot(self) -> dict[str, Account]:
        """The accounts so far by model; the tag `:latest` is left out of the names."""
        with self._lock:
            return {name: replace(account) for name, account in self._by_model.items()}

    def _of(self, model: str) -> Account:
        name = short_name(model)
        if name not in self._by_model:
            self._by_model[name] = Account()
        return self._by_model[name]


@dataclass(kw_only=True)
class PendingCall:
    """A call that is not answered yet: where it was sent, and since when."""

    model: str
    deadline_s: float
    cancelled: threading.Event
    """Once it is set, nobody waits for the reply any more."""
    cap: Gate | None = None
    """A gate of the caller's own, in which each attempt holds a place."""
    hosts: list[str] = field(default_factory=list)
    """Where it was sent, one host an attempt."""
    first_sent_s: float = math.inf

    def sent_to(self, host: str, *, waited_s: float) -> None:
        """It goes out now; its wait at our own limits is no fault of the server, and moves the deadline."""
        self.hosts.append(host)
        self.first_sent_s = min(self.first_sent_s + waited_s, time.monotonic())

    def is_late(self, pause_s: float) -> bool:
        """Whether an attempt after this pause would start after the deadline."""
        return time.monotonic() + pause_s > self.first_sent_s + self.deadline_s

    def pause(self, seconds: float) -> None:
        """Wait before the next attempt.

        Raises:
            CallCancelledError: it was cancelled.
        """
        if self.cancelled.wait(seconds):
            raise CallCancelledError("the run was stopped before the next attempt")

    def outcome(self, reply: str = "", *, error: OllamaError | None = None) -> CallOutcome:
        """What came of it, for the logs."""
        return CallOutcome(
            reply=reply,
            error=None if error is None else f"{type(error).__name__}: {error}",
            server=self.hosts[-1] if self.hosts else "",
            attempts=len(self.hosts),
        )


class Dispatcher(AbstractContextManager["Dispatcher"]):
    """Sends calls to the models of one or several servers; shared by all threads of a run.

    Args:
        hosts: the servers, as OLLAMA_HOST is written, or `openai:URL` for an OpenAI-compatible one; each must
            have the models that are called.
        max_in_flight: the most calls at once to one model of one server; `auto`: some more than the replies'
            own timings show that it serves at once (see `ollama_utils.capacity`).
        attempts: how often a failing call is sent at most.
        timeout_s: the seconds after which an attempt without a whole reply counts as failed; they count from
            the last reply to a call sent before it, for until then it may have waited in a queue there.
        deadline_s: no attempt starts later than this many seconds after the call was first sent, waits at
            our own gates left out.
        cache_size: how many replies are remembered; 0 asks anew each time.
        backoff_s: seconds before the second attempt; they double with each one, with jitter.
        exit_reason: why no server will ever answer again, where that can be known; see `open_client`.
        rate_limit_per_minute: the most requests that go out a minute, each attempt counted; None: any number.
        opener: opens the client of each host.

    Raises:
        ValueError: no host, one that cannot be read, or a limit below 1 (a rate: not above 0).
    """

    def __init__(  # noqa: PLR0913 - each is a setting of its own, given by name
        self,
        hosts: Sequence[str],
        *,
        max_in_flight: MaxInFlight = "auto",
        attempts: int = CALL_ATTEMPTS,
        timeout_s: float = CALL_TIMEOUT_S,
        deadline_s: float = 300.0,
        cache_size: int = 65536,
        backoff_s: float = 0.5,
        exit_reason: Callable[[], str | None] = lambda: None,
        rate_limit_per_minute: float | None = None,
        opener: ClientOpener = open_client,
    ) -> None:
        if isinstance(hosts, str) or not hosts:
            raise ValueError(f"expected a list of at least one host, got {hosts!r}")
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {attempts!r}")
        if max_in_flight != "auto" and max_in_flight < 1:
            raise ValueError(f"max_in_flight must be 'auto' or at least 1, got {max_in_flight!r}")
        clients = [opener(host, timeout_s=timeout_s, exit_reason=exit_reason) for host in hosts]
        self._servers = {client.host: Server(client, max_in_flight=max_in_flight) for client in clients}
        """By base URL: a host that comes twice counts once."""
        self._caps: WeakSet[Gate] = WeakSet()
        self._caps_lock = threading.Lock()
        self._bucket = TokenBucket(rate_limit_per_minute)
        self._attempts = attempts
        self._backoff_s = backoff_s
        self._deadline_s = deadline_s
        self._cache = ReplyCache(cache_size) if cache_size > 0 else None
        self._logs: tuple[ReplyLog, ...] = ()
        self._accounts = Accounts()
        self._cancelled = threading.Event()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The servers' base URLs, `openai:` before those of OpenAI-compatible ones."""
        return tuple(self._servers)

    @property
    def rate_limit_per_minute(self) -> float | None:
        """The owner's limit over all servers and models, beside those of `limited`; may change any time."""
        return self._bucket.per_minute

    @rate_limit_per_minute.setter
    def rate_limit_per_minute(self, per_minute: float | None) -> None:
        self._bucket.per_minute = per_minute

    def limited(self, per_minute: float | None) -> AbstractContextManager[object]:
        """Until `with` ends, all who use this are held to it; the lowest limit counts: see TokenBucket."""
        return self._bucket.limited(per_minute)

    @property
    def max_in_flight_seen(self) -> int:
        """The most calls that were under way at once, over all servers and models."""
        return self._accounts.max_in_flight

    def new_cap(self, limit: int) -> Gate:
        """A cap on the calls that are made with it: together they have so many attempts under way at most."""
        cap = Gate(limit)
        with self._caps_lock:
            self._caps.add(cap)
            if self._cancelled.is_set():
                cap.close()
        return cap

    def keep_in(self, *logs: ReplyLog) -> None:
        """From now on write each reply to these logs before it is returned, and ask for none they hold."""
        self._logs = logs

    def generate(self, call: Call, *, cap: Gate | None = None) -> Completion:
        """The reply to one call; blocks until it is there, or given up.

        Equal calls that a seed or temperature 0 makes repeatable are sent once. A failure does not
        raise: it stands in `error`, beside an empty text.

        Args:
            call: the request.
            cap: each attempt holds a place in it; see `new_cap`.

        Raises:
            ReplyLogError: the reply cannot be written down.
        """
        try:
            question = question_of(call)
        except BadRequestError as error:
            return Completion(text="", error=error, attempts=0)
        pending = self._pending(call.model, cap)

        def keep(completion: Completion) -> None:
            if self._logs:
                self._write(question, pending.outcome(as_json(completion)))

        with self._asking(question, pending) as asked:
            if asked.reply is None:
                try:
                    completion = self._send(pending, methodcaller("generate", call), keep)
                except OllamaError as error:
                    self._write(question, pending.outcome(error=error))
                    completion = Completion(text="", error=error)
                asked.reply = replace(completion, attempts=len(pending.hosts))
            elif asked.reply.cached:
                self._accounts.hit(call.model)
            return asked.reply

    def known(self, call: Call) -> Completion | None:
        """The reply to a call if an equal one had it before, or None; no request is sent or waited for.

        Raises:
            ReplyLogError: a log cannot be read.
        """
        if not call.repeatable:
            return None
        try:
            question = question_of(call)
        except BadRequestError:
            return None
        completion = self._cache.known(key_of(question)) if self._cache else None
        if completion is None and (reply := find_in(self._logs, question)) is not None:
            completion = from_json(reply)
        if completion is not None:
            self._accounts.hit(call.model)
        return completion

    def embed(self, model: str, texts: Sequence[str], *, fresh: bool = False) -> NDArray[np.float32]:
        """The embeddings of N texts, those that no log holds in one request: (N, D) rows of length 1.

        Args:
            model: an embedding model's name.
            texts: N texts; without any, no request is sent.
            fresh: ask the server even for what a log holds, as to see whether it answers.

        Raises:
            OllamaError: there are none, after all attempts.
            ReplyLogError: they cannot be written down.
        """
        asked = [embed_question(model, text) for text in texts]
        found = {q: None if fresh else find_in(self._logs, q) for q in asked}
        missing = [question for question, reply in found.items() if reply is None]
        if missing:
            found |= self._embed(model, missing)
        rows: list[list[float]] = [json.loads(found[question] or "") for question in asked]
        return np.array(rows, dtype=np.float32).reshape(len(asked), -1 if asked else 0)

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

    def accounts(self) -> dict[str, Account]:
        """What the calls cost so far, by model; the tag `:latest` is left out of the names."""
        return self._accounts.snapshot()

    def capacities(self) -> dict[tuple[str, str], CapacityEstimate]:
        """How many calls each server was found to take, and the limit that holds, by host and model.

        The tag `:latest` is left out of the models' names; those that were not called are not there.
        """
        return {
            (host, model): found
            for host, server in self._servers.items()
            for model, found in server.capacities().items()
        }

    def cancel(self) -> None:
        """Stop for good: calls that wait for anything but a server come back with CallCancelledError.

        So do all later ones, unless their reply is known. May be called from any thread.
        """
        with self._caps_lock:
            self._cancelled.set()
            caps = list(self._caps)
        for cap in caps:
            cap.close()
        for server in self._servers.values():
            server.cancel()
        if self._cache is not None:
            self._cache.cancel()

    def drain(self, timeout_s: float) -> None:
        """Wait until no call is under way and their replies are written down, or for so long."""
        end_s = time.monotonic() + timeout_s
        while self._accounts.in_flight and time.monotonic() < end_s:
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Cancel, and drop the idle connections; those in use go when their reply is there."""
        self.cancel()
        for server in self._servers.values():
            server.close()

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _pending(self, model: str, cap: Gate | None = None) -> PendingCall:
        # `cancel` closes the caps too.
        cancelled = self._cancelled if cap is None else cap.closing
        return PendingCall(model=model, deadline_s=self._deadline_s, cancelled=cancelled, cap=cap)

    @contextmanager
    def _asking(self, question: Question, pending: PendingCall) -> Iterator[SharedReply]:
        """Within `with`: the reply to an equal question, or None for the caller to ask and put here."""
        with ExitStack() as stack:
            asked = SharedReply()
            if question.repeatable:
                if self._cache:
                    asked = stack.enter_context(self._cache.asking(key_of(question), pending.cancelled))
                if asked.reply is None and (reply := find_in(self._logs, question)) is not None:
                    asked.reply = from_json(reply)
            yield asked

    def _embed(self, model: str, missing: Sequence[Question]) -> dict[Question, str]:
        """The embeddings of texts that no log holds, as JSON; the request counts for the first of them."""
        pending = self._pending(model)
        texts = [json.loads(question.request) for question in missing]
        replies: dict[Question, str] = {}

        def keep(embeddings: Embeddings) -> None:
            for question, row in zip(missing, embeddings.rows.tolist(), strict=True):
                replies[question] = json.dumps(row)
                outcome = pending.outcome(replies[question])
                self._write(question, outcome if question is missing[0] else replace(outcome, attempts=0))

        try:
            self._send(pending, methodcaller("embed", model, texts), keep)
        except OllamaError as error:
            self._write(missing[0], pending.outcome(error=error))
            raise
        return replies

    def _write(self, question: Question, outcome: CallOutcome) -> None:
        """Write down what was sent to a server; a call that was cancelled before is no news."""
        for log in self._logs if outcome.attempts or not outcome.error else ():
            log.write(question, outcome)

    def _send(
        self, pending: PendingCall, send: Callable[[ModelClient], Reply], keep: Callable[[Reply], None]
    ) -> Reply:
        """A server's reply, after as many attempts as it may take: the one rule of retries.

        After an error that may pass (`OllamaError.retryable`) the call is sent again, if possible to a server
        that has not failed it, after a pause that doubles each time, with jitter. It is given up after so
        many attempts, or when the next one would start later than the deadline allows.

        Args:
            pending: the call; it counts the attempts.
            send: makes one attempt.
            keep: writes the reply down.

        Raises:
            OllamaError: why the last attempt failed.
            ReplyLogError: the reply cannot be written down.
        """
        while True:
            try:
                with self._attempt(pending) as (client, admission):
                    reply = send(client)
                    keep(reply)
                    admission.usage = reply.usage
                    return reply
            except OllamaError as error:
                pause_s = self._pause_s(len(pending.hosts))
                is_last = len(pending.hosts) >= self._attempts or pending.is_late(pause_s)
                if is_last or not error.retryable:
                    raise
            pending.pause(pause_s)

    def _pause_s(self, attempts: int) -> float:
        """The seconds between so many attempts and the next."""
        doubled_s = self._backoff_s * 2.0 ** min(attempts - 1, _MAX_DOUBLINGS)
        return min(doubled_s + random.uniform(0, self._backoff_s), _MAX_BACKOFF_S)

    def _route(self, pending: PendingCall) -> Server:
        """The server with the most room for a model; those that are away, or failed this call, come last."""

        def merits(server: Server) -> tuple[bool, bool, int]:
            return not server.is_away, server.host not in pending.hosts, server.gate(pending.model).room

        first, *others = self._servers.values()
        return max((first, *others), key=merits) if others else first

    @contextmanager
    def _attempt(self, pending: PendingCall) -> Iterator[tuple[ModelClient, Admission]]:
        """Within `with`: a call that was admitted to a server; what becomes of it is counted."""
        server, came_s = self._route(pending), time.monotonic()
        wait_for_rate = partial(self._bucket.wait, pending.cancelled)
        with server.admit(pending.model, cap=pending.cap, wait_for_rate=wait_for_rate) as admission:
            pending.sent_to(server.host, waited_s=admission.sent_s - came_s)
            self._accounts.sent(pending.model, retry=len(pending.hosts) > 1)
            try:
                yield server.client, admission
            except BaseException as error:
                server.note(error)
                self._accounts.came_back(pending.model, failed=True)
                raise
            self._accounts.came_back(pending.model, admission.usage)


def account_totals(dispatcher: Dispatcher) -> dict[str, float]:
    """The dispatcher's accounts summed over models."""
    names = [account_field.name for account_field in fields(Account)]
    accounts = dispatcher.accounts().values()
    return {name: float(sum(getattr(account, name) for account in accounts)) for name in names}
