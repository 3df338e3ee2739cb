"""A rate: `TokenBucket` lets so many calls out a minute."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from ollama_utils.errors import CallCancelledError

_MINUTE_S = 60.0
_LOOK_S = 0.1
"""A changed rate wakes nobody who waits: each looks up as often."""


class Reservation:
    """One place in the row before a bucket."""

    def __init__(self, number: float, came_s: float) -> None:
        self.number = number
        """Its token is there once so many have fallen in, since the bucket was made."""
        self.came_s = came_s


class TokenBucket:
    """Tokens that fall in at a steady rate; who comes first gets the next one.

    Any number of limits hold at once, and the lowest is the rate, for all who take tokens. The bucket starts
    empty, so no window has more tokens than fall in while it lasts, at the rates that hold then, + burst; and
    the first has no burst.

    Args:
        per_minute: tokens a minute, the owner's own limit; None: this is none.
        burst: the most tokens that lie in it; those that fall in beside them are lost.
        clock: seconds from a fixed moment, never going back.

    Raises:
        ValueError: the rate is not above 0, or the burst below 1.
    """

    def __init__(
        self,
        per_minute: float | None = None,
        burst: int = 1,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if burst < 1:
            raise ValueError(f"burst must be at least 1, got {burst!r}")
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._limits: dict[object, float] = {}
        self._rate: float | None = None
        self._since_s = clock()
        self._fallen = 0.0
        """The tokens that had fallen in when the rate was changed last, at `_since_s`."""
        self._last = 0.0
        """The number of the last reservation; those between it and what has fallen in lie in the bucket."""
        self._waiting: deque[Reservation] = deque()
        self.per_minute = per_minute

    @property
    def per_minute(self) -> float | None:
        """The owner's own limit, in tokens a minute, beside those that others set with `limited`."""
        return self._limits.get(self)

    @per_minute.setter
    def per_minute(self, per_minute: float | None) -> None:
        self._limit(self, checked_rate(per_minute))

    @property
    def in_force_per_minute(self) -> float | None:
        """The rate that holds now, the lowest of all limits; None: nobody waits.

        Once it changes, the moments of those who wait are others (they see it within 0.1 s), and what they
        have waited counts. Where nobody waits, the bucket is empty then.
        """
        return self._rate

    def limited(self, per_minute: float | None) -> AbstractContextManager[object]:
        """A further limit from now until the end of `with`, for all who take tokens; None: none.

        Such limits may end in any order.

        Raises:
            ValueError: it is not above 0.
        """
        limit = ExitStack()
        self._limit(limit, checked_rate(per_minute))
        limit.callback(self._limit, limit, None)
        return limit

    def reserve(self) -> Reservation:
        """Take the next token, which is there now or later; whoever does not wait for it gives it up."""
        with self._lock:
            now_s = self._clock()
            fallen = self._fallen_by(now_s)
            if self._rate is None:
                return Reservation(-math.inf, now_s)
            while self._waiting and self._waiting[0].number <= fallen:
                self._waiting.popleft()
            self._last = max(self._last, fallen - self._burst) + 1.0
            reservation = Reservation(self._last, now_s)
            self._waiting.append(reservation)
            return reservation

    def due_s(self, reservation: Reservation) -> float:
        """The moment from which its token is there, as long as nothing changes."""
        with self._lock:
            left = reservation.number - self._fallen
            if self._rate is None or left <= 0:
                return max(reservation.came_s, self._since_s)
            return max(reservation.came_s, self._since_s + left * (_MINUTE_S / self._rate))

    def give_up(self, reservation: Reservation) -> None:
        """Pass the token of a reservation to the next one: all behind it move up."""
        with self._lock:
            # If it was there already, the time since then is lost: the next one goes out now, not earlier.
            moved = min(1.0, reservation.number + 1.0 - self._fallen_by(self._clock()))
            if moved <= 0:
                return
            self._waiting = deque(other for other in self._waiting if other is not reservation)
            for other in self._waiting:
                if other.number > reservation.number:
                    other.number -= moved
            self._last -= moved

    def wait(self, cancelled: threading.Event) -> float:
        """Wait for the next token; the moment from which it was there.

        Raises:
            CallCancelledError: `cancelled` was set before. It costs those who come later nothing.
        """
        reservation = self.reserve()
        with ExitStack() as unless_done:
            unless_done.callback(self.give_up, reservation)
            while (left_s := (due_s := self.due_s(reservation)) - self._clock()) > 0:
                if cancelled.wait(min(left_s, _LOOK_S)):
                    raise CallCancelledError(
                        "the run was stopped before the rate limit let the call out"
                    )
            unless_done.pop_all()
        return due_s

    def _limit(self, whose: object, per_minute: float | None) -> None:
        """Set one of the limits, or end it."""
        with self._lock:
            if per_minute is None:
                self._limits.pop(whose, None)
            else:
                self._limits[whose] = per_minute
            rate = min(self._limits.values(), default=None)
            if rate == self._rate:
                return
            now_s = self._clock()
            self._fallen, self._since_s, self._rate = self._fallen_by(now_s), now_s, rate
            if rate is None:  # all who wait may go
                self._fallen = max(self._fallen, self._last)
            self._last = max(self._last, self._fallen)

    def _fallen_by(self, now_s: float) -> float:
        """The tokens that have fallen in so far; the lock is held."""
        if self._rate is None:
            return self._fallen
        return self._fallen + (now_s - self._since_s) * self._rate / _MINUTE_S


def checked_rate(per_minute: float | None) -> float | None:
    """A rate limit as it was given.

    Raises:
        ValueError: it is neither a number above 0 nor None.
    """
    if per_minute is not None and not 0 < per_minute < math.inf:
        raise ValueError(
            f"a rate limit must be a number above 0 a minute, or None, got {per_minute!r}"
        )
    return per_minute
