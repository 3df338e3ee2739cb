"""Stops a run when steps or calls keep failing: results that rest on failures are worth nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

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
    """Judges the latest steps or calls whenever there are `window` of them or more.

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
        self._check = partial(check_failed_share, most=most, what=what, flag=flag)
        self._window = window
        self._latest: deque[list[str]] = deque()

    def add(self, errors: Iterable[str]) -> None:
        """Add some that ended, each by why it failed ("": it did not); raises as `check` does."""
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
        self._check(list(filter(None, latest)), len(latest))
