"""The order of things: every call to a model passes here.

A call takes the first of these that it meets: a known reply; an equal call under way, whose reply it
shares; a reply on disk; the gate of a server and model, where it waits for its turn; the server. A
failure that may pass is met with more attempts, between which no place in a gate is held. Where a log of
replies is kept, no reply is given out before it is written down.

What the calls cost, counted by model.

One call on its way through the dispatcher: where it was sent, since when, and what came of it.

A failure that may pass is met with more attempts, and pauses between them that double, with jitter.

The servers of a dispatcher together: which one a call goes to, and what all of them have.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential_jitter

from ollama_utils.capacity import Found
from ollama_utils.client import OllamaClient
from ollama_utils.errors import BadRequestError, CallCancelledError, OllamaError
from ollama_utils.limits import Gate, MaxInFlight, Server, TokenBucket
from ollama_utils.reply_log import (
    Outcome,
    Question,
    ReplyLog,
    as_json,
    embed_question,
    find_in,
    from_json,
    question_of,
)
from ollama_utils.single_flight import ReplyCache, key_of
from ollama_utils.types import Call, Completion, Usage, short_name


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
        self._in_flight = 0
        self._max_in_flight = 0

    @property
    def in_flight(self) -> int:
        """The calls that are under way."""
        return self._in_flight

    @property
    def max_in_flight(self) -> int:
        """The most calls that were under way at once."""
        return self._max_in_flight

    def sent(self, model: str, *, retry: bool) -> None:
        """A call goes out."""
        with self._lock:
            self._in_flight += 1
            self._max_in_flight = max(self._max_in_flight, self._in_flight)
            account = self._of(model)
            account.calls += 1
            account.retries += retry

    def came_back(self, model: str, usage: Usage | None = None, *, failed: bool = False) -> None:
        """A call that went out is over."""
        with self._lock:
            self._in_flight -= 1
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


@dataclass
class Errand:
    """The hosts a call was sent to so far, and when first."""

    model: str
    deadline_s: float
    cancelled: threading.Event
    """Once it is set, nobody waits for it any more."""
    cap: Gate | None = None
    """A gate of the caller's own, in which each attempt holds a place."""
    hosts: list[str] = field(default_factory=list)
    first_sent_s: float = math.inf

    def sent_to(self, host: str) -> None:
        """It goes out now."""
        self.hosts.append(host)
        self.first_sent_s = min(self.first_sent_s, time.monotonic())

    def waited(self, seconds: float) -> None:
        """It stood at a gate for so long, which is no fault of the server: the deadline waits, too."""
        self.first_sent_s += seconds

    def pause(self, seconds: float) -> None:
        """Wait before the next attempt.

        Raises:
            CallCancelledError: it was cancelled.
        """
        if self.cancelled.wait(seconds):
            raise CallCancelledError("the run was stopped before the next attempt")

    def outcome(self, reply: str = "", *, error: OllamaError | None = None) -> Outcome:
        """What came of it, for the log."""
        return Outcome(
            reply=reply,
            error=None if error is None else f"{type(error).__name__}: {error}",
            server=self.hosts[-1] if self.hosts else "",
            attempts=len(self.hosts),
        )

    def is_late(self, pause_s: float = 0.0) -> bool:
        """Whether an attempt that starts after this pause would start too late."""
        return time.monotonic() + pause_s > self.first_sent_s + self.deadline_s


T = TypeVar("T")

_MAX_BACKOFF_S = 30.0


class Attempts:
    """How often a call is tried, and when it is given up.

    Args:
        most: how often at most.
        backoff_s: seconds before the second attempt.

    Raises:
        ValueError: `most` is less than 1.
    """

    def __init__(self, most: int, backoff_s: float) -> None:
        if most < 1:
            raise ValueError(f"attempts must be at least 1, got {most!r}")
        self._most = most
        self._retrying = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, OllamaError) and error.retryable),
            stop=self._is_over,
            wait=wait_exponential_jitter(multiplier=backoff_s, jitter=backoff_s, max=_MAX_BACKOFF_S),
            reraise=True,
        )

    def insist(self, errand: Errand, attempt: Callable[[Errand], T]) -> T:
        """What an attempt gives, after as many as it may take; the errand counts them.

        Raises:
            OllamaError: why the last of them failed.
        """
        try:
            return attempt(errand)
        except OllamaError as error:
            failed = [error]

        def again(errand: Errand) -> T:
            """The attempt that failed already, and then the others: only now is tenacity worth its time."""
            if failed:
                raise failed.pop()
            return attempt(errand)

        answer: T = self._retrying.copy(sleep=errand.pause)(again, errand)
        return answer

    def _is_over(self, state: RetryCallState) -> bool:
        """Whether a call that failed is given up."""
        errand: Errand = state.args[0]
        return len(errand.hosts) >= self._most or errand.is_late(state.upcoming_sleep)


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


_POLL_S = 0.01


class Dispatcher(AbstractContextManager["Dispatcher"]):
    """Sends calls to the models of one or several servers; shared by all threads of a run.

    Args:
        hosts: the servers, as OLLAMA_HOST is written; each must have the models that are called.
        max_in_flight: the most calls at once to one model of one server; `auto` finds from the replies' own
            timings how many keep the server busy (see `ollama_utils.capacity`).
        attempts: how often a failing call is sent at most.
        timeout_s: the seconds after which an attempt without a whole reply counts as failed.
        deadline_s: no attempt starts later than this many seconds after the call was first sent, waits at
            our own gates left out.
        cache_size: how many replies are remembered; 0 asks anew each time.
        backoff_s: seconds before the second attempt; they double with each one, with jitter.
        obituary: why nobody will ever answer again, where somebody can know; see OllamaClient.
        rate_limit_per_minute: the most requests that go out a minute, each attempt counted; None: any number.

    Raises:
        ValueError: no host, one that cannot be read, or a limit below 1 (a rate: not above 0).
    """

    def __init__(  # noqa: PLR0913 - each is a setting of its own, given by name
        self,
        hosts: Sequence[str],
        *,
        max_in_flight: MaxInFlight = "auto",
        attempts: int = 4,
        timeout_s: float = 120.0,
        deadline_s: float = 300.0,
        cache_size: int = 65536,
        backoff_s: float = 0.5,
        obituary: Callable[[], str | None] = lambda: None,
        rate_limit_per_minute: float | None = None,
    ) -> None:
        if isinstance(hosts, str) or not hosts:
            raise ValueError(f"expected a list of at least one host, got {hosts!r}")
        clients = (OllamaClient(host, timeout_s=timeout_s, obituary=obituary) for host in hosts)
        self._servers = Servers(clients, max_in_flight=max_in_flight)
        self._bucket = TokenBucket(rate_limit_per_minute)
        self._deadline_s = deadline_s
        self._cache = ReplyCache(cache_size) if cache_size > 0 else None
        self._logs: tuple[ReplyLog, ...] = ()
        self._accounts = Accounts()
        self._cancelled = threading.Event()
        self._attempts = Attempts(attempts, backoff_s)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The servers' base URLs."""
        return self._servers.hosts

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
        return self._servers.new_cap(limit)

    def keep_in(self, *logs: ReplyLog) -> None:
        """From now on write each reply to these logs before it is given out, and ask for none they hold."""
        self._logs = logs

    def generate(self, call: Call, *, cap: Gate | None = None) -> Completion:
        """The reply to one call; blocks until it is there, or given up.

        Equal calls that a seed or temperature 0 makes repeatable are asked once. A failure does not
        raise: it stands in `error`, beside an empty text.

        Args:
            call: what is asked.
            cap: each attempt holds a place in it; see `new_cap`.

        Raises:
            ReplyLogError: the reply cannot be written down.
        """
        try:
            question = question_of(call)
        except BadRequestError as error:
            return Completion(text="", error=error, attempts=0)
        if not call.repeatable:
            return self._answer(call, question, cap)
        if self._cache is None:
            return self._written_or_asked(call, question, cap)
        key = key_of(question)
        while True:
            completion = self._cache.reply(key, lambda: self._written_or_asked(call, question, cap))
            # Who asked for both of us may have been stopped by its own cap; we were not.
            if not isinstance(completion.error, CallCancelledError) or self._is_stopped(cap):
                break
        if completion.cached:
            self._accounts.hit(call.model)
        return completion

    def known(self, call: Call) -> Completion | None:
        """The reply to a call if an equal one had it before, or None; no server is asked or waited for.

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
            texts: N texts; without any, nothing is asked.
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

        They are asked once, without retries.

        Raises:
            OllamaError: a server gives no list; ServerUnreachableError when it does not answer.
        """
        return self._servers.models()

    def accounts(self) -> dict[str, Account]:
        """What the calls cost so far, by model; the tag `:latest` is left out of the names."""
        return self._accounts.snapshot()

    def capacities(self) -> dict[tuple[str, str], Found]:
        """How many calls each server was found to take, and the limit that holds, by host and model.

        The tag `:latest` is left out of the models' names; those that were not called are not there.
        """
        return self._servers.capacities()

    def cancel(self) -> None:
        """Stop for good: calls that wait for anything but a server come back with CallCancelledError.

        So do all later ones, unless their reply is known. May be called from any thread.
        """
        self._cancelled.set()
        self._servers.cancel()
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
        self._servers.close()

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _written_or_asked(self, call: Call, question: Question, cap: Gate | None) -> Completion:
        reply = find_in(self._logs, question)
        return self._answer(call, question, cap) if reply is None else from_json(reply)

    def _answer(self, call: Call, question: Question, cap: Gate | None) -> Completion:
        """The server's reply, or the last attempt's error in its place."""
        # `cancel` closes the caps too.
        cancelled = self._cancelled if cap is None else cap.closing
        errand = Errand(call.model, self._deadline_s, cancelled, cap)

        def ask(client: OllamaClient) -> tuple[Completion, Usage | None]:
            completion = client.generate(call)
            if self._logs:
                self._write(question, errand.outcome(as_json(completion)))
            return completion, completion.usage

        try:
            completion = self._insist(errand, ask)
        except OllamaError as error:
            self._write(question, errand.outcome(error=error))
            completion = Completion(text="", error=error)
        again = len(errand.hosts) != completion.attempts
        return replace(completion, attempts=len(errand.hosts)) if again else completion

    def _embed(self, model: str, missing: Sequence[Question]) -> dict[Question, str]:
        """The embeddings of texts that no log holds, as JSON; the request counts for the first of them."""
        errand = Errand(model, self._deadline_s, self._cancelled)
        texts = [json.loads(question.request) for question in missing]

        def ask(client: OllamaClient) -> tuple[dict[Question, str], Usage | None]:
            embeddings = client.embed(model, texts)
            replies = {q: json.dumps(row) for q, row in zip(missing, embeddings.rows.tolist(), strict=True)}
            for question, reply in replies.items():
                outcome = errand.outcome(reply)
                self._write(question, outcome if question is missing[0] else replace(outcome, attempts=0))
            return replies, embeddings.usage

        try:
            return self._insist(errand, ask)
        except OllamaError as error:
            self._write(missing[0], errand.outcome(error=error))
            raise

    def _write(self, question: Question, outcome: Outcome) -> None:
        """Write down what a server was asked for; a call that was cancelled before is no news."""
        for log in self._logs if outcome.attempts or not outcome.error else ():
            log.write(question, outcome)

    def _insist(self, errand: Errand, ask: Callable[[OllamaClient], tuple[T, Usage | None]]) -> T:
        """What a server answers, after as many attempts as it may take."""
        return self._attempts.insist(errand, lambda errand: self._attempt(errand, ask))

    def _attempt(self, errand: Errand, ask: Callable[[OllamaClient], tuple[T, Usage | None]]) -> T:
        server, came_s, bucket = self._servers.route(errand), time.monotonic(), self._bucket
        with server.visit(errand.model, cap=errand.cap, token=lambda: bucket.wait(errand.cancelled)) as visit:
            errand.waited(visit.sent_s - came_s)
            errand.sent_to(server.host)
            self._accounts.sent(errand.model, retry=len(errand.hosts) > 1)
            try:
                answer, visit.usage = ask(server.client)
            except BaseException as error:
                server.note(error)
                self._accounts.came_back(errand.model, failed=True)
                raise
            self._accounts.came_back(errand.model, visit.usage)
            return answer

    def _is_stopped(self, cap: Gate | None) -> bool:
        return self._cancelled.is_set() or (cap is not None and cap.closed)


def account_totals(dispatcher: Dispatcher) -> dict[str, float]:
    """The dispatcher's accounts summed over models."""
    names = ("calls", "failures", "retries", "cache_hits", "prompt_tokens", "completion_tokens")
    seconds = ("queue_s", "busy_s")
    accounts = dispatcher.accounts().values()
    return {name: float(sum(getattr(account, name) for account in accounts)) for name in names + seconds}
