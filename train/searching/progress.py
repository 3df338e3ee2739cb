"""The live progress line of a search, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from typing import Self

from rich.progress import TextColumn

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
    """

    def __init__(self, what: str, total: int, dispatcher: Dispatcher, findings: Findings) -> None:
        super().__init__(TextColumn("{task.fields[says]}"))
        self._what, self._total = what, total
        self._dispatcher = dispatcher
        self._findings = findings
        self._task = self.progress.add_task(what, total=total, says="")
        self._shares = shares(total)
        self._standing = ""
        self._done = 0
        self._began_s = self._told_s = time.monotonic()
        self._asked_from = 0, self._began_s
        """How much was done, and when, before a server was first asked."""

    def advance(self, done: int, best: float | None = None, standing: str | None = None) -> None:
        """So much is done; `best` is the best score so far, where there is another; or `standing` says it."""
        if best is not None:
            self._standing = f"best {best:.3f}, "
        if standing is not None:
            self._standing = f"{standing}, "
        self.progress.update(self._task, completed=done)
        self._done = done
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
        self.progress.update(self._task, says=self._says())
        if time.monotonic() - self._told_s > SILENT_S:
            self._print()

    def _says(self) -> str:
        spent = account_totals(self._dispatcher)
        rate = spent["calls"] / max(time.monotonic() - self._began_s, 1e-9)
        hits = spent["cache_hits"] / max(spent["calls"] + spent["cache_hits"], 1)
        return f"{self._standing}{rate:.1f} calls/s, {hits:.0%} hits"

    def _print(self) -> None:
        """A plain line, where there is no bar."""
        self._told_s = time.monotonic()
        if not self.is_shown:
            far = f"{self._what}: {self._done} of {self._total}"
            print(f"{far}, {self._says()}{self._left()}", file=sys.stderr)

    def _left(self) -> str:
        """At the pace since a server was first asked: what a resumed search tells again takes no time."""
        known, from_s = self._asked_from
        if not known < self._done < self._total:
            return ""
        left_s = (time.monotonic() - from_s) * (self._total - self._done) / (self._done - known)
        return f", about {left_s:.0f} s left"

    def __enter__(self) -> Self:
        self._began_s = self._told_s = time.monotonic()
        self._asked_from = 0, self._began_s
        return super().__enter__()
