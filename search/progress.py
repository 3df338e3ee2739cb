"""How far a search is, on stderr: the same for a command and for a search from Python."""

from __future__ import annotations

import time

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.monitor import CallMonitor
from records.progress import Clock, ProgressDisplay, Status
from records.terminal import write_stderr


class SearchProgress(ProgressDisplay):
    """Shows how far a search is, how fast, how well it does, and what is known of the servers.

    Args:
        what: what is counted, as in "generations".
        total: how many there are at most.
        dispatcher: where the calls go.
        calls_each: replies that one of them takes at most; unless it is 0, those so far are shown.
        lanes: calls that it makes side by side at most; None: nothing is said of servers' slots.
        slots_setting: what gives a server more slots, up to their number.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        what: str,
        total: int,
        dispatcher: Dispatcher,
        *,
        calls_each: int = 0,
        lanes: int | None = None,
        slots_setting: str = "",
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(clock=clock)
        self._dispatcher, self._calls_each = dispatcher, calls_each
        self._monitor = CallMonitor(
            dispatcher, lanes=lanes, slots_setting=slots_setting, clock=clock
        )
        self._best: list[float] = []
        self._score = ""
        self._has_called = False
        """Whether it made a call: a resumed search repeats what it knows, which takes no time."""
        self._whole, self._completions_before = 0, dispatcher.completions
        """How many are done, and the completions that there were then."""
        self.begin(what, total, self._describe)

    def advance(self, done: int, best: float | None = None, status: str | None = None) -> None:
        """Show how many are done, and the best score where there is another, or a status."""
        if best is not None:
            self._best.append(best)
            self._score = f"best {best:.3f}"
        self._score = status or self._score
        self._whole, self._completions_before = done, self._dispatcher.completions
        self._update()

    def tick(self) -> None:
        """Bring the rate up to date, and print news of the servers; to be called now and then."""
        for line in self._monitor.news():
            write_stderr(line)
        self._update()

    def _update(self) -> None:
        if not self._has_called and self._dispatcher.totals()["calls"]:
            self._has_called = True
            self.restart_pace()
        self.update(self._whole + self._part() / max(1, self._calls_each))

    def _describe(self) -> Status:
        part = self._part()
        within = f"then {part} of at most {self._calls_each} calls" if part else ""
        return Status(
            outcome=within, score=self._score, trend=self._best, calls=self._monitor.line()
        )

    def _part(self) -> int:
        """Completions since the last one was done, at most those that one takes."""
        if self._whole >= self._total:
            return 0
        return min(self._dispatcher.completions - self._completions_before, self._calls_each)
