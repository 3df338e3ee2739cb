"""How far a command is, on stderr: lines that stay put on a terminal, elsewhere a plain line a minute."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn
from rich.text import Text

from records.interrupt import postponed
from records.terminal import one_line, tell

EVERY_S = 60.0
"""Where there is no terminal, a plain line comes as often, beside the first and the last of a part."""
PACE_S = 300.0
"""The pace is that of the last seconds, this many: single replies may take a minute."""
LOOKS_S = 0.1
"""... of which what was done is remembered as often, and at the end."""
REFRESHES_PER_S = 4.0
TREND_WIDTH = 32
"""Points of a trend that are drawn."""
BLOCKS = "▁▂▃▄▅▆▇█"

Clock = Callable[[], float]
"""Seconds that never go back."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a part of the work stands, in words; what is empty is left out."""

    outcome: str = ""
    """What came of it so far."""
    score: str = ""
    """What counts, and how it went: on a terminal `trend` is drawn behind it."""
    trend: Sequence[float] = ()
    calls: str = ""
    """What the calls do; where several parts go on at the same time it is that of all."""

    @property
    def words(self) -> str:
        """All in one line."""
        return ", ".join(filter(None, (self.outcome, self.score, self.calls)))


class Pace:
    """How fast a count goes up; may be told and asked on any thread.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, float]] = deque()

    def see(self, done: float) -> None:
        """So much is done now."""
        now_s = self._clock()
        with self._lock:
            while self._seen and now_s - self._seen[0][0] > PACE_S:
                self._seen.popleft()
            if len(self._seen) > 1 and now_s - self._seen[-2][0] < LOOKS_S:
                self._seen.pop()
            self._seen.append((now_s, done))

    def forget(self) -> None:
        """What was done until now says nothing of the pace, as what a resumed run repeats."""
        with self._lock:
            self._seen.clear()

    @property
    def per_s(self) -> float | None:
        """How much is done a second; None while that is not known."""
        with self._lock:
            if not self._seen:
                return None
            (from_s, before), (_, done) = self._seen[0], self._seen[-1]
        wall_s = self._clock() - from_s
        return (done - before) / wall_s if wall_s > 0 and done > before else None


class TaskText(TextColumn):
    """A column of a bar that shows a text as it is: no markup, no control characters.

    Args:
        text: as TextColumn's `text_format`.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text, markup=False)

    def render(self, task: Task) -> Text:
        """The text of the column."""
        return Text(one_line(self.text_format.format(task=task)))


class Bars(Progress):
    """Bars on stderr with lines of text below them, which stay where they are, and are gone at the end."""

    def __init__(self) -> None:
        self.parts: dict[object, Callable[[], Standing]] = {}
        """How each part stands that goes on; asked several times a second, on a thread of its own."""
        console = Console(stderr=True)
        self._draws = console.encoding.startswith("utf")
        super().__init__(
            TaskText("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TaskText("{task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
            refresh_per_second=REFRESHES_PER_S,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars, then the lines, each cut where the terminal ends."""
        yield from super().get_renderables()
        for line in self._lines():
            yield Text(one_line(line), no_wrap=True, overflow="ellipsis")

    def _lines(self) -> Iterable[str]:
        stand = [standing() for standing in list(self.parts.values())]
        for part in stand:
            trend = sparkline(part.trend) if self._draws else ""
            yield from filter(None, (part.outcome, f"{part.score} {trend}".strip()))
        yield from filter(None, [part.calls for part in stand][-1:])


class ProgressDisplay:
    """A bar with the time that is left and, below, how the work stands; plain lines without a terminal.

    Args:
        beside: one that begins and ends for both: what goes on at the same time has a bar under its own.
        clock: seconds that never go back.
    """

    def __init__(self, *, beside: ProgressDisplay | None = None, clock: Clock = time.monotonic) -> None:
        self._is_own = beside is None
        self._clock = clock
        self.bar: Bars = beside.bar if beside else Bars()
        self._complaint = ""

    @property
    def per_s(self) -> float | None:
        """How much of the part is done a second; None while that is not known."""
        return self._pace.per_s

    def begin(self, what: str, total: int, standing: Callable[[], Standing] = Standing) -> None:
        """A part of the work begins.

        Args:
            what: what is counted, as in "episodes played".
            total: how many there are at most.
            standing: says how it stands; is called on a thread of its own, too.
        """
        self._what, self._total, self._standing = what, total, standing
        self._pace, self._told_s = Pace(self._clock), -float("inf")
        self._is_over = False
        self._task = self.bar.add_task(what, total=total, left="")
        self.bar.parts[self] = standing

    def update(self, done: float) -> None:
        """So much of the part is done; a plain line comes at the first call, at the end, and every minute."""
        self._pace.see(done)
        self.bar.update(self._task, completed=done, left=self._left(done))
        if not self.bar.disable:
            return
        ends = done >= self._total and not self._is_over
        if ends or self._clock() - self._told_s >= EVERY_S:
            self._told_s, self._is_over = self._clock(), self._is_over or ends
            said = (f"{self._what}: {int(done)} of {self._total}", self._left(done), self._standing().words)
            tell(one_line(", ".join(filter(None, said))))

    def restart_pace(self) -> None:
        """What was done until now took no time, as it was known already."""
        self._pace.forget()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        with postponed():
            self.bar.console.print(one_line(line), markup=False, emoji=False, highlight=False, soft_wrap=True)

    def complain(self, error: str) -> None:
        """Say why a step could not be scored, where the last complaint was of another kind of error."""
        kind = error.partition(":")[0]
        if kind != self._complaint:
            self._complaint = kind
            self.say(f"not scored: {error}")

    def forget_complaint(self) -> None:
        """The next error is said whatever it is."""
        self._complaint = ""

    def show(self) -> None:
        """Show the lines; calling it twice is fine."""
        try:
            with postponed():
                self.bar.start()
        except BaseException:  # a signal that came as they were drawn
            self.stop()
            raise

    def stop(self) -> None:
        """Leave the terminal as it was; calling it twice is fine."""
        if self._is_own:
            with postponed():
                self.bar.stop()

    def _left(self, done: float) -> str:
        per_s = self.per_s
        if per_s is None or done >= self._total:
            return ""
        return f"about {duration((self._total - done) / per_s)} left"

    def __enter__(self) -> Self:
        self.show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def duration(seconds: float) -> str:
    """`8 s`, `12 min`, `3.5 h`: as precise as a forecast is."""
    if seconds < 99.5:  # noqa: PLR2004 - what two digits of seconds tell
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def digits(number: float) -> str:
    """`0.042`, `4.8`, `43`, `1,234`: three digits that count, and all of those before the point."""
    return f"{number:.3g}" if abs(number) < 99.95 else f"{number:,.0f}"  # noqa: PLR2004 - what rounds to 100


def sparkline(values: Sequence[float]) -> str:
    """The last values as blocks of eight heights, the lowest the lowest block; "" for fewer than two."""
    drawn = [value for value in values if isfinite(value)][-TREND_WIDTH:]
    if len(drawn) < 2:  # noqa: PLR2004 - a point is no trend
        return ""
    low, span = min(drawn), max(drawn) - min(drawn)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round((value - low) / span * top) if span else 0] for value in drawn)


def percent(part: float, whole: float) -> str:
    """`61 %`; `-` of nothing."""
    return f"{100 * part / whole:.0f} %" if whole else "-"
