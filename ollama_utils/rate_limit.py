"""A limit on how many requests go out a minute: a bucket into which tokens fall, one for each request."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from ollama_utils.errors import CallCancelledError

_MINUTE_S = 60.0


class TokenBucket:
    """Tokens that fall in at a steady rate; who comes first gets the next one.

    It starts empty, so in no window of w seconds does it give more than w * rate + burst, its first not
    excepted. A token is reserved by whoever waits for it: if that one gives up, it is lost.

    Args:
        per_minute: tokens a minute; None: nobody waits.
        burst: the most tokens that lie in it; those that fall in beside them are lost.
        clock: seconds from a fixed moment, never going back.

    Raises:
        ValueError: the rate is not above 0, or the burst below 1.
    """

    def __init__(
        self, per_minute: float | None = None, burst: int = 1, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if burst < 1:
            raise ValueError(f"burst must be at least 1, got {burst!r}")
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._empty_s = -math.inf
        self.per_minute = per_minute

    @property
    def per_minute(self) -> float | None:
        """Tokens a minute. Once changed, the bucket is empty; who waits already keeps the promised moment."""
        return self._per_minute

    @per_minute.setter
    def per_minute(self, per_minute: float | None) -> None:
        if per_minute is not None and not 0 < per_minute < math.inf:
            raise ValueError(f"a rate limit must be a number above 0 a minute, or None, got {per_minute!r}")
        with self._lock:
            self._per_minute = per_minute
            self._empty_s = max(self._empty_s, self._clock())

    def reserve(self) -> float:
        """Take the next token; the moment from which it is there, now or later."""
        with self._lock:
            now_s = self._clock()
            if self._per_minute is None:
                return now_s
            interval_s = _MINUTE_S / self._per_minute
            # The moment at which the bucket held nothing, had it only been filled since.
            self._empty_s = max(self._empty_s, now_s - self._burst * interval_s) + interval_s
            return max(now_s, self._empty_s)

    def wait(self, cancelled: threading.Event) -> float:
        """Wait for the next token; the moment from which it was there.

        Raises:
            CallCancelledError: `cancelled` was set before.
        """
        due_s = self.reserve()
        while (left_s := due_s - self._clock()) > 0:
            if cancelled.wait(left_s):
                raise CallCancelledError("the run was stopped before the rate limit let the call out")
        return due_s
