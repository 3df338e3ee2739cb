"""How far a search is, on stderr: the same for a command and for a search from Python."""

from __future__ import annotations

import time
from typing import Self

from rich.table import Column

from ollama_utils.dispatcher import Dispatcher, account_totals
from ollama_utils.findings import Findings
from records.progress import FieldColumn, ProgressDisplay

SILENT_S = 30.0
"""Where there is no bar, there is a plain line at least as often."""


class SearchProgress(ProgressDisplay):
    """Shows how far a search is, how fast, how well it does, and what is found out about the servers.

    Args:
        what: what is counted, as in "generations".
        total: how many there are at most.
        dispatcher: where the calls go.
        findings: what is found out about the servers; None says nothing of them.
        calls_each: replies that one of them takes at most; where it is not 0, those so far are shown.
    """

    def __init__(
        self,
        what: str,
        total: int,
        dispatcher: Dispatcher,
        findings: Findings | None = None,
        *,
        calls_each: int = 0,
    ) -> None:
        # On a narrow terminal this column breaks into lines, so that the others stay whole.
        super().__init__(FieldColumn("{task.fields[says]}", Column()))
        self.begin(what, total, says="")
        self._dispatcher = dispatcher
        self._findings = findings
        self._standing = ""
        self._calls_each = calls_each
        self._done, self._replies_before = 0, self._replies()
        """How many are done, and the replies that there were then."""
        self._began_s = self._printed_s = time.monotonic()
        self._first_call = 0, self._began_s
        """How much was done, and when, before a server was first called."""

    def advance(self, done: int, best: float | None = None, standing: str | None = None) -> None:
        """So much is done; `best` is the best score so far, where there is another; or `standing` says it."""
        if best is not None:
            self._standing = f"best {best:.3f}, "
        if standing is not None:
            self._standing = f"{standing}, "
        self._done, self._replies_before = done, self._replies()
        if not account_totals(self._dispatcher)["calls"]:
            self._first_call = done, time.monotonic()
        self.update(self._far())
        if self.plain_line_is_due(done):
            self._print()

    def tick(self) -> None:
        """Bring the rate up to date, and say what was found out; to be called again and again."""
        if self._findings is not None:
            for line in self._findings.news(self._dispatcher.capacities()):
                self.say(line)
        self.update(self._far(), says=self._says())
        if time.monotonic() - self._printed_s > SILENT_S:
            self._print()

    def _says(self) -> str:
        spent = account_totals(self._dispatcher)
        rate = spent["calls"] / max(time.monotonic() - self._began_s, 1e-9)
        hits = spent["cache_hits"] / max(spent["calls"] + spent["cache_hits"], 1)
        since = self._since()
        within = f"then {since} of at most {self._calls_each} calls, " if since else ""
        return f"{within}{self._standing}{rate:.1f} calls/s, {hits:.0%} hits"

    def _replies(self) -> int:
        """That came so far, or were known; a failed attempt brings none."""
        spent = account_totals(self._dispatcher)
        return int(spent["calls"] - spent["failures"] + spent["cache_hits"])

    def _since(self) -> int:
        """Replies since so many were done, at most those that one takes: a few may come twice."""
        if self._done >= self._total:
            return 0
        return min(self._replies() - self._replies_before, self._calls_each)

    def _far(self) -> float:
        """How many are done, with the share of the one under way."""
        return self._done + self._since() / max(1, self._calls_each)

    def _print(self) -> None:
        self._printed_s = time.monotonic()
        self.print_plain(f"{self._what}: {self._done} of {self._total}, {self._says()}{self._left()}")

    def _left(self) -> str:
        """At the pace since a server was first called: what a resumed search repeats takes no time."""
        (known, from_s), far = self._first_call, self._far()
        if not known < far < self._total:
            return ""
        left_s = (time.monotonic() - from_s) * (self._total - far) / (far - known)
        return f", about {left_s:.0f} s left"

    def __enter__(self) -> Self:
        self._began_s = self._printed_s = time.monotonic()
        self._first_call = 0, self._began_s
        return super().__enter__()
