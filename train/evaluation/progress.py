"""The live progress line of an evaluation, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ollama_utils.dispatcher import Dispatcher
from train.findings import Findings
from train.live_bar import LiveBar, shares


class EvalProgress(LiveBar):
    """Tells how far an evaluation is, what calls fail, and what is found out about the servers.

    Args:
        dispatcher: where the calls go.
        findings: what is found out about the servers.
    """

    def __init__(self, dispatcher: Dispatcher, findings: Findings) -> None:
        super().__init__()
        self._dispatcher = dispatcher
        self._findings = findings
        self._told = ""

    def begin(self, what: str, total: int) -> Callable[[int], None]:
        """A part of the evaluation begins; returns what is to be told how much of it is done."""
        task = self.progress.add_task(what, total=total)
        steps = shares(total)

        def tick(done: int) -> None:
            for line in self._findings.news(self._dispatcher.capacities()):
                self.say(line)
            self.progress.update(task, completed=done)
            reached = {step for step in steps if step <= done}
            if reached and not self.is_shown:
                print(f"{what}: {done} of {total}", file=sys.stderr)
            steps.difference_update(reached)

        return tick

    def complain(self, errors: Sequence[str]) -> None:
        """Say why a step could not be scored, when it is another reason than the last time."""
        kinds = [error for error in errors if error]
        if kinds and kinds[0].partition(":")[0] != self._told:
            self._told = kinds[0].partition(":")[0]
            self.say(f"not scored: {kinds[0]}")
