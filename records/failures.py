"""Stops a run when steps or calls keep failing: results that rest on failures are worth nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from records.errors import RunStoppedError


class FailureLimit:
    """Judges the latest steps or calls whenever there are `window` of them or more.

    At most the share `most` may fail, which `flag` sets; `what` ends the sentence "50 % of the last
    128 …".
    """

    def __init__(
        self,
        most: float,
        window: int = 128,
        *,
        what: str = "steps could not be scored",
        flag: str = "--max-unscored",
    ) -> None:
        self._most, self._window = most, window
        self._what, self._flag = what, flag
        self._latest: deque[list[str]] = deque()

    def add(self, errors: Iterable[str]) -> None:
        """Add the errors of steps or calls that ended, "" for one without; see `check`."""
        if added := list(errors):
            self._latest.append(added)
            count = sum(map(len, self._latest))
            while count - len(self._latest[0]) >= self._window:
                count -= len(self._latest.popleft())
            if count >= self._window:
                self.check()

    def check(self) -> None:
        """Judge the latest, however few they are; a RunStoppedError if too many failed."""
        latest = [error for errors in self._latest for error in errors]
        failed = list(filter(None, latest))
        if len(failed) > self._most * len(latest):
            raise RunStoppedError(
                f"{len(failed) / len(latest):.0%} of the last {len(latest)} {self._what} "
                f"({self._flag} {self._most:g}); last error: {failed[-1]}"
            )
