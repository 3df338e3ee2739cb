"""Stops what plays episodes when calls keep failing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from records.errors import RunStoppedError

UNSCORED_WINDOW = 128
"""Steps over which the share of unscored ones is judged."""


class UnscoredLimit:
    """Stops an evaluation when calls keep failing.

    Args:
        most: the share of the latest steps that may be unscored.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._recent: deque[str] = deque(maxlen=UNSCORED_WINDOW)

    def add(self, errors: Sequence[str]) -> None:
        """Note further steps, each by why it could not be scored; "" is one that was.

        Raises:
            RunStoppedError: too many of the latest could not be scored.
        """
        for error in errors:
            self._recent.append(error)
            if len(self._recent) == UNSCORED_WINDOW:
                self.check()

    def check(self) -> None:
        """Judge the latest steps, however few they are.

        Raises:
            RunStoppedError: too many of them could not be scored.
        """
        errors = [error for error in self._recent if error]
        share = len(errors) / max(len(self._recent), 1)
        if share > self._most:
            raise RunStoppedError(
                f"{share:.0%} of the last {len(self._recent)} steps could not be scored "
                f"(--max-unscored {self._most:g}); last error: {errors[-1]}"
            )
