"""Policies with a torch network: one forward pass for the agents of all episodes that are waiting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from evaluation.policies.policy import PolicySource, View
from evaluation.wrappers.blocks import block_scores
from evaluation.wrappers.errors import WrapperError
from evaluation.wrappers.gathering import Gathering, Row
from evaluation.wrappers.players import Player
from evaluation.wrappers.runners import Runner, ThreadPool
from evaluation.wrappers.seats import Seats, seated

if TYPE_CHECKING:
    import torch


class TorchWrapper:
    """Forwards, on one thread, all views that came in while it was busy; policies then choose by the scores.

    Args:
        timeout_s: the deadline of a pass and the choices that follow from it; None: none.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._pool = ThreadPool(1, timeout_s)
        self._passes = forward_passes(self._pool)

    def team(self, sources: Sequence[PolicySource], seeds: Sequence[int]) -> Seats:
        """The policies of a new episode.

        Raises:
            WrapperError: a policy has no network.
        """
        return Seats([seated(*each, self.seat) for each in zip(sources, seeds, strict=True)])

    def seat(self, player: Player) -> NetworkSeat:
        """The seat of an instance.

        Raises:
            WrapperError: it has no network.
        """
        if player.network is None:
            raise WrapperError(
                f"policy {player.name!r} has no torch network: --policy-wrapper torch cannot serve it"
            )
        return NetworkSeat(player, self._passes)

    def close(self) -> None:
        """End the thread."""
        self._pool.close()


class NetworkSeat:
    """Adds the views of one agent to those of all others.

    Args:
        player: its policy.
        passes: where all views are gathered.
    """

    def __init__(self, player: Player, passes: Gathering) -> None:
        self._player = player
        self._passes = passes

    def submit(self, view: View) -> Row:
        """Add a view to those of the next pass."""
        return self._passes.submit(self._player, view)

    def close(self) -> None:
        """Nothing to drop."""


def forward_passes(runner: Runner) -> Gathering:
    """Where views are gathered for one forward pass after another."""
    return Gathering("the forward pass of policies", runner, look)


def look(rows: Sequence[Row]) -> None:
    """Set the outcomes of rows: those with the same network, and observations of one shape, go together."""
    alike: dict[tuple[int, tuple[int, ...]], list[Row]] = defaultdict(list)
    for row in rows:
        alike[id(row.player.network), row.view.observation.shape].append(row)
    for together in alike.values():
        for row, scores in zip(together, _scores(together), strict=True):
            row.outcome = scores if isinstance(scores, Exception) else _choice(row, scores)


def _scores(rows: Sequence[Row]) -> Sequence[NDArray[np.float32] | Exception]:
    """The scores of each row; where the pass fails, each row goes alone, so that it spoils no other's."""
    network = rows[0].player.network
    places = [(row.player.place, row.view.observation) for row in rows]
    try:
        return block_scores(cast("torch.nn.Module", network), places)
    except Exception as error:  # noqa: BLE001 - it belongs to the row that caused it
        return [error] if len(rows) == 1 else [_scores([row])[0] for row in rows]


def _choice(row: Row, scores: NDArray[np.float32]) -> int | Exception:
    try:
        return row.player.choose(row.view, scores)
    except Exception as error:  # noqa: BLE001 - it belongs to this agent
        return error
