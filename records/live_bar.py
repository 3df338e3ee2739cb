"""What the live progress lines share: a bar on stderr where that is a terminal, and lines beside it."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

SHARES = 10
"""Where there is no bar, plain lines are so many over the whole."""


def shares(total: int) -> set[int]:
    """How much is done when a plain line is due: tenths of the whole, rounded up."""
    return {-(-total * k // SHARES) for k in range(1, SHARES + 1)}


class LiveBar:
    """A bar with a description, how much is done, and the time that is left.

    Args:
        columns: more of the bar, before the time.
    """

    def __init__(self, *columns: ProgressColumn) -> None:
        self._console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            *columns,
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def say(self, line: str) -> None:
        """Print a line beside the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    @property
    def is_shown(self) -> bool:
        """Whether there is a bar; else plain lines tell how far it is."""
        return not self.progress.disable

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
