"""Stops a search when calls keep failing: results that rest on failures are worth nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from ollama_utils.errors import OllamaError
from ollama_utils.reply_log import ReplyLog
from train.errors import RunStoppedError

_WINDOWS = 4
"""The share is judged over so many times the calls that may be under way."""


class FailedLimit:
    """Looks at the log of replies now and then; what it held before is left out.

    Calls that fail come to an end late, after all their attempts: where nothing new begins meanwhile, the
    last to end are failed ones, at most as many as may be under way. So one more than that without a single
    reply is a server that is gone, and the share is judged over several times as many.

    A call whose reply is known counts beside those that a server is asked at about that time: a resumed
    search asks again for what failed, and for little else.

    Args:
        replies: the run's.
        most: the share of recent calls that may have failed, after all their attempts.
        known: how many calls got a reply that was known, so far.
        under_way: how many calls may be under way, those that wait for their next attempt included.
        spared: errors that do not count, as the search itself takes them into account.
    """

    def __init__(
        self,
        replies: ReplyLog,
        most: float,
        known: Callable[[], int],
        under_way: int,
        spared: Sequence[type[OllamaError]] = (),
    ) -> None:
        self._replies = replies
        self._most = most
        self._known = known
        self._under_way = under_way
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
        window = _WINDOWS * self._under_way
        latest = self._replies.latest(window, since=self._since)
        self._looks.append((self._replies.last(), self._known()))
        gone = latest[: self._under_way + 1]
        if len(gone) > self._under_way and len(self._failed(gone)) == len(gone):
            latest = gone
        elif not over and len(latest) < window:
            return
        errors, calls = self._failed(latest), len(latest) + self._known_since(len(latest))
        if len(errors) > self._most * calls:
            raise RunStoppedError(
                f"{len(errors) / calls:.0%} of the last {calls} calls failed "
                f"(--max-failed {self._most:g}); last error: {errors[0]}"
            )

    def _failed(self, latest: Sequence[str]) -> list[str]:
        """The errors that count."""
        return [error for error in latest if error and error.partition(":")[0] not in self._spared]

    def _known_since(self, rows: int) -> int:
        """How many replies were known since the look before the last so many rows of the log."""
        last, known = self._looks[-1]
        while len(self._looks) > 1 and self._looks[1][0] <= last - _WINDOWS * self._under_way:
            self._looks.popleft()
        before = max((look for look in self._looks if look[0] <= last - rows), default=self._looks[0])
        return known - before[1]
