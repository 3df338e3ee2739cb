"""An asyncio face of the call layer: coroutines wait while threads call; the event loop is never held up.

What is known already is looked up on a thread of its own, so that it waits behind no call that waits for a
place under the cap.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError
from ollama_utils.limits import checked_rate
from ollama_utils.types import CALL_TIMEOUT_S, Call, Completion
from search.call_pool import CallPool, Counts, callers_for
from search.evolution import SOLVER, embedded_dispatcher


class AsyncLLMInterface:
    """Calls to one model, from any number of tasks; an asynchronous context manager.

    It may be used without `async with`, from one event loop after another, and from threads with `ask`;
    `close` is then to be called at the end. A task that is cancelled stops waiting: a call of which nobody
    waits any longer is not sent unless a thread has it already, and then its reply is kept for later.

    Args:
        dispatcher: sends the calls, and stays open at the end; None: the embedded server is started with
            the first call, and ended with this.
        model: who is called; may be left out with the embedded server alone.
        max_concurrent_requests: the most requests under way at once, in all tasks together.
        rate_limit_per_minute: the most requests that go out a minute. All who use the dispatcher are held
            to it until the end of this, beside the limits that it and others have: the lowest holds.
        timeout_s: the seconds after which an attempt without a whole reply counts as failed; for the embedded
            server's dispatcher, as one that is given has its own.
        options: Ollama's options of each call, beside temperature 0 and the seed.
        seed: of calls that name none.

    Raises:
        ValueError: a limit is out of its range, or a dispatcher comes without a model or with `timeout_s`.
    """

    def __init__(
        self,
        dispatcher: Dispatcher | None = None,
        *,
        model: str | None = None,
        max_concurrent_requests: int = 10,
        rate_limit_per_minute: float | None = None,
        timeout_s: float | None = None,
        options: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        if max_concurrent_requests < 1:
            raise ValueError(f"max_concurrent_requests must be at least 1, got {max_concurrent_requests!r}")
        if dispatcher is not None and model is None:
            raise ValueError("expected the model's name beside a dispatcher, got none: pass model='...'")
        if dispatcher is not None and timeout_s is not None:
            raise ValueError("a dispatcher that is given has its own timeout_s: pass it to Dispatcher(...)")
        self.model = SOLVER if model is None else model
        self._options = {"temperature": 0, **(options or {})}
        self._seed = seed
        self._most = max_concurrent_requests
        self._rate = checked_rate(rate_limit_per_minute)
        self._timeout_s = CALL_TIMEOUT_S if timeout_s is None else timeout_s
        self._dispatcher = dispatcher
        self._pool: CallPool | None = None
        self._undo = ExitStack()
        self._opening = threading.Lock()
        self._look_ups = ThreadPoolExecutor(1, "async-look")
        self._callers = ThreadPoolExecutor(callers_for(max(2, max_concurrent_requests)), "async-call")
        self._lock = threading.Lock()
        self._waiting: set[Future[Completion]] = set()
        self._closed = False
        if dispatcher is not None:
            self._open()

    async def generate(self, prompt: str, system: str | None = None, seed: int | None = None) -> Completion:
        """The reply to one prompt; a failure stands in its `error`.

        Raises:
            ReplyLogError: the reply cannot be written down.
            ChildError: the embedded server does not start.
        """
        (completion,) = await self._replies([self._call(prompt, system, seed)])
        return completion

    async def batch_generate(
        self, prompts: Sequence[str], systems: Sequence[str | None] | None = None
    ) -> list[Completion]:
        """The replies to many prompts, in their order; a failure stands in the `error` of its own.

        Args:
            prompts: N prompts.
            systems: N system prompts; None keeps the model's own for all.

        Raises:
            ValueError: there are not as many system prompts.
            ReplyLogError: a reply cannot be written down.
            ChildError: the embedded server does not start.
        """
        if isinstance(prompts, str):
            raise ValueError(f"expected a list of prompts, got one text: {prompts!r}")  # noqa: TRY004 - a wrong value
        systems = [None] * len(prompts) if systems is None else systems
        if len(systems) != len(prompts):
            raise ValueError(f"expected {len(prompts)} system prompts, one a prompt, got {len(systems)}")
        return await self._replies([self._call(*pair) for pair in zip(prompts, systems, strict=True)])

    def ask(self, call: Call) -> Completion:
        """The reply to one call of any model, under the same cap; blocks: for threads.

        Raises:
            ReplyLogError: the reply cannot be written down.
            ChildError: the embedded server does not start.
        """
        pool = self._open()
        return _cancelled() if pool is None else pool.generate(call)

    @property
    def metrics(self) -> Counts:
        """What was asked so far; a copy."""
        return Counts() if self._pool is None else self._pool.counts()

    def close(self) -> None:
        """End: calls that wait come back with CallCancelledError; no server is waited for."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting)
        self._look_ups.shutdown(wait=False, cancel_futures=True)
        self._callers.shutdown(wait=False, cancel_futures=True)
        for reply in waiting:
            _settle(reply, _cancelled())
        with self._opening:
            self._undo.close()

    async def aclose(self) -> None:
        """`close`, while the event loop goes on."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _call(self, prompt: str, system: str | None, seed: int | None = None) -> Call:
        options = self._options | {"seed": self._seed if seed is None else seed}
        return Call(model=self.model, prompt=prompt, system=system, options=options)

    async def _replies(self, calls: Sequence[Call]) -> list[Completion]:
        replies: list[asyncio.Future[Completion]] = []
        try:
            for call in calls:
                replies.append(asyncio.wrap_future(self._begin(call)))
                await asyncio.sleep(0)  # a large batch leaves time for other tasks
            return await asyncio.gather(*replies)
        finally:
            for reply in replies:
                reply.cancel()

    def _begin(self, call: Call) -> Future[Completion]:
        """The reply to come; it may be cancelled, and the call is not sent then if no thread has it yet."""
        reply: Future[Completion] = Future()
        with self._lock:
            if self._closed:
                reply.set_result(_cancelled())
                return reply
            self._waiting.add(reply)
            reply.add_done_callback(self._waiting.discard)
            self._look_ups.submit(self._look_up, call, reply)
        return reply

    def _look_up(self, call: Call, reply: Future[Completion]) -> None:
        """Settle what is known, and hand on what is not. On the one thread that waits for no server."""
        if reply.done():
            return
        try:
            pool = self._open()
            outcome = _cancelled() if pool is None else pool.known(call)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits
            _settle(reply, error)
        else:
            if outcome is not None:
                _settle(reply, outcome)
                return
            with suppress(RuntimeError):  # closed meanwhile, which settles it
                self._callers.submit(self._send, call, reply)

    def _send(self, call: Call, reply: Future[Completion]) -> None:
        if reply.done():
            return
        try:
            outcome: Completion | Exception = self.ask(call)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits
            outcome = error
        _settle(reply, outcome)

    def _open(self) -> CallPool | None:
        """The pool, with a server to ask; None after the end."""
        with self._opening:
            if self._pool is None and not self._closed:
                dispatcher = self._dispatcher or self._undo.enter_context(
                    embedded_dispatcher(self._most, timeout_s=self._timeout_s)
                )
                self._undo.enter_context(dispatcher.rate.limited(self._rate))
                self._pool = CallPool(dispatcher, self._most)
                self._undo.callback(self._pool.cancel)
            return self._pool


def _settle(reply: Future[Completion], outcome: Completion | Exception) -> None:
    """Give those who wait their reply; what was given first stays."""
    with suppress(InvalidStateError):
        if isinstance(outcome, Exception):
            reply.set_exception(outcome)
        else:
            reply.set_result(outcome)


def _cancelled() -> Completion:
    return Completion(
        text="", attempts=0, error=CallCancelledError("the interface was closed before the reply")
    )
