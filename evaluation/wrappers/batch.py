"""Policies with `step_batch`, or with a network: one call a step for the agents of an episode."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from evaluation.policies.policy import PolicySource, View
from evaluation.wrappers.errors import PolicyBusyError, WrapperError
from evaluation.wrappers.gathering import Gathering, Row
from evaluation.wrappers.players import Player, can_batch, step_together
from evaluation.wrappers.runners import Runner
from evaluation.wrappers.seats import Seat, Seats, seated
from evaluation.wrappers.torch_blocks import NetworkSeat, forward_passes


class BatchWrapper:
    """Calls `step_batch` once for the agents of a step that have the same policy, all of one instance.

    Policies with a network are stepped through it, as they always are: in one forward pass a step.

    Args:
        runner: where it is called: see `evaluation.wrappers.runners.in_turn`.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def team(self, sources: Sequence[PolicySource], seeds: Sequence[int]) -> Seats:
        """The policies of a new episode.

        Raises:
            WrapperError: a policy has no `step_batch` and no network.
        """
        shared: dict[int, Seat] = {}
        passes = forward_passes(self._runner)

        def seat(source: PolicySource, player: Player) -> Seat:
            if player.network is not None:
                return NetworkSeat(player, passes)
            shared[id(source)] = self.seat(player)
            return shared[id(source)]

        return Seats(
            [
                shared.get(id(source)) or seated(source, seed, partial(seat, source))
                for source, seed in zip(sources, seeds, strict=True)
            ]
        )

    def seat(self, player: Player) -> BatchSeat:
        """The seat that the agents of an instance share.

        Raises:
            WrapperError: it has no `step_batch`.
        """
        if not can_batch(player.policy):
            raise WrapperError(
                f"policy {player.name!r} has no step_batch: --policy-wrapper batch cannot serve it"
            )
        return BatchSeat(player, self._runner)

    def close(self) -> None:
        """End the threads."""
        self._runner.close()


class BatchSeat:
    """Gathers the views of all agents that an instance serves.

    Args:
        player: the instance.
        runner: where it is called.
    """

    def __init__(self, player: Player, runner: Runner) -> None:
        self._player = player
        self._gathering = Gathering(f"policy {player.name!r}", runner, self._look)
        self._turn = threading.Lock()

    def submit(self, view: View) -> Row:
        """Add an agent's view to the next call."""
        return self._gathering.submit(self._player, view)

    def close(self) -> None:
        """Nothing to drop."""

    def _look(self, rows: Sequence[Row]) -> None:
        """Make the call; an error of it is every agent's."""
        rows = sorted(rows, key=lambda row: row.view.agent)
        try:
            outcomes: Sequence[int | Exception] = self._step([row.view for row in rows])
        except Exception as error:  # noqa: BLE001 - raised where the actions are asked for
            outcomes = [error] * len(rows)
        for row, outcome in zip(rows, outcomes, strict=True):
            row.outcome = outcome

    def _step(self, views: Sequence[View]) -> list[int | Exception]:
        if not self._turn.acquire(blocking=False):
            raise PolicyBusyError(f"policy {self._player.name!r} has not ended an earlier step")
        try:
            return step_together(self._player, views)
        finally:
            self._turn.release()
