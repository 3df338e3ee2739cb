"""The live progress line of an evaluation, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ollama_utils.dispatcher import Dispatcher
from train.findings import Findings

SHARES = 10
"""Plain lines are so many over an evaluation."""


class EvalProgress:
    """Tells how far an evaluation is, what calls fail, and what is found out about the servers.

    Args:
        dispatcher: where the calls go.
        findings: what is found out about the servers.
    """

    def __init__(self, dispatcher: Dispatcher, findings: Findings) -> None:
        self._dispatcher = dispatcher
        self._findings = findings
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._told = ""

    def begin(self, what: str, total: int) -> Callable[[int], None]:
        """A part of the evaluation begins; returns what is to be told how much of it is done."""
        task = self._progress.add_task(what, total=total)
        steps = {-(-total * k // SHARES) for k in range(1, SHARES + 1)}

        def tick(done: int) -> None:
            for line in self._findings.news(self._dispatcher.capacities()):
                self.say(line)
            self._progress.update(task, completed=done)
            reached = {step for step in steps if step <= done}
            if self._progress.disable and reached:
                print(f"{what}: {done} of {total}", file=sys.stderr)
            steps.difference_update(reached)

        return tick

    def complain(self, errors: Sequence[str]) -> None:
        """Say why a step could not be scored, when it is another reason than the last time."""
        kinds = [error for error in errors if error]
        if kinds and kinds[0].partition(":")[0] != self._told:
            self._told = kinds[0].partition(":")[0]
            self.say(f"not scored: {kinds[0]}")

    def say(self, line: str) -> None:
        """Print a line beside the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
