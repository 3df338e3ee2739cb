"""Stops a search when calls keep failing: results that rest on failures are worth nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from ollama_utils.errors import OllamaError
from ollama_utils.reply_log import ReplyLog
from train.errors import RunStoppedError

WINDOW = 32
"""Calls to a server over which the share of failed ones is judged."""


class FailedLimit:
    """Looks at the log of replies now and then; what it held before is left out.

    A call whose reply is known counts beside those that a server is asked at about that time: a resumed
    search asks again for what failed, and for little else.

    Args:
        replies: the run's.
        most: the share of recent calls that may have failed, after all their attempts.
        known: how many calls got a reply that was known, so far.
        spared: errors that do not count, as the search itself takes them into account.
    """

    def __init__(
        self,
        replies: ReplyLog,
        most: float,
        known: Callable[[], int],
        spared: Sequence[type[OllamaError]] = (),
    ) -> None:
        self._replies = replies
        self._most = most
        self._known = known
        self._spared = {kind.__name__ for kind in spared}
        self._since = replies.last()
        self._looks = deque([(self._since, known())])
        """At earlier looks, the last row of the log and how many replies had been known."""

    def check(self, *, over: bool = False) -> None:
        """Judge the latest calls.

        Args:
            over: the search has ended, so that fewer calls have to do.

        Raises:
            RunStoppedError: too many of them failed.
        """
        latest = self._replies.latest(WINDOW, since=self._since)
        errors = [error for error in latest if error and error.partition(":")[0] not in self._spared]
        calls = len(latest) + self._known_meanwhile()
        if (over or len(latest) == WINDOW) and len(errors) > self._most * calls:
            raise RunStoppedError(
                f"{len(errors) / calls:.0%} of the last {calls} calls failed "
                f"(--max-failed {self._most:g}); last error: {errors[0]}"
            )

    def _known_meanwhile(self) -> int:
        """How many replies were known since the look before the window began."""
        self._looks.append((self._replies.last(), self._known()))
        begun = self._looks[-1][0] - WINDOW
        while self._looks[1][0] <= begun:
            self._looks.popleft()
        return self._looks[-1][1] - self._looks[0][1]
