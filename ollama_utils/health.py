"""Whether a server is there, as its calls show it: an outage is a state of a server, not of a call.

A server is away once a few calls in a row could not reach it, were cut off or came too late, none answered
in between; or once no byte has come from it, while calls are under way, for much longer than ever before. A
probe finds out when it is back (`ollama_utils.fleet`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

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
SILENT_S = 5.0
"""Nothing is made of a shorter silence ..."""
_LONGER = 2.0
"""... nor of one that is not so many times as long as the longest before that ended ..."""
_LONGEST_S = 20.0
"""... of which no more than this counts: a server that was hung may be so again."""
SILENT = "not a byte comes from it: it hangs, or reads long prompts"
SILENT_SO_FAR = "not a byte has come from it yet: it may be loading a model"


class Health:
    """What the calls to one server show.

    Args:
        clock: seconds from a fixed moment, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.why = ""
        """Why it counts as away."""
        self.has_received = False
        """Whether some of a reply has come since it went away."""
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way = 0
        self._absences = 0
        self._silent_since_s = 0.0
        self._longest_s = 0.0
        self._has_answered = False
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
        """Since when it is away, by the clock; None: it is not."""
        return self._away_since_s

    def sent(self) -> None:
        """A call goes out."""
        with self._lock:
            if not self._under_way:
                self._silent_since_s = self._clock()
            self._under_way += 1

    def received(self) -> None:
        """Some of a reply came."""
        with self._lock:
            now_s = self._clock()
            if self._has_answered and not self.is_away:
                self._learn(now_s - self._silent_since_s)
            self._silent_since_s = now_s
            self.has_received = True

    def over(self, error: BaseException | None) -> bool:
        """A call is over; returns whether the server is away from now on.

        Args:
            error: how it ended; None: with a reply. An error that the server answered is an answer, but that
                it is busy, just after an absence, is none: it may have begun anew, and load its model.
        """
        with self._lock:
            self._under_way -= 1
            if isinstance(error, ABSENCES) or (self._absences and _is_busy(error)):
                self._absences += 1
                return self._absences >= _FEW and self._leave(str(error))
            if error is None or isinstance(error, OllamaError):
                self._absences = 0
                self._silent_since_s = self._clock()
                self._has_answered |= error is None
            return False

    def has_fallen_silent(self) -> bool:
        """Whether it counts as away from now on because no byte came for so long."""
        with self._lock:
            silent_s = self._clock() - self._silent_since_s
            if not self._under_way or silent_s < max(SILENT_S, _LONGER * self._longest_s):
                return False
            why = SILENT if self._has_answered else SILENT_SO_FAR
            if not self._leave(why, since_s=self._silent_since_s):
                return False
            self._learn(silent_s)  # if it is none, so short a silence is not taken for an outage again
            return True

    def back(self) -> float:
        """It answered: it is there again; returns for how long it was away, in seconds."""
        with self._lock:
            now_s = self._clock()
            away_s = now_s - (self._away_since_s or now_s)
            self._away_since_s, self._absences, self.why = None, 0, ""
            self._silent_since_s = now_s
            return away_s

    def _learn(self, silent_s: float) -> None:
        """There was a silence of so many seconds; the lock is held."""
        self._longest_s = max(self._longest_s, min(silent_s, _LONGEST_S))

    def _leave(self, why: str, since_s: float | None = None) -> bool:
        """It is away, if it was not before; the lock is held."""
        if self._away_since_s is not None:
            return False
        self._away_since_s = self._clock() if since_s is None else since_s
        self.why, self.has_received = why, False
        return True


def _is_busy(error: BaseException | None) -> bool:
    return isinstance(error, ServerBusyError) and not isinstance(error, ServerOverloadedError)
