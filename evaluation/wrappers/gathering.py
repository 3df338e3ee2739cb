"""Views that are gathered first and then looked at together, in one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from evaluation.policies.policy import View
from evaluation.wrappers.errors import PolicyError
from evaluation.wrappers.players import Player
from evaluation.wrappers.runners import Runner, Task


class Row:
    """A view among those of a call, and what came of it."""

    def __init__(self, gathering: Gathering, call: GatheredCall, player: Player, view: View) -> None:
        self.player = player
        self.view = view
        self.outcome: int | Exception = PolicyError(f"policy {player.name!r} gave no action")
        """The action, or what is wrong with it."""
        self.call = call
        self._gathering = gathering

    def result(self) -> int:
        """Have the call made, and wait for it."""
        self._gathering.finish(self.call)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class GatheredCall:
    """Rows that are looked at together."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.task: Task | None = None


class Gathering:
    """Gathers views until the first action is asked for and a thread is free; then makes one call for them.

    Args:
        what: what makes the call, for messages.
        runner: where.
        look: sets the outcome of each row; it raises nothing.
    """

    def __init__(self, what: str, runner: Runner, look: Callable[[Sequence[Row]], None]) -> None:
        self._what = what
        self._runner = runner
        self._look = look
        self._lock = threading.RLock()  # a runner may do its work at once
        self._open = GatheredCall()

    def submit(self, player: Player, view: View) -> Row:
        """Add a view to those of the next call."""
        with self._lock:
            row = Row(self, self._open, player, view)
            self._open.rows.append(row)
        return row

    def finish(self, call: GatheredCall) -> None:
        """Have the call made, unless it is under way, and wait for it.

        Raises:
            PolicyTimeoutError: it overran its deadline.
            WrapperClosedError: the wrapper was closed before it began.
        """
        with self._lock:
            if call.task is None:
                call.task = self._runner.start(self._what, partial(self._make, call))
        try:
            self._runner.result(call.task)
        except PolicyError as error:
            raise type(error)(*error.args) from None  # each agent's own: others raise it at the same time

    def _make(self, call: GatheredCall) -> None:
        with self._lock:
            if call is self._open:
                self._open = GatheredCall()
        self._look(call.rows)
