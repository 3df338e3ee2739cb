"""Calls under one cap, counted: for threads, and for an event loop, which stays free meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import CALL_TIMEOUT_S, Call, Completion
from simulator.process import EmbeddedServer
from simulator.settings import Settings

SOLVER = "sim-solver"
"""The embedded server's model that solves problems."""
TIME_SCALE = 0.1
"""A second of the embedded server takes so long: nobody has to be patient to try a search."""
_SPARE = 16
"""Threads beside two a call: one that waits for an attempt has nothing in flight."""


@contextmanager
def _embedded(slots: int, timeout_s: float) -> Iterator[Dispatcher]:
    """A dispatcher to a simulator that lives as long as `with`."""
    with (
        EmbeddedServer(Settings(slots=slots, time_scale=TIME_SCALE)) as server,
        Dispatcher(
            [server.host], timeout_s=timeout_s, ensure_running=server.ensure_running
        ) as dispatcher,
    ):
        logging.getLogger(__name__).warning(
            "SIMULATED: no dispatcher given; the embedded server at %s answers, at %g of its time",
            server.host,
            TIME_SCALE,
        )
        yield dispatcher


class AsyncLLMInterface:
    """Calls to models under one limit on requests in flight; close it, as by `async with`.

    When a task is cancelled it stops waiting, and its call is not sent if it has not been yet.

    Args:
        dispatcher: sends the calls; it stays open when this is closed. None: the embedded server
            is started, and is ended when this is closed.
        model: the model that `generate` asks; only without a dispatcher may it be left out.
        max_concurrent_requests: the most requests in flight at once, of all tasks and threads.
        rate_limit_per_minute: the most requests a minute of all who use the dispatcher, until this
            is closed; None sets no limit.
        timeout_s: seconds that an attempt at the embedded server may take; a dispatcher that is
            given has a timeout of its own.
        options: Ollama's options of each call of `generate`; temperature and seed are 0 unless set.
        on_reply: called after each call, on any thread.

    Raises:
        ValueError: a limit is out of its range, or a dispatcher comes without a model.
    """

    def __init__(
        self,
        dispatcher: Dispatcher | None = None,
        *,
        model: str | None = None,
        max_concurrent_requests: int = 10,
        rate_limit_per_minute: float | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        options: Mapping[str, Any] | None = None,
        on_reply: Callable[[], None] = lambda: None,
    ) -> None:
        if dispatcher is not None and model is None:
            raise ValueError("expected a model's name beside a dispatcher: pass model='...'")
        most = max_concurrent_requests
        with ExitStack() as stack:  # ends the server again where a later argument is refused
            dispatcher = dispatcher or stack.enter_context(_embedded(most, timeout_s))
            stack.enter_context(dispatcher.rate.limited(rate_limit_per_minute))
            self._cap = dispatcher.servers.new_cap(most)
            self._undo = stack.pop_all()
        self.dispatcher, self.model = dispatcher, model or SOLVER
        self._options = {"temperature": 0, "seed": 0, **(options or {})}
        self._on_reply = on_reply
        self._threads = ThreadPoolExecutor(2 * most + _SPARE, "call")
        self._lock = threading.Lock()
        self._counts = Counter(calls=0, hits=0, errors=0, retries=0)
        self._began_s: float | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """What was asked so far.

        `calls` that came to an end; `hits`, those that an equal call paid for; `errors`, those
        without a reply; `retries`, requests that repeated one; `in_flight` and `max_in_flight`;
        `elapsed_s` since the first call, `hit_rate` of the calls, `throughput_per_s` of them.
        """
        with self._lock:
            counts: dict[str, float] = dict(self._counts)
            elapsed_s = 0.0 if self._began_s is None else time.monotonic() - self._began_s
        return {
            **counts,
            "in_flight": self._cap.in_flight,
            "max_in_flight": self._cap.max_in_flight,
            "elapsed_s": elapsed_s,
            "hit_rate": counts["hits"] / max(1, counts["calls"]),
            "throughput_per_s": counts["calls"] / elapsed_s if elapsed_s else 0.0,
        }

    async def generate(
        self, prompt: str, system: str | None = None, seed: int | None = None
    ) -> Completion:
        """The reply to one prompt; a failure stands in its `error`.

        Raises:
            ReplyLogError: the reply cannot be written down.
            RuntimeError: this is closed.
        """
        options = self._options if seed is None else {**self._options, "seed": seed}
        call = Call(model=self.model, prompt=prompt, system=system, options=options)
        return await asyncio.wrap_future(self._threads.submit(self.ask, call))

    async def batch_generate(
        self, prompts: Sequence[str], systems: Sequence[str | None] | None = None
    ) -> list[Completion]:
        """The replies to N prompts, each under its system prompt if there are some, in order.

        Raises ValueError if there are not as many system prompts.
        """
        systems = [None] * len(prompts) if systems is None else systems
        pairs = list(zip(prompts, systems, strict=True))
        return await asyncio.gather(*(self.generate(*pair) for pair in pairs))

    def ask(self, call: Call) -> Completion:
        """The reply to a call of any model, under the same cap; blocks: for threads.

        Raises ReplyLogError if the reply cannot be written down.
        """
        with self._lock:
            self._began_s = self._began_s or time.monotonic()
        reply = self.dispatcher.generate(call, cap=self._cap)
        with self._lock:
            self._counts.update(
                calls=1,
                hits=reply.cached,
                errors=reply.error is not None,
                retries=max(0, reply.attempts - 1),
            )
        self._on_reply()
        return reply

    def cancel(self) -> None:
        """Send nothing more: calls that wait, and later ones, get CallCancelledError."""
        self._cap.close()

    def drain(self) -> None:
        """Wait until no call is in flight: every reply is written down then."""
        while self._cap.in_flight:
            time.sleep(0.01)

    def close(self) -> None:
        """`cancel`, and end the threads; no server is waited for."""
        self.cancel()
        self._threads.shutdown(wait=False)
        self._undo.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.to_thread(self.close)
