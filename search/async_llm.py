"""An asyncio face of the call layer: coroutines wait while threads call; the event loop is never held up.

Equal calls under way are one before they reach a thread, and what is known already is looked up on a thread
of its own. So neither waits behind calls that wait for a place under the cap.

One call that threads make and coroutines wait for.
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
from ollama_utils.errors import BadRequestError, CallCancelledError
from ollama_utils.limits import checked_rate
from ollama_utils.reply_log import question_of
from ollama_utils.single_flight import key_of, shared
from ollama_utils.types import Call, Completion
from search.call_pool import CallPool, Counts, callers_for
from search.evolution import SOLVER, embedded_dispatcher


class Asked:
    """A call on its way, and how many wait for it, in one event loop or several.

    Args:
        call: what is asked.
        key: equal for calls that are one.
    """

    def __init__(self, call: Call, key: object) -> None:
        self.call = call
        self.key = key
        self.waiting = 0
        """How many wait for it."""
        self.sent = False
        """Whether a thread has it."""
        self._outcome: Future[Completion] = Future()

    def settle(self, outcome: Completion | Exception) -> None:
        """Tell those who wait; what was told first stays."""
        with suppress(InvalidStateError):
            if isinstance(outcome, Exception):
                self._outcome.set_exception(outcome)
            else:
                self._outcome.set_result(outcome)

    async def outcome(self) -> Completion:
        """The reply, once it is there; what is raised when this is cancelled is nobody else's.

        Raises:
            Exception: what the call raised.
        """
        loop = asyncio.get_running_loop()
        told = asyncio.Event()

        def tell(_outcome: Future[Completion]) -> None:
            with suppress(RuntimeError):  # the loop of one who was cancelled may be gone
                loop.call_soon_threadsafe(told.set)

        self._outcome.add_done_callback(tell)
        await told.wait()
        return self._outcome.result()


_TIMEOUT_S = 120.0


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
        self._timeout_s = _TIMEOUT_S if timeout_s is None else timeout_s
        self._dispatcher = dispatcher
        self._pool: CallPool | None = None
        self._undo = ExitStack()
        self._opening = threading.Lock()
        self._lookers = ThreadPoolExecutor(1, "async-look")
        self._askers = ThreadPoolExecutor(callers_for(max(2, max_concurrent_requests)), "async-ask")
        self._lock = threading.Lock()
        self._under_way: dict[object, Asked] = {}
        self._closed = False
        if dispatcher is not None:
            self._open()

    async def generate(self, prompt: str, system: str | None = None, seed: int | None = None) -> Completion:
        """The reply to one prompt; a failure stands in its `error`.

        Raises:
            ReplyLogError: the reply cannot be written down.
            SimulatorError: the embedded server does not start.
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
            SimulatorError: the embedded server does not start.
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
            SimulatorError: the embedded server does not start.
        """
        pool = self._open()
        return _cancelled() if pool is None else pool.ask(call)

    @property
    def metrics(self) -> Counts:
        """What was asked so far; a copy."""
        return Counts() if self._pool is None else self._pool.counts()

    def close(self) -> None:
        """End: calls that wait come back with CallCancelledError; no server is waited for."""
        with self._lock:
            self._closed = True
            waiting = list(self._under_way.values())
            self._under_way.clear()
        self._lookers.shutdown(wait=False, cancel_futures=True)
        self._askers.shutdown(wait=False, cancel_futures=True)
        for asked in waiting:
            asked.settle(_cancelled())
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
        all_asked: list[tuple[Asked, bool]] = []
        try:
            for call in calls:
                all_asked.append(self._begin(call))
                await asyncio.sleep(0)  # a large batch leaves time for other tasks
            return [self._seen(await asked.outcome(), is_first) for asked, is_first in all_asked]
        finally:
            for asked, _ in all_asked:
                self._give_up(asked)

    def _begin(self, call: Call) -> tuple[Asked, bool]:
        """A call that is under way from now on, and whether no equal one was before."""
        key = _key(call)
        with self._lock:
            asked = self._under_way.get(key)
            is_first = asked is None
            if asked is None:
                asked = Asked(call, key)
                if self._closed:
                    asked.settle(_cancelled())
                else:
                    self._under_way[key] = asked
            asked.waiting += 1
        if is_first:
            with suppress(RuntimeError):  # closed meanwhile, which settles it
                self._lookers.submit(self._look, asked)
        return asked, is_first

    def _seen(self, completion: Completion, is_first: bool) -> Completion:  # noqa: FBT001 - private
        """An outcome as one of those who asked gets it; the first one's is counted by the pool."""
        if is_first:
            return completion
        completion = shared(completion)
        if self._pool is not None:
            self._pool.count(completion)
        return completion

    def _give_up(self, asked: Asked) -> None:
        """One fewer waits for it; it is not sent for nobody."""
        with self._lock:
            asked.waiting -= 1
            if not asked.waiting and not asked.sent and self._under_way.get(asked.key) is asked:
                del self._under_way[asked.key]

    def _look(self, asked: Asked) -> None:
        """Settle what is known; hand on what is not. On the one thread that waits for no server."""
        outcome: Completion | Exception | None
        try:
            pool = self._open()
            outcome = _cancelled() if pool is None else pool.known(asked.call)
        except Exception as error:  # noqa: BLE001 - told to those who wait
            outcome = error
        if outcome is None:
            with suppress(RuntimeError):  # likewise
                self._askers.submit(self._send, asked)
        else:
            self._settle(asked, outcome)

    def _send(self, asked: Asked) -> None:
        """Ask, and settle."""
        with self._lock:
            if not asked.waiting:
                return
            asked.sent = True
        try:
            outcome: Completion | Exception = self.ask(asked.call)
        except Exception as error:  # noqa: BLE001 - told to those who wait
            outcome = error
        self._settle(asked, outcome)

    def _settle(self, asked: Asked, outcome: Completion | Exception) -> None:
        with self._lock:
            if self._under_way.get(asked.key) is asked:
                del self._under_way[asked.key]
        asked.settle(outcome)

    def _open(self) -> CallPool | None:
        """The pool, with a server to ask; None after the end."""
        with self._opening:
            if self._pool is None and not self._closed:
                dispatcher = self._dispatcher or self._undo.enter_context(
                    embedded_dispatcher(self._most, timeout_s=self._timeout_s)
                )
                self._undo.enter_context(dispatcher.limited(self._rate))
                self._pool = CallPool(dispatcher, self._most)
                self._undo.callback(self._pool.cancel)
            return self._pool


def _key(call: Call) -> object:
    """Equal for calls that are one; a call that cannot be written, or is drawn at random, is its own."""
    try:
        return key_of(question_of(call)) if call.repeatable else object()
    except BadRequestError:
        return object()


def _cancelled() -> Completion:
    return Completion(
        text="", attempts=0, error=CallCancelledError("the interface was closed before the reply")
    )
