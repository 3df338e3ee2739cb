"""The dispatcher: every call to a model passes here.

A call takes the first of these that it meets: a known reply; an equal call under way, whose reply it shares
(`single_flight`); a reply on disk (`reply_log`). Else it waits in the queue for a place at one of the servers
(`fleet`), under the limits of server, model, caller and rate, and goes out (`wires`). A failure that may pass
is met with more attempts, under one rule (`Dispatcher._send`); between them no place in a gate is held.
While no server is there, calls wait. Where logs of replies are kept, no reply is returned before it is
written down.
"""

from __future__ import annotations

import copy
import json
import logging
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
from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    CallCancelledError,
    NotInLogError,
    OllamaError,
    ServerBusyError,
    ServerUnreachableError,
)
from ollama_utils.fleet import Fleet
from ollama_utils.gates import Gate
from ollama_utils.limits import Admission, MaxInFlight
from ollama_utils.model_client import ModelClient
from ollama_utils.rate import TokenBucket
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
from ollama_utils.types import (
    CALL_ATTEMPTS,
    CALL_TIMEOUT_S,
    MAX_OUTAGE_S,
    MAX_REPLY_CHARS,
    Call,
    Completion,
    Embeddings,
    Inventory,
    Usage,
    short_name,
)
from ollama_utils.wires import ClientOpener, open_client

Reply = TypeVar("Reply", Completion, Embeddings)

_log_warning = logging.getLogger(__name__).warning
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
        self.completions = 0
        """The completions that were returned, each to its caller."""

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

    def returned(self) -> None:
        """A completion goes to its caller."""
        with self._lock:
            self.completions += 1

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
    probe: Callable[[ModelClient, float], object]
    """Asks for one token as this call asks for its reply."""
    hosts: list[str] = field(default_factory=list)
    """Where it was sent, one host an attempt."""
    failures: int = 0
    """The attempts that count: it was the call's fault, or may have been."""
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
            attempts=0 if isinstance(error, NotInLogError) else len(self.hosts),
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
            the last reply to a call sent before it, for until then it may have waited in a queue there. Where
            replies take seconds, words are streamed, and the seconds count from the last one; after ten times
            as many the attempt is given up in any case.
        deadline_s: no attempt starts later than this many seconds after the call was first sent, waits at
            our own gates and for a server that was away left out.
        max_outage_s: for how long calls wait while no server is there; then OutageError ends everything.
            None: they do not wait, but fail one by one.
        cache_size: how many replies are remembered, in 256 MiB at most; 0 asks anew each time.
        backoff_s: seconds before the second attempt; they double with each one, with jitter.
        ensure_running: is called when nobody answers; returns why nobody ever will again, where that can be
            known, else None.
        hosts_now: returns the hosts as they are to be from now on, and is asked every two seconds: new ones
            join, and calls go no more to those that are missing. None: they stay.
        report: is given a line for the user when an outage begins, goes on, and ends; by default it is logged
            as a warning.
        rate_limit_per_minute: the most requests that go out a minute, each attempt counted; None: any number.
        max_reply_chars: the characters of a reply that are kept; see `open_client`.
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
        max_outage_s: float | None = MAX_OUTAGE_S,
        ensure_running: Callable[[], str | None] = lambda: None,
        hosts_now: Callable[[], Sequence[str]] | None = None,
        report: Callable[[str], None] = _log_warning,
        rate_limit_per_minute: float | None = None,
        max_reply_chars: int = MAX_REPLY_CHARS,
        opener: ClientOpener = open_client,
    ) -> None:
        if isinstance(hosts, str) or not hosts:
            raise ValueError(f"expected a list of at least one host, got {hosts!r}")
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {attempts!r}")
        if max_in_flight != "auto" and max_in_flight < 1:
            raise ValueError(f"max_in_flight must be 'auto' or at least 1, got {max_in_flight!r}")
        self._fleet = Fleet(
            hosts,
            partial(opener, timeout_s=timeout_s, max_reply_chars=max_reply_chars),
            max_in_flight=max_in_flight,
            max_outage_s=max_outage_s,
            ensure_running=ensure_running,
            hosts_now=hosts_now,
            report=report,
            forget_replies=self._forget_replies,
        )
        self._counts_absences = max_outage_s is None
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
        self._beside: list[Dispatcher] = [self]
        """This one and all that share its servers."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The servers' base URLs, `openai:` before those of OpenAI-compatible ones."""
        return self._fleet.hosts

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

    @property
    def completions(self) -> int:
        """How many completions were returned: replies, known ones, and those that were given up.

        However many attempts one took, it counts once; embeddings are none.
        """
        return self._accounts.completions

    def new_cap(self, limit: int) -> Gate:
        """A cap on the calls that are made with it: together they have so many attempts under way at most."""
        cap = Gate(limit)
        with self._caps_lock:
            self._caps.add(cap)
            if self._cancelled.is_set():
                cap.close()
        return cap

    def beside(self) -> Dispatcher:
        """One for another run: the same servers, limits, replies in memory and end; accounts and logs apart.

        A reply that another run paid for is written to the logs of this one as well, so that they are whole,
        with no attempt of its own.
        """
        other = copy.copy(self)
        other._logs, other._accounts = (), Accounts()  # noqa: SLF001 - of this class
        self._beside.append(other)
        return other

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
            self._accounts.returned()
            return Completion(text="", error=error, attempts=0)
        pending = self._pending(call.model, _probe_like(call), cap)

        def keep(completion: Completion) -> None:
            if self._logs:
                self._write(question, pending.outcome(as_json(completion)))

        with self._asking(question, pending) as asked:
            if asked.reply is None:
                try:
                    completion = self._send(pending, _words(call), keep)
                except OllamaError as error:
                    self._write(question, pending.outcome(error=error))
                    completion = Completion(text="", error=error)
                asked.reply = replace(completion, attempts=len(pending.hosts))
            elif asked.reply.cached:
                self._accounts.hit(call.model)
                self._keep_too(question, asked.reply)
            self._accounts.returned()
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
            self._accounts.returned()
            self._keep_too(question, completion)
        return completion

    def embed(
        self, model: str, texts: Sequence[str], *, fresh: bool = False
    ) -> NDArray[np.float32]:
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
            found |= self._embed(model, missing, fresh=fresh)
        rows: list[list[float]] = [json.loads(found[question] or "") for question in asked]
        if len(lengths := sorted(set(map(len, rows)))) > 1:
            raise BadReplyError(
                f"the embeddings of model {model!r} are of lengths {lengths}: expected one"
            )
        return np.array(rows, dtype=np.float32).reshape(len(asked), -1 if asked else 0)

    def models(self) -> dict[str, list[str]]:
        """The models that all servers have, as the first lists them, each with its digest at each server.

        Without retries. Where a server tells its slots, they are noted.

        Raises:
            OllamaError: a server gives no list; ServerUnreachableError when it does not answer.
        """
        return self._fleet.models()

    def inventories(self) -> dict[str, Inventory]:
        """What each server tells of itself and its models, by host. Without retries.

        Raises:
            OllamaError: a server does not tell; ServerUnreachableError when it does not answer.
        """
        return self._fleet.inventories()

    def completes(self, model: str) -> bool:
        """Whether a model writes replies, by the first server; one that only embeds does not.

        Raises:
            OllamaError: the server does not say.
        """
        return self._fleet.completes(model)

    def accounts(self) -> dict[str, Account]:
        """What the calls cost so far, by model; the tag `:latest` is left out of the names."""
        return self._accounts.snapshot()

    def capacities(self) -> dict[tuple[str, str], CapacityEstimate]:
        """How many calls each server was found to take, and the limit that holds, by host and model.

        The tag `:latest` is left out of the models' names; those that were not called are not there.
        """
        return self._fleet.capacities()

    def cancel(self) -> None:
        """Stop for good: calls that wait for anything but a server come back with CallCancelledError.

        So do all later ones, unless their reply is known. May be called from any thread.
        """
        with self._caps_lock:
            self._cancelled.set()
            caps = list(self._caps)
        for cap in caps:
            cap.close()
        self._fleet.close()
        if self._cache is not None:
            self._cache.cancel()

    def drain(self, timeout_s: float) -> None:
        """Wait until no call is under way and their replies are written down, or for so long."""
        end_s = time.monotonic() + timeout_s
        while self._accounts.in_flight and time.monotonic() < end_s:
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Cancel, and end the calls that are still under way."""
        self.cancel()
        self._fleet.abort()

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _forget_replies(self, model: str, since_s: float) -> None:
        """Find none of a model's replies since then any more: they may be another model's."""
        for dispatcher in self._beside:
            for log in dispatcher._logs:  # noqa: SLF001 - of this class
                log.forget(model, since_s)

    def _pending(
        self, model: str, probe: Callable[[ModelClient, float], object], cap: Gate | None = None
    ) -> PendingCall:
        # `cancel` closes the caps too.
        cancelled = self._cancelled if cap is None else cap.closing
        return PendingCall(
            model=model, probe=probe, deadline_s=self._deadline_s, cancelled=cancelled, cap=cap
        )

    @contextmanager
    def _asking(self, question: Question, pending: PendingCall) -> Iterator[SharedReply]:
        """Within `with`: the reply to an equal question, or None for the caller to ask and put here."""
        with ExitStack() as stack:
            asked = SharedReply()
            if question.repeatable:
                if self._cache:
                    asked = stack.enter_context(
                        self._cache.asking(key_of(question), pending.cancelled)
                    )
                if asked.reply is None and (reply := find_in(self._logs, question)) is not None:
                    asked.reply = from_json(reply)
            yield asked

    def _embed(
        self, model: str, missing: Sequence[Question], *, fresh: bool
    ) -> dict[Question, str]:
        """The embeddings of texts that no log holds, as JSON; the request counts for the first of them.

        Asked for twice at once, a text may get two: then that of the run is the one in the log, which is read
        again; not so if `fresh`, when it is the server's that is wanted.
        """
        pending = self._pending(
            model, lambda client, within_s: client.embed(model, ["yes"], timeout_s=within_s)
        )
        texts = [json.loads(question.request) for question in missing]
        replies: dict[Question, str] = {}

        def keep(embeddings: Embeddings) -> None:
            for question, row in zip(missing, embeddings.rows.tolist(), strict=True):
                replies[question] = json.dumps(row)
                outcome = pending.outcome(replies[question])
                self._write(
                    question, outcome if question is missing[0] else replace(outcome, attempts=0)
                )
                if not fresh:
                    replies[question] = find_in(self._logs, question) or replies[question]

        try:
            self._send(pending, lambda _stream: methodcaller("embed", model, texts), keep)
        except OllamaError as error:
            self._write(missing[0], pending.outcome(error=error))
            raise
        return replies

    def _write(self, question: Question, outcome: CallOutcome) -> None:
        """Write down what was sent to a server; a call that was cancelled before is no news."""
        for log in self._logs if outcome.attempts or not outcome.error else ():
            log.write(question, outcome)

    def _keep_too(self, question: Question, completion: Completion) -> None:
        """Write down what may have been asked for another run alone; a log that has it stays as it is."""
        if len(self._beside) > 1:
            self._write(question, CallOutcome(reply=as_json(completion)))

    def _send(
        self,
        pending: PendingCall,
        request: Callable[[bool], Callable[[ModelClient], Reply]],
        keep: Callable[[Reply], None],
    ) -> Reply:
        """A server's reply, after as many attempts as it may take: the one rule of retries.

        After an error that may pass (`OllamaError.retryable`) the call is sent again, if possible to a server
        that has not failed it, after a pause that doubles each time, with jitter, or that the server asked
        for. It is given up after so many attempts, or when the next one would start later than the deadline
        allows. An attempt that found no server is the server's failure, and does not count.

        Args:
            pending: the call; it counts the attempts.
            request: given whether the reply is to be streamed, what makes one attempt with a client.
            keep: writes the reply down.

        Raises:
            OllamaError: why the last attempt failed.
            ReplyLogError: the reply cannot be written down.
        """
        while True:
            try:
                with self._attempt(pending) as (client, admission):
                    reply = request(admission.streams)(client)
                    self._fleet.raise_if_ended()
                    keep(reply)
                    admission.usage = reply.usage
                    return reply
            except OllamaError as error:
                self._fleet.raise_if_ended()
                pending.failures += self._counts_absences or not isinstance(
                    error, ServerUnreachableError
                )
                pause_s = max(self._pause_s(len(pending.hosts)), _asked_to_wait_s(error))
                is_last = pending.failures >= self._attempts or pending.is_late(pause_s)
                if is_last or not error.retryable:
                    raise
            pending.pause(pause_s)

    def _pause_s(self, attempts: int) -> float:
        """The seconds between so many attempts and the next."""
        doubled_s = self._backoff_s * 2.0 ** min(attempts - 1, _MAX_DOUBLINGS)
        return min(doubled_s + random.uniform(0, self._backoff_s), _MAX_BACKOFF_S)

    @contextmanager
    def _attempt(self, pending: PendingCall) -> Iterator[tuple[ModelClient, Admission]]:
        """Within `with`: a call that was let out to a server; what becomes of it is counted."""
        came_s = time.monotonic()
        let_out = self._fleet.admit(
            pending.model,
            probe=pending.probe,
            avoid=pending.hosts,
            cap=pending.cap,
            wait_for_rate=partial(self._bucket.wait, pending.cancelled),
        )
        with let_out as (client, admission):
            pending.sent_to(admission.host, waited_s=admission.sent_s - came_s)
            self._accounts.sent(pending.model, retry=len(pending.hosts) > 1)
            try:
                yield client, admission
            except BaseException:
                self._accounts.came_back(pending.model, failed=True)
                pending.first_sent_s += self._fleet.away_s(admission.host)
                raise
            self._accounts.came_back(pending.model, admission.usage)


def _words(call: Call) -> Callable[[bool], Callable[[ModelClient], Completion]]:
    """What asks a client for the reply, given whether it is to be streamed."""
    return lambda stream: methodcaller("generate", call, stream=stream)


def _asked_to_wait_s(error: OllamaError) -> float:
    """The seconds that a busy server asked for before the next attempt."""
    return (error.retry_after_s or 0.0) if isinstance(error, ServerBusyError) else 0.0


def _probe_like(call: Call) -> Callable[[ModelClient, float], object]:
    """Asks a model for one token, with the options that decide how it is loaded."""
    probe = Call(model=call.model, prompt="Say yes.", options={**call.options, "num_predict": 1})
    return lambda client, within_s: client.generate(probe, timeout_s=within_s)


def account_totals(dispatcher: Dispatcher) -> dict[str, float]:
    """The dispatcher's accounts summed over models."""
    names = [account_field.name for account_field in fields(Account)]
    accounts = dispatcher.accounts().values()
    return {name: float(sum(getattr(account, name) for account in accounts)) for name in names}
