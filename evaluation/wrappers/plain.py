"""Policies stepped one by one, each by itself: when its action is asked for, or side by side on threads."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.policies.policy import PolicySource
from evaluation.wrappers.players import Player
from evaluation.wrappers.runners import Runner, ThreadPool
from evaluation.wrappers.seats import LazySeat, PoolSeat, Seats, Stepper, seated


class SerialWrapper:
    """Steps each policy when its action is asked for.

    Args:
        runner: where they step: see `evaluation.wrappers.runners.in_turn`.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def team(self, sources: Sequence[PolicySource], seeds: Sequence[int]) -> Seats:
        """The policies of a new episode."""
        return Seats([seated(*each, self.seat) for each in zip(sources, seeds, strict=True)])

    def seat(self, player: Stepper) -> LazySeat:
        """The seat of an instance."""
        return LazySeat(player, self._runner)

    def close(self) -> None:
        """End the threads."""
        self._runner.close()


class ThreadWrapper:
    """Steps policies side by side on threads: for those that wait, or that leave the interpreter's lock.

    Args:
        pool: the threads.
    """

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool

    def team(self, sources: Sequence[PolicySource], seeds: Sequence[int]) -> Seats:
        """The policies of a new episode."""
        return Seats([seated(*each, self.seat) for each in zip(sources, seeds, strict=True)])

    def seat(self, player: Player) -> PoolSeat:
        """The seat of an instance."""
        return PoolSeat(player, self._pool)

    def close(self) -> None:
        """End the threads."""
        self._pool.close()
