"""The order of things: every call to a model passes here.

A call takes the first of these that it meets: a known reply; an equal call under way, whose reply it
shares; a reply on disk; the gate of a server and model, where it waits for its turn; the server. A
failure that may pass is met with more attempts, between which no place in a gate is held. Where a log of
replies is kept, no reply is given out before it is written down.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential_jitter

from ollama_utils.accounts import Account, Accounts
from ollama_utils.cache import ReplyCache, key_of
from ollama_utils.capacity import Found
from ollama_utils.client import OllamaClient
from ollama_utils.errand import Errand
from ollama_utils.errors import BadRequestError, CallCancelledError, OllamaError
from ollama_utils.questions import Question, as_json, embed_question, from_json, question_of
from ollama_utils.reply_log import Outcome, ReplyLog, find_in
from ollama_utils.server import MaxInFlight, Server
from ollama_utils.types import Call, Completion, Usage, short_name

T = TypeVar("T")

_MAX_BACKOFF_S = 30.0
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

    Raises:
        ValueError: no host, one that cannot be read, or a limit below 1.
    """

    def __init__(
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
    ) -> None:
        if isinstance(hosts, str) or not hosts:
            raise ValueError(f"expected a list of at least one host, got {hosts!r}")
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {attempts!r}")
        if max_in_flight != "auto" and max_in_flight < 1:
            raise ValueError(f"max_in_flight must be 'auto' or at least 1, got {max_in_flight!r}")
        clients = (OllamaClient(host, timeout_s=timeout_s, obituary=obituary) for host in hosts)
        self._servers = {client.host: Server(client, max_in_flight=max_in_flight) for client in clients}
        self._attempts = attempts
        self._deadline_s = deadline_s
        self._cache = ReplyCache(cache_size) if cache_size > 0 else None
        self._logs: tuple[ReplyLog, ...] = ()
        self._accounts = Accounts()
        self._cancelled = threading.Event()
        self._retrying = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, OllamaError) and error.retryable),
            stop=self._is_over,
            wait=wait_exponential_jitter(multiplier=backoff_s, jitter=backoff_s, max=_MAX_BACKOFF_S),
            sleep=self._pause,
            reraise=True,
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The servers' base URLs."""
        return tuple(self._servers)

    @property
    def max_in_flight_seen(self) -> int:
        """The most calls that were under way at once, over all servers and models."""
        return self._accounts.max_in_flight

    def keep_in(self, *logs: ReplyLog) -> None:
        """From now on write each reply to these logs before it is given out, and ask for none they hold."""
        self._logs = logs

    def generate(self, call: Call) -> Completion:
        """The reply to one call; blocks until it is there, or given up.

        Equal calls that a seed or temperature 0 makes repeatable are asked once. A failure does not
        raise: it stands in `error`, beside an empty text.

        Raises:
            ReplyLogError: the reply cannot be written down.
        """
        try:
            question = question_of(call)
        except BadRequestError as error:
            return Completion(text="", error=error, attempts=0)
        if not call.repeatable:
            return self._answer(call, question)
        if self._cache is None:
            return self._written_or_asked(call, question)
        completion = self._cache.reply(key_of(question), lambda: self._written_or_asked(call, question))
        if completion.cached:
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
        """The models that every server has, as the first one lists them, each with its digest at each server.

        They are asked once, without retries.

        Raises:
            OllamaError: a server gives no list; ServerUnreachableError when it does not answer.
        """
        first, *others = (server.client.models() for server in self._servers.values())
        digests = [{short_name(name): digest for name, digest in there.items()} for there in others]
        return {
            name: [digest, *(there[short_name(name)] for there in digests)]
            for name, digest in first.items()
            if all(short_name(name) in there for there in digests)
        }

    def accounts(self) -> dict[str, Account]:
        """What the calls cost so far, by model; the tag `:latest` is left out of the names."""
        return self._accounts.snapshot()

    def capacities(self) -> dict[tuple[str, str], Found]:
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
        self._cancelled.set()
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

    def _written_or_asked(self, call: Call, question: Question) -> Completion:
        reply = find_in(self._logs, question)
        return self._answer(call, question) if reply is None else from_json(reply)

    def _answer(self, call: Call, question: Question) -> Completion:
        """The server's reply, or the last attempt's error in its place."""
        errand = Errand(call.model, self._deadline_s)

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
        errand = Errand(model, self._deadline_s)
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
        try:
            return self._attempt(errand, ask)
        except OllamaError as error:
            failed = [error]

        def attempt(errand: Errand) -> T:
            """The attempt that failed already, and then the others: only now is tenacity worth its time."""
            if failed:
                raise failed.pop()
            return self._attempt(errand, ask)

        answer: T = self._retrying(attempt, errand)
        return answer

    def _attempt(self, errand: Errand, ask: Callable[[OllamaClient], tuple[T, Usage | None]]) -> T:
        server, came_s = self._route(errand), time.monotonic()
        with server.visit(errand.model) as visit:
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

    def _route(self, errand: Errand) -> Server:
        """The server with the most room for a model; those that are away, or failed this call, come last."""

        def merits(server: Server) -> tuple[bool, bool, int]:
            return not server.is_away, server.host not in errand.hosts, server.gate(errand.model).room

        first, *others = self._servers.values()
        return max((first, *others), key=merits) if others else first

    def _is_over(self, state: RetryCallState) -> bool:
        """Whether a call that failed is given up."""
        errand: Errand = state.args[0]
        return len(errand.hosts) >= self._attempts or errand.is_late(state.upcoming_sleep)

    def _pause(self, pause_s: float) -> None:
        """Wait before the next attempt."""
        if self._cancelled.wait(pause_s):
            raise CallCancelledError("the run was stopped before the next attempt")
