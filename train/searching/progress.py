"""The live progress line of a search, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from typing import Self

from rich.progress import TextColumn
from rich.table import Column

from ollama_utils.dispatcher import Dispatcher
from train.findings import Findings
from train.live_bar import LiveBar, shares
from train.transitions import account_totals

SILENT_S = 30.0
"""Where there is no bar, there is a plain line at least as often."""


class SearchProgress(LiveBar):
    """Tells how far a search is, how fast, how well it does, and what is found out about the servers.

    Args:
        what: what is counted, as in "generations".
        total: how many there are at most.
        dispatcher: where the calls go.
        findings: what is found out about the servers.
        calls_each: replies that one of them takes at most; where it is not 0, those so far are told.
    """

    def __init__(
        self, what: str, total: int, dispatcher: Dispatcher, findings: Findings, *, calls_each: int = 0
    ) -> None:
        # On a narrow terminal this column breaks into lines, so that the others stay whole.
        super().__init__(TextColumn("{task.fields[says]}", table_column=Column()))
        self._what, self._total = what, total
        self._dispatcher = dispatcher
        self._findings = findings
        self._task = self.progress.add_task(what, total=total, says="")
        self._shares = shares(total)
        self._standing = ""
        self._calls_each = calls_each
        self._done, self._replies_before = 0, self._replies()
        """How many are done, and the replies that there were then."""
        self._began_s = self._told_s = time.monotonic()
        self._asked_from = 0, self._began_s
        """How much was done, and when, before a server was first asked."""

    def advance(self, done: int, best: float | None = None, standing: str | None = None) -> None:
        """So much is done; `best` is the best score so far, where there is another; or `standing` says it."""
        if best is not None:
            self._standing = f"best {best:.3f}, "
        if standing is not None:
            self._standing = f"{standing}, "
        self._done, self._replies_before = done, self._replies()
        self.progress.update(self._task, completed=self._far())
        if not account_totals(self._dispatcher)["calls"]:
            self._asked_from = done, time.monotonic()
        reached = {share for share in self._shares if share <= done}
        self._shares -= reached
        if reached:
            self._print()

    def tick(self) -> None:
        """Bring the rate up to date, and tell what was found out; to be called again and again."""
        for line in self._findings.news(self._dispatcher.capacities()):
            self.say(line)
        self.progress.update(self._task, completed=self._far(), says=self._says())
        if time.monotonic() - self._told_s > SILENT_S:
            self._print()

    def _says(self) -> str:
        spent = account_totals(self._dispatcher)
        rate = spent["calls"] / max(time.monotonic() - self._began_s, 1e-9)
        hits = spent["cache_hits"] / max(spent["calls"] + spent["cache_hits"], 1)
        return f"{self._within()}{self._standing}{rate:.1f} calls/s, {hits:.0%} hits"

    def _replies(self) -> int:
        """That came so far, or were known; a failed attempt brings none."""
        spent = account_totals(self._dispatcher)
        return int(spent["calls"] - spent["failures"] + spent["cache_hits"])

    def _since(self) -> int:
        """Replies since so many were done, at most those that one takes: a few may come twice."""
        if self._done >= self._total:
            return 0
        return min(self._replies() - self._replies_before, self._calls_each)

    def _within(self) -> str:
        """How far the one under way is."""
        since = self._since()
        return f"then {since} of at most {self._calls_each} calls, " if since else ""

    def _far(self) -> float:
        """How many are done, with the share of the one under way."""
        return self._done + self._since() / max(1, self._calls_each)

    def _print(self) -> None:
        """A plain line, where there is no bar."""
        self._told_s = time.monotonic()
        if not self.is_shown:
            far = f"{self._what}: {self._done} of {self._total}"
            print(f"{far}, {self._says()}{self._left()}", file=sys.stderr)

    def _left(self) -> str:
        """At the pace since a server was first asked: what a resumed search tells again takes no time."""
        (known, from_s), far = self._asked_from, self._far()
        if not known < far < self._total:
            return ""
        left_s = (time.monotonic() - from_s) * (self._total - far) / (far - known)
        return f", about {left_s:.0f} s left"

    def __enter__(self) -> Self:
        self._began_s = self._told_s = time.monotonic()
        self._asked_from = 0, self._began_s
        return super().__enter__()
