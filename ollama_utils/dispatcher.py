"""The dispatcher: every call to a model passes here.

A call is answered by the first of these that can: memory, an equal call under way, a log on disk, a
server. On its way to a server it waits for a place there (`servers`), under its caller's cap and
for the rate (`limits`). A failure that may pass is answered with more attempts, under one rule
(`Dispatcher._send`); between them no place is held. Where logs of replies are kept, no reply is
returned before it is written down.
"""

from __future__ import annotations

import copy
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    NotInLogError,
    OllamaError,
    ServerBusyError,
)
from ollama_utils.limits import Cap, RateLimit
from ollama_utils.memory import ReplyMemory
from ollama_utils.model_client import ModelClient
from ollama_utils.reply_log import (
    Question,
    ReplyLog,
    as_json,
    embed_question,
    find_in,
    from_json,
    question_of,
    row_from_json,
)
from ollama_utils.servers import Place, Probe, Servers
from ollama_utils.threads import POLL_S
from ollama_utils.types import (
    CALL_ATTEMPTS,
    CALL_TIMEOUT_S,
    MAX_OUTAGE_S,
    MAX_REPLY_CHARS,
    MEMORY_BYTES,
    THINK_BUDGET,
    USAGE_TOKENS,
    Call,
    Completion,
    Embeddings,
    Role,
    Think,
)
from ollama_utils.wires import open_client

Reply = TypeVar("Reply", Completion, Embeddings)

_log_warning = logging.getLogger(__name__).warning
_MOST_TOKENS: Mapping[Role, int] = {"target": 512, "mutator": 512, "judge": 256}
"""The limit of a call that sets none. Every reply must end: a model that follows a schema may write
white space for ever."""
_NO_THOUGHTS: Mapping[Role, Think] = {"mutator": False, "judge": False}  # unless the user asks
_COUNTS = (
    "calls",  # attempts: requests that were sent
    "failures",  # how many of these failed
    "retries",  # how many of these repeated one that had failed
    "cache_hits",  # replies that an earlier equal call, or one under way, had paid for
    *USAGE_TOKENS,
    "queue_s",  # seconds that calls waited for a slot of the server, by its own timings
    "busy_s",  # seconds that calls held a slot: prefill and decode, by the server's own timings
)
"""What `Dispatcher.totals` adds up."""
_MAX_BACKOFF_S, _MAX_DOUBLINGS = 30.0, 6


class Dispatcher(AbstractContextManager["Dispatcher"]):
    """Sends calls to the models of one or several servers; shared by all threads of a run.

    Args:
        hosts: the servers, as OLLAMA_HOST is written, or `openai:URL` for an OpenAI-compatible one;
            each must have the models that are called.
        max_in_flight: the most calls at once to one model of one server; None: some more than the
            replies show that it serves at once (see `ollama_utils.limits.Limit`).
        attempts: how often a failing call is sent at most.
        timeout_s: seconds without a word after which an attempt has failed; they count from the
            last reply to a call sent before it, for until then it may have waited in a queue there.
            After ten times as many the attempt is given up in any case.
        max_outage_s: for how long calls wait while no server is there; then OutageError ends
            everything. None: they do not wait, but fail one by one.
        memory_bytes: bytes for remembered replies; 0 asks anew each time.
        backoff_s: seconds before the second attempt; they double with each one, with jitter. A
            server that is away is probed every 2 * backoff_s seconds.
        ensure_running: is called while nobody answers; returns why nobody ever will again, where
            that can be known, else None.
        report: is given a line for the user when an outage begins and ends.
        max_reply_chars: the characters of a reply that are kept.
        think: whether models think, by their role; a call's own word counts first.
        think_budget: tokens of thoughts, beside those of the answer, in a call that is to think.
        opener: opens the client of each host: `open_client`, or one with the same arguments.
        slots: the calls that each model serves at once, where that is known; None: it is found.

    Raises:
        ValueError: no host, one that cannot be read, or a limit below 1.
    """

    def __init__(  # noqa: PLR0913 - each is a setting of its own, given by name
        self,
        hosts: Sequence[str],
        *,
        max_in_flight: int | None = None,
        attempts: int = CALL_ATTEMPTS,
        timeout_s: float = CALL_TIMEOUT_S,
        max_outage_s: float | None = MAX_OUTAGE_S,
        memory_bytes: int = MEMORY_BYTES,
        backoff_s: float = 0.5,
        ensure_running: Callable[[], str | None] = lambda: None,
        report: Callable[[str], None] = _log_warning,
        max_reply_chars: int = MAX_REPLY_CHARS,
        think: Mapping[Role, Think | None] = _NO_THOUGHTS,
        think_budget: int = THINK_BUDGET,
        opener: Callable[..., ModelClient] = open_client,
        slots: int | None = None,
    ) -> None:
        if isinstance(hosts, str) or not hosts:
            raise ValueError(f"expected a list of at least one host, got {hosts!r}")
        for name, value in (("attempts", attempts), ("max_in_flight", max_in_flight)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        self.rate = RateLimit()
        """How many requests go out a minute."""
        self.servers = Servers(
            [opener(host, timeout_s=timeout_s, max_reply_chars=max_reply_chars) for host in hosts],
            max_in_flight=max_in_flight,
            slots=slots,
            timeout_s=timeout_s,
            apart_s=max(0.01, 2 * backoff_s),
            max_outage_s=max_outage_s,
            ensure_running=ensure_running,
            report=report,
        )
        self._attempts, self._backoff_s = attempts, backoff_s
        self._think, self._think_budget = think, think_budget
        self._memory = ReplyMemory(memory_bytes) if memory_bytes > 0 else None
        self._shares_memory = False
        self._begin_counts()

    def _begin_counts(self) -> None:
        self._logs: tuple[ReplyLog, ...] = ()
        self._lock = threading.Lock()
        self._totals = dict.fromkeys(_COUNTS, 0.0)
        self.in_flight = 0
        """The calls that are under way."""
        self.completions = 0
        """Completions that were returned: replies of servers, known replies, and failures."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The servers' base URLs, `openai:` before those of OpenAI-compatible ones."""
        return tuple(server.host for server in self.servers.all)

    def for_another_run(self) -> Dispatcher:
        """A dispatcher with its own counts and logs that shares the servers and the memory.

        A reply that another run paid for is also written to the logs of this one, with 0 attempts,
        so that they are complete.
        """
        other = copy.copy(self)
        other._begin_counts()  # noqa: SLF001 - of this class
        other._shares_memory = True  # noqa: SLF001 - likewise
        return other

    def keep_in(self, *logs: ReplyLog) -> None:
        """From now on write each reply to these logs first, and ask for none that they hold."""
        self._logs = logs

    def generate(self, call: Call, *, cap: Cap | None = None) -> Completion:
        """The reply to one call; blocks until it is there, or given up.

        Equal calls that a seed or temperature 0 makes repeatable are sent once. A failure does not
        raise: it stands in `error`, beside an empty text.

        Args:
            call: the request.
            cap: each attempt holds a place in it; see `Servers.new_cap`.

        Raises:
            ReplyLogError: the reply cannot be written down.
            OutageError: no server was there for too long.
            ModelChangedError: a model is not what it was when the run began.
        """
        call, cap = self.with_defaults(call), cap or self.servers.no_cap
        try:
            question = question_of(call)
        except BadRequestError as error:
            completion = Completion(text="", error=error, attempts=0)
        else:
            answer = partial(self._answer, question, call, cap)
            if self._memory is None or not question.repeatable:
                completion = answer()
            else:
                completion = self._memory.ask(question, answer, cap.closed)
            if completion.cached and self._shares_memory:  # another run may have asked for it
                self._write(question, [], reply=as_json(completion))
        with self._lock:
            self.completions += 1
            self._totals["cache_hits"] += completion.cached
        return completion

    def embed(
        self, model: str, texts: Sequence[str], *, fresh: bool = False
    ) -> NDArray[np.float32]:
        """The embeddings of N texts, (N, D) rows of length 1; one request for those not in a log.

        Args:
            model: an embedding model's name.
            texts: N texts; without any, no request is sent.
            fresh: ask the server even for what a log holds, as to see whether it answers.

        Raises:
            OllamaError: there are none, after all attempts.
            ReplyLogError: they cannot be written down.
        """
        asked = [embed_question(model, text) for text in texts]
        found = {each: None if fresh else find_in(self._logs, each) for each in asked}
        if missing := [question for question, reply in found.items() if reply is None]:
            found |= self._embed(model, missing, fresh=fresh)
        rows = [row_from_json(found[question] or "") for question in asked]
        if len(lengths := sorted(set(map(len, rows)))) > 1:
            raise BadReplyError(
                f"the embeddings of model {model!r} are of lengths {lengths}: expected one"
            )
        return np.array(rows, dtype=np.float32).reshape(len(asked), -1 if asked else 0)

    def totals(self) -> dict[str, float]:
        """What all calls cost so far, by the names of `_COUNTS`."""
        with self._lock:
            return dict(self._totals)

    def cancel(self) -> None:
        """Stop for good: calls that are not sent yet get CallCancelledError.

        So do all later ones, unless their reply is known. May be called from any thread.
        """
        self.servers.close()

    def drain(self, timeout_s: float) -> None:
        """Wait until the replies to all calls under way are written, at most for `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        while self.in_flight and time.monotonic() < end_s:
            time.sleep(POLL_S)

    def close(self) -> None:
        """Cancel, and end the calls that are still under way."""
        self.cancel()
        self.servers.abort()

    def __exit__(self, *_error: object) -> None:
        self.close()

    def with_defaults(self, call: Call) -> Call:
        """A call with its defaults: whether the model thinks, and a limit on its tokens."""
        think = self._think.get(call.role) if call.think is None else call.think
        most = call.options.get("num_predict", _MOST_TOKENS[call.role])
        if think and isinstance(most, int) and most > 0:
            most += self._think_budget
        return replace(call, think=think, options={**call.options, "num_predict": most})

    def _answer(self, question: Question, call: Call, cap: Cap) -> Completion:
        """The reply of a log or a server to a call, written down; a failure stands in `error`."""
        if question.repeatable and (kept := find_in(self._logs, question)) is not None:
            return from_json(kept)
        tried_hosts: list[str] = []
        # One token, with the options that decide how the model is loaded.
        options = {**call.options, "num_predict": 1}
        probe = Call(model=call.model, prompt="Say yes.", options=options)
        try:
            completion = self._send(
                [question],
                lambda client, stream: client.generate(call, stream=stream),
                lambda client, within_s: client.generate(probe, timeout_s=within_s),
                cap,
                tried_hosts,
            )
        except OllamaError as error:
            completion = Completion(text="", error=error)
        return replace(completion, attempts=len(tried_hosts))

    def _embed(
        self, model: str, missing: Sequence[Question], *, fresh: bool
    ) -> dict[Question, str]:
        """The embeddings of texts that no log holds, as JSON.

        If two threads embed one text at the same time, the first row in the log counts for both,
        except with `fresh`.
        """
        texts = [json.loads(question.request) for question in missing]
        embeddings = self._send(
            missing,
            lambda client, _stream: client.embed(model, texts),
            lambda client, within_s: client.embed(model, ["yes"], timeout_s=within_s),
            self.servers.no_cap,
            [],
        )
        replies = dict(zip(missing, embeddings.texts, strict=True))
        if fresh:
            return replies
        return {each: find_in(self._logs, each) or reply for each, reply in replies.items()}

    def _send(
        self,
        questions: Sequence[Question],
        ask: Callable[[ModelClient, bool], Reply],
        probe: Probe,
        cap: Cap,
        tried_hosts: list[str],
    ) -> Reply:
        """A server's reply, after as many attempts as it may take: the one rule of retries.

        After an error that may pass (`OllamaError.retryable`) the call is sent again, if possible
        to a server that has not failed it, after a pause that doubles each time, with jitter, or
        that the server asked for. An attempt does not count where the server was away. Each
        attempt adds its host to `tried_hosts`. A reply, or why there is none, is written down.

        `ask` puts all questions, which are of one model, to a client, and may have the reply
        streamed; `probe` asks for as little as possible in the same way.
        """
        failures = 0
        try:
            while True:
                place = self.servers.enter(questions[0].model, tried_hosts, cap)
                try:
                    self.rate.wait(cap)
                    return self._attempt(place, questions, ask, probe, tried_hosts)
                except OllamaError as error:
                    why = error
                finally:
                    self.servers.leave(place)
                failures += not (why.retryable and self.servers.was_away(place))
                self.servers.raise_if_ended()
                if failures >= self._attempts or not why.retryable:
                    raise why
                cap.closed.wait(self._pause_s(len(tried_hosts), why))
        except OllamaError as error:
            self._write(questions[0], tried_hosts, error=error)
            raise

    def _attempt(
        self,
        place: Place,
        questions: Sequence[Question],
        ask: Callable[[ModelClient, bool], Reply],
        probe: Probe,
        tried_hosts: list[str],
    ) -> Reply:
        """One attempt at a server, counted, its reply written down."""
        is_streamed = self.servers.sent(place)
        with self._lock:
            self.in_flight += 1
        self._count(calls=1, retries=bool(tried_hosts))
        tried_hosts.append(place.server.host)
        try:
            reply = ask(place.server.client, is_streamed)
            self.servers.raise_if_ended()
            for number, text in enumerate(_as_texts(reply)):  # the attempts count for the first
                self._write(questions[number], [] if number else tried_hosts, reply=text)
        except BaseException as error:
            self.servers.failed(place, error, probe)
            self._count(failures=1)
            raise
        finally:
            with self._lock:
                self.in_flight -= 1
        self.servers.answered(place, reply.usage)
        if usage := reply.usage:
            tokens = {name: getattr(usage, name) for name in USAGE_TOKENS}
            busy_s = usage.prefill_s + usage.decode_s
            self._count(**tokens, queue_s=usage.queue_s, busy_s=busy_s)
        return reply

    def _count(self, **more: float) -> None:
        """Add to the totals, by their names."""
        with self._lock:
            for name, number in more.items():
                self._totals[name] += number

    def _pause_s(self, attempts: int, error: OllamaError) -> float:
        """The seconds between so many attempts and the next; a busy server may ask for more."""
        doubled_s = self._backoff_s * 2.0 ** min(attempts - 1, _MAX_DOUBLINGS)
        pause_s = min(doubled_s + random.uniform(0, self._backoff_s), _MAX_BACKOFF_S)
        asked_s = error.retry_after_s if isinstance(error, ServerBusyError) else None
        return max(pause_s, asked_s or 0.0)

    def _write(
        self,
        question: Question,
        tried_hosts: Sequence[str],
        *,
        reply: str = "",
        error: OllamaError | None = None,
    ) -> None:
        """Write down what a server was sent; a call that was given up before that is left out."""
        if error is not None and not tried_hosts:
            return
        for log in self._logs:
            log.write(
                question,
                reply=reply,
                error=None if error is None else f"{type(error).__name__}: {error}",
                server=tried_hosts[-1] if tried_hosts else "",
                attempts=0 if isinstance(error, NotInLogError) else len(tried_hosts),
            )


def _as_texts(reply: Completion | Embeddings) -> list[str]:
    """The replies to the questions of one request, as logs keep them."""
    return [as_json(reply)] if isinstance(reply, Completion) else reply.texts
