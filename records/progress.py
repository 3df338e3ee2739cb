"""How far a command is, on stderr: a bar where that is a terminal, elsewhere a plain line now and then."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from records.terminal import one_line, tell

PLAIN_LINES = 10
"""Where there is no bar, plain lines are so many over the whole."""


class FieldColumn(TextColumn):
    """A column of a bar that shows a field of `update` as it is: no markup, no control characters.

    Args:
        text: as TextColumn's `text_format`.
        column: how the column is laid out.
    """

    def __init__(self, text: str, column: Column | None = None) -> None:
        super().__init__(text, markup=False, table_column=column)

    def render(self, task: Task) -> Text:
        """The text of the column."""
        return Text(one_line(self.text_format.format(task=task)), style=self.style, justify=self.justify)


class ProgressDisplay:
    """A bar with a description, how much is done and the time that is left, and lines beside it.

    Args:
        columns: more of the bar, before the time; they show `fields` of `update`.
        beside: one that begins and ends for both: what goes on at the same time has a bar under its own.
    """

    def __init__(self, *columns: ProgressColumn, beside: ProgressDisplay | None = None) -> None:
        self._is_own = beside is None
        self._console: Console = Console(stderr=True) if beside is None else beside.bar.console
        self.bar: Progress = (
            beside.bar
            if beside
            else Progress(
                FieldColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                *columns,
                TimeRemainingColumn(),
                console=self._console,
                disable=not self._console.is_terminal,
            )
        )
        self._complaint = ""

    @property
    def speed(self) -> float | None:
        """How much of the part is done a second; None while that is not known."""
        return self.bar.tasks[self._task].speed

    def begin(self, what: str, total: int, **fields: str) -> None:
        """A part of the work begins.

        Args:
            what: what is counted, as in "episodes played".
            total: how many there are at most.
            fields: what the columns show at first.
        """
        self._what, self._total = what, total
        shown: dict[str, Any] = dict(fields)
        self._task = self.bar.add_task(what, total=total, **shown)
        self._due = {-(-total * k // PLAIN_LINES) for k in range(1, PLAIN_LINES + 1)}

    def update(self, done: float, **fields: str) -> None:
        """So much of the part is done."""
        progress: dict[str, Any] = {"completed": done, **fields}
        self.bar.update(self._task, **progress)

    def plain_line_is_due(self, done: int) -> bool:
        """Whether another tenth of the part is done than when this was called before."""
        reached = {share for share in self._due if share <= done}
        self._due -= reached
        return bool(reached)

    def print_plain(self, text: str) -> None:
        """Print a line where there is no bar."""
        if self.bar.disable:
            tell(one_line(text))

    def say(self, line: str) -> None:
        """Print a line beside the bar."""
        self._console.print(one_line(line), markup=False, emoji=False, highlight=False, soft_wrap=True)

    def complain(self, error: str) -> None:
        """Say why a step could not be scored, where the last complaint was of another kind of error."""
        kind = error.partition(":")[0]
        if kind != self._complaint:
            self._complaint = kind
            self.say(f"not scored: {error}")

    def forget_complaint(self) -> None:
        """The next error is said whatever it is."""
        self._complaint = ""

    def stop(self) -> None:
        """Leave the terminal as it was; calling it twice is fine."""
        if self._is_own:
            self.bar.stop()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
