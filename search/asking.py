"""One call that threads make and coroutines wait for."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from ollama_utils.types import Call, Completion


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
