"""Stops a run when steps or calls keep failing: results that rest on failures are worth nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from records.errors import RunStoppedError


def check_failed_share(errors: Sequence[str], count: int, most: float, *, what: str, flag: str) -> None:
    """Check that no more than the share `most` of the last `count` steps or calls failed.

    Args:
        errors: why they failed, one each; the last one is shown.
        count: how many there were, with those that did not fail.
        most: the share that may fail.
        what: completes "so many of the last ...".
        flag: the flag that sets `most`.

    Raises:
        RunStoppedError: more failed.
    """
    if len(errors) > most * count:
        raise RunStoppedError(
            f"{len(errors) / count:.0%} of the last {count} {what} ({flag} {most:g}); "
            f"last error: {errors[-1]}"
        )


class StepLimit:
    """Judges the latest steps of a training or an evaluation, each time there is a whole window of them.

    Args:
        most: the share of them that may be unscored.
        window: how many steps are judged.
    """

    def __init__(self, most: float, window: int = 128) -> None:
        self._most = most
        self._recent: deque[str] = deque(maxlen=window)

    def add(self, errors: Iterable[str]) -> None:
        """Add further steps, each by why it could not be scored; "" is one that was.

        Raises:
            RunStoppedError: too many of the latest could not be scored.
        """
        for error in errors:
            self._recent.append(error)
            if len(self._recent) == self._recent.maxlen:
                self.check()

    def check(self) -> None:
        """Judge the latest steps, however few they are.

        Raises:
            RunStoppedError: too many of them could not be scored.
        """
        errors = [error for error in self._recent if error]
        check_failed_share(
            errors, len(self._recent), self._most, what="steps could not be scored", flag="--max-unscored"
        )


class CallLog(Protocol):
    """The part of a log of replies that a `CallLimit` reads."""

    def last(self) -> int:
        """The number of its last row."""
        ...

    def latest(self, most: int, *, since: int) -> Sequence[str]:
        """The errors of the latest rows behind row `since`, the last one first; "" where there is none."""
        ...


class CallLimit:
    """Judges the latest calls of a search, from its log of replies; what that held before is left out.

    Calls that fail come to an end late, after all their attempts: where nothing new begins meanwhile, the
    last to end are failed ones, at most as many as may be under way. So one more than that without a single
    reply is a server that is gone, and the share is judged over several times as many.

    A call whose reply is known counts beside those that a server answers at about that time: a resumed
    search repeats what failed, and little else.

    Args:
        log: the run's.
        most: the share of recent calls that may have failed, after all their attempts.
        known: how many calls got a reply that was known, so far.
        under_way: how many calls may be under way, those that wait for their next attempt included.
        spared: names of errors that do not count, as the search itself takes them into account.
    """

    WINDOWS = 4
    """The share is judged over so many times the calls that may be under way."""

    def __init__(
        self,
        log: CallLog,
        most: float,
        known: Callable[[], int],
        under_way: int,
        spared: Collection[str] = (),
    ) -> None:
        self._log = log
        self._most = most
        self._known = known
        self._under_way = under_way
        self._window = self.WINDOWS * under_way
        self._spared = frozenset(spared)
        self._since = log.last()
        self._looks = deque([(self._since, known())])
        """At earlier looks, the last row of the log and how many replies had been known."""

    def check(self, *, over: bool = False) -> None:
        """Judge the latest calls.

        Args:
            over: the search has ended, so that fewer calls have to do.

        Raises:
            RunStoppedError: too many of them failed.
        """
        latest = self._log.latest(self._window, since=self._since)
        self._looks.append((self._log.last(), self._known()))
        first = latest[: self._under_way + 1]
        if len(first) > self._under_way and len(self._failed(first)) == len(first):
            latest = first
        elif not over and len(latest) < self._window:
            return
        check_failed_share(
            self._failed(latest)[::-1],
            len(latest) + self._known_since(len(latest)),
            self._most,
            what="calls failed",
            flag="--max-failed",
        )

    def _failed(self, latest: Sequence[str]) -> list[str]:
        """The errors that count."""
        return [error for error in latest if error and error.partition(":")[0] not in self._spared]

    def _known_since(self, rows: int) -> int:
        """How many replies were known since the look before the last so many rows of the log."""
        last, known = self._looks[-1]
        while len(self._looks) > 1 and self._looks[1][0] <= last - self._window:
            self._looks.popleft()
        before = max((look for look in self._looks if look[0] <= last - rows), default=self._looks[0])
        return known - before[1]
