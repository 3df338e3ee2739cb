"""All calls of a search under one cap, however its parts are nested, and counts of them.

A place under the cap is held by what is under way to a server, and by nothing else: a reply that is known
comes at once, an equal call under way is shared, and between two attempts the place is another's.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import BadRequestError, CallCancelledError
from ollama_utils.types import Call, Completion

_SPARE = 16
"""Callers beside two a place, so that a small cap outlasts a burst of failures, too."""


@dataclass(kw_only=True)
class Counts:
    """What a pool did so far."""

    calls: int = 0
    """Calls that came to an end."""
    hits: int = 0
    """How many of them got a reply that an equal call had paid for."""
    saved: int = 0
    """How many of them sent nothing, as an equal call was known or under way: hits, and failures shared."""
    errors: int = 0
    """How many of them have no reply."""
    retries: int = 0
    """Requests that repeated one that had failed."""
    in_flight: int = 0
    """Places under the cap that are held now: requests under way, or that wait for the rate limit."""
    max_in_flight: int = 0
    """The most places that were held at once."""
    elapsed_s: float = 0.0
    """Seconds since the first call came."""

    @property
    def hit_rate(self) -> float:
        """Hits per call; 0 before the first."""
        return self.hits / self.calls if self.calls else 0.0

    def to_dict(self) -> dict[str, float]:
        """All of it, ready for JSON."""
        return vars(self) | {"hit_rate": self.hit_rate, "throughput_per_s": self.throughput_per_s}

    @property
    def throughput_per_s(self) -> float:
        """Calls that came to an end per second since the first one came; 0 before."""
        return self.calls / self.elapsed_s if self.elapsed_s > 0 else 0.0


def callers_for(max_concurrent: int) -> int:
    """So many callers at once keep as many places busy."""
    return 1 if max_concurrent == 1 else 2 * max_concurrent + _SPARE


class CallPool:
    """Calls through a dispatcher, of which so many are under way at most; shared by all threads.

    It stands wherever a dispatcher's `generate` is wanted.

    Args:
        dispatcher: sends them. Its gates, which keep a server from being asked for more than it can take,
            hold beside the cap; calls that others make through it do not count.
        max_concurrent: the most requests under way at once, over all models and servers. Places are given
            in the order in which calls pass their model's gate.

    Raises:
        ValueError: `max_concurrent` is less than 1.
    """

    def __init__(self, dispatcher: Dispatcher, max_concurrent: int) -> None:
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent must be at least 1, got {max_concurrent!r}")
        self.dispatcher = dispatcher
        self._cap = dispatcher.new_cap(max_concurrent)
        self._counts = Counts()
        self._began_s: float | None = None
        self._lock = threading.Lock()

    @property
    def max_concurrent(self) -> int:
        """The most requests under way at once."""
        return self._cap.limit

    @property
    def callers(self) -> int:
        """So many callers at once keep the places busy: one that waits for its next attempt holds none."""
        return callers_for(self.max_concurrent)

    def known(self, call: Call) -> Completion | None:
        """The reply to a call, and the call counted, if an equal one has it; no server is asked.

        Raises:
            ReplyLogError: a log cannot be read.
        """
        completion = self.dispatcher.known(call)
        if completion is not None:
            self._begin()
            self._count(completion)
        return completion

    def generate(self, call: Call) -> Completion:
        """The reply to one call, as `Dispatcher.generate` returns it: a failure stands in `error`.

        Raises:
            ReplyLogError: the reply cannot be written down.
        """
        self._begin()
        completion = None
        try:
            completion = self.dispatcher.generate(call, cap=self._cap)
        finally:
            self._count(completion)
        return completion

    def counts(self) -> Counts:
        """What it did so far; a copy."""
        with self._lock:
            elapsed_s = 0.0 if self._began_s is None else time.monotonic() - self._began_s
            in_flight, most = self._cap.in_flight, self._cap.max_in_flight
            return replace(self._counts, in_flight=in_flight, max_in_flight=most, elapsed_s=elapsed_s)

    def cancel(self) -> None:
        """Turn away the calls that wait for anything but a server, and all later ones: CallCancelledError.

        Known replies are still given. The dispatcher goes on for others.
        """
        self._cap.close()

    def _begin(self) -> None:
        with self._lock:
            if self._began_s is None:
                self._began_s = time.monotonic()

    def _count(self, completion: Completion | None) -> None:
        """Count a call that came to an end. None: it raised."""
        with self._lock:
            counts = self._counts
            counts.calls += 1
            if completion is None:
                counts.errors += 1
                return
            never_sent = isinstance(completion.error, BadRequestError | CallCancelledError)
            counts.hits += completion.cached
            counts.saved += completion.attempts == 0 and not never_sent
            counts.errors += completion.error is not None
            counts.retries += max(completion.attempts - 1, 0)
