"""Stops a run when steps or calls keep failing: results that rest on failures are worth nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from records.errors import RunStoppedError


def check_failed_share(
    errors: Sequence[str], count: int, most: float, *, what: str, flag: str
) -> None:
    """Check that no more than the share `most` of the last `count` steps or calls failed.

    Args:
        errors: why they failed, one each; the message quotes the last.
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


class FailureLimit:
    """Judges the latest steps or calls whenever there are enough of them.

    Args:
        most: the share of them that may fail.
        window: how many are enough.
        what: completes "so many of the last ...".
        flag: the flag that sets `most`.
    """

    def __init__(
        self,
        most: float,
        window: int = 128,
        *,
        what: str = "steps could not be scored",
        flag: str = "--max-unscored",
    ) -> None:
        self._most, self._window, self._what, self._flag = most, window, what, flag
        self._latest: deque[list[str]] = deque()

    def add(self, errors: Iterable[str]) -> None:
        """Add some that ended, each by why it failed; "" is one that did not.

        Raises:
            RunStoppedError: too many of the latest failed.
        """
        if added := list(errors):
            self._latest.append(added)
            count = sum(map(len, self._latest))
            while count - len(self._latest[0]) >= self._window:
                count -= len(self._latest.popleft())
            if count >= self._window:
                self.check()

    def check(self) -> None:
        """Judge the latest, however few they are.

        Raises:
            RunStoppedError: too many of them failed.
        """
        latest = [error for errors in self._latest for error in errors]
        check_failed_share(
            list(filter(None, latest)), len(latest), self._most, what=self._what, flag=self._flag
        )
