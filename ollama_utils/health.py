"""Whether a server is there, as its calls show it: an outage is a state of a server, not of a call.

A server is away once a few calls in a row could not reach it, were cut off or came too late, none
answered in between. A probe finds out when it is back (`ollama_utils.fleet`).
"""

from __future__ import annotations

import threading
import time

from ollama_utils.errors import (
    BrokenReplyError,
    CallTimeoutError,
    OllamaError,
    ServerBusyError,
    ServerOverloadedError,
    ServerUnreachableError,
)

ABSENCES = (ServerUnreachableError, CallTimeoutError, BrokenReplyError)
"""How a call ends whose server is not there, or seems so."""
_FEW = 3
"""So many absences in a row, and the server is away."""


class Health:
    """What the calls to one server show."""

    def __init__(self) -> None:
        self.why = ""
        """Why it counts as away."""
        self._lock = threading.Lock()
        self._under_way = 0
        self._absences = 0
        self._away_since_s: float | None = None

    @property
    def is_away(self) -> bool:
        """Whether nobody is to be sent there."""
        return self._away_since_s is not None

    @property
    def under_way(self) -> int:
        """The calls that were sent there and are not over."""
        return self._under_way

    @property
    def away_since_s(self) -> float | None:
        """Since when it is away, by the monotonic clock; None: it is not."""
        return self._away_since_s

    def sent(self) -> None:
        """A call goes out."""
        with self._lock:
            self._under_way += 1

    def over(self, error: BaseException | None) -> bool:
        """A call is over; returns whether the server is away from now on.

        Args:
            error: how it ended; None: with a reply. An error that the server answered is an answer,
                but that it is busy, just after an absence, is none: it may have begun anew, and
                load its model.
        """
        with self._lock:
            self._under_way -= 1
            if isinstance(error, ABSENCES) or (self._absences and _is_busy(error)):
                self._absences += 1
                if self._absences < _FEW or self.is_away:
                    return False
                self._away_since_s, self.why = time.monotonic(), str(error)
                return True
            if error is None or isinstance(error, OllamaError):
                self._absences = 0
            return False

    def back(self) -> float:
        """It answered: it is there again; returns for how long it was away, in seconds."""
        with self._lock:
            now_s = time.monotonic()
            away_s = now_s - (self._away_since_s or now_s)
            self._away_since_s, self._absences, self.why = None, 0, ""
            return away_s


def _is_busy(error: BaseException | None) -> bool:
    return isinstance(error, ServerBusyError) and not isinstance(error, ServerOverloadedError)
