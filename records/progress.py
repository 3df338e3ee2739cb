"""How far a command is, on stderr: lines that stay put on a terminal, else one line a minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from records.terminal import one_line, write_stderr

EVERY_S = 60.0
"""Seconds between two plain lines; the first and the last of a part are printed in any case."""
PACE_S = 300.0
"""The time left follows from the pace of so many seconds: single replies may take a minute."""
TREND_WIDTH = 32
"""Points of a trend that are drawn."""
BLOCKS = "▁▂▃▄▅▆▇█"

Clock = Callable[[], float]
"""Seconds that never go back."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a part of the work does, in words; what is empty is left out."""

    outcome: str = ""
    """The results so far."""
    score: str = ""
    """The number that ought to rise; on a terminal `trend` is drawn after it."""
    trend: Sequence[float] = ()
    calls: str = ""
    """What the calls do; where several parts go on at the same time it is that of all."""


class TimeLeft(ProgressColumn):
    """The column that says how long a part will still take."""

    def render(self, task: Task) -> Text:
        """The text of the column."""
        return Text(time_left(task))


class Bars(Progress):
    """Bars on stderr with lines of text below them; on a terminal alone, and gone at the end."""

    def __init__(self, clock: Clock) -> None:
        self.parts: dict[ProgressDisplay, Callable[[], Status]] = {}
        """The status of each part that goes on; called often, on another thread."""
        console = Console(stderr=True)
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeLeft(),
            console=console,
            disable=not console.is_terminal or console.is_dumb_terminal,
            transient=True,
            refresh_per_second=4,
            speed_estimate_period=PACE_S,
            get_time=clock,
        )

    def start(self) -> None:
        """Begin to draw; on rich's own thread alone, where no Ctrl-C interrupts half a drawing."""
        if not self.disable:
            self.live.start(refresh=False)

    def refresh(self) -> None:
        """Leave it to that thread, which draws four times a second."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars, then the lines, each cut where the terminal ends."""
        yield from super().get_renderables()
        lines, calls = [], ""
        for status in [status() for status in list(self.parts.values())]:
            trend = sparkline(status.trend) if self.console.encoding.startswith("utf") else ""
            lines += [status.outcome, f"{status.score} {trend}".strip()]
            calls = status.calls
        for line in filter(None, [*lines, calls]):
            yield Text(one_line(line), no_wrap=True, overflow="ellipsis")


class ProgressDisplay:
    """A bar with the time left and, below, how the work does; plain lines without a terminal.

    Work that goes on at the same time is shown `beside` the display of other work, which begins and
    ends for both.
    """

    def __init__(
        self, *, beside: ProgressDisplay | None = None, clock: Clock = time.monotonic
    ) -> None:
        self._is_own = beside is None
        self._clock = clock
        self._bars: Bars = beside._bars if beside else Bars(clock)  # noqa: SLF001 - of this class
        self._complaint = ""

    def begin(self, what: str, total: int, status: Callable[[], Status] = Status) -> None:
        """Begin a part of the work: at most `total` of `what`, as in "episodes played".

        `status` says how it does; it is called on another thread, too.
        """
        self._what, self._total, self._status = what, total, status
        self._done, self._due_s = 0.0, -float("inf")
        self._id = self._bars.add_task(one_line(what), total=total)
        self._bars.parts[self] = status

    def update(self, done: float) -> None:
        """Say how much is done; without a terminal print it first, last and every minute."""
        self._bars.update(self._id, completed=done)
        is_last, self._done = self._done < self._total <= done, done
        if self._bars.disable and (is_last or self._clock() >= self._due_s):
            self._due_s = self._clock() + EVERY_S
            far, now = f"{self._what}: {int(done)} of {self._total}", self._status()
            words = (far, time_left(self._task), now.outcome, now.score, now.calls)
            write_stderr(one_line(", ".join(filter(None, words))))

    @property
    def per_s(self) -> float | None:
        """How much of the part is done a second; None while that is not known."""
        return self._task.speed

    def restart_pace(self) -> None:
        """Count the pace from now on: what was done until now was known already."""
        self._bars.reset(self._id, completed=int(self._done))

    def complain(self, error: str) -> None:
        """Print why a step could not be scored, unless the last complaint was of this kind, too."""
        kind = error.partition(":")[0]
        if kind != self._complaint:
            self._complaint = kind
            write_stderr(one_line(f"not scored: {error}"))

    def forget_complaint(self) -> None:
        """Print the next error whatever it is."""
        self._complaint = ""

    def show(self) -> None:
        """Show the lines; calling it twice is fine."""
        try:
            self._bars.start()
        except BaseException:  # a signal while they were drawn
            self.stop()
            raise

    def stop(self) -> None:
        """Leave the terminal as it was; calling it twice is fine."""
        if self._is_own:
            self._bars.stop()

    @property
    def _task(self) -> Task:
        return next(task for task in self._bars.tasks if task.id == self._id)

    def __enter__(self) -> Self:
        self.show()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


def time_left(task: Task) -> str:
    """`about 12 min left`; empty where that is not known, or nothing is left."""
    return f"about {duration(task.time_remaining)} left" if task.time_remaining else ""


def duration(seconds: float) -> str:
    """`8 s`, `12 min`, `3.5 h`: as precise as a forecast is."""
    if seconds < 99.5:  # noqa: PLR2004 - two digits of seconds
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def digits(number: float) -> str:
    """`0.042`, `4.8`, `43`, `1,234`: three digits that count, all of those before the point."""
    return f"{number:.3g}" if abs(number) < 99.95 else f"{number:,.0f}"  # noqa: PLR2004 - rounds to 100


def sparkline(values: Sequence[float]) -> str:
    """The last values as blocks, the lowest value the lowest block; "" for fewer than two."""
    drawn = [value for value in values if isfinite(value)][-TREND_WIDTH:]
    if len(drawn) < 2:  # noqa: PLR2004 - a point is no trend
        return ""
    low, span = min(drawn), max(drawn) - min(drawn)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round((value - low) / span * top) if span else 0] for value in drawn)


def percent(part: float, whole: float) -> str:
    """`61 %`; `-` of nothing."""
    return f"{100 * part / whole:.0f} %" if whole else "-"
