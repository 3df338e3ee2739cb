"""An agent's seat: where its views are handed in. A team is the seats of one episode."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from evaluation.policies.policy import PolicySource, View
from evaluation.wrappers.errors import PolicyBusyError
from evaluation.wrappers.players import Player, make_player
from evaluation.wrappers.runners import Runner, Task, ThreadPool
from evaluation.wrappers.wrapper import Pending


class Stepper(Protocol):
    """What sits on a seat: a `Player`, or one that is watched."""

    name: str

    def step(self, view: View) -> int:
        """The action."""
        ...


class Seat(Protocol):
    """Steps one agent's policy."""

    def submit(self, view: View) -> Pending:
        """Hand in a view."""
        ...

    def close(self) -> None:
        """The episode is over."""
        ...


class Seats:
    """A team of seats, each of its own kind."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._seats = seats

    def submit(self, agent: int, view: View) -> Pending:
        """Hand in an agent's view."""
        return self._seats[agent].submit(view)

    def close(self) -> None:
        """Close every seat."""
        for seat in self._seats:
            seat.close()


def seated(source: PolicySource, seed: int, seat: Callable[[Player], Seat]) -> Seat:
    """The seat of a new instance; if it cannot be made, one where every step fails with the reason."""
    try:
        player = make_player(source, seed)
    except Exception as error:  # noqa: BLE001 - it belongs to this agent
        return FailedSeat(error)
    return seat(player)


@dataclass(frozen=True)
class FailedSeat:
    """The seat of a policy that could not be made."""

    error: Exception

    def submit(self, view: View) -> Failed:  # noqa: ARG002 - nobody sees it
        """A step that fails."""
        return Failed(self.error)

    def close(self) -> None:
        """Nothing to drop."""


@dataclass(frozen=True)
class Failed:
    """A step that has failed."""

    error: Exception

    def result(self) -> int:
        """Raises the error."""
        raise self.error


class LazySeat:
    """Steps a policy when its action is asked for.

    Args:
        player: the policy.
        runner: where it steps.
    """

    def __init__(self, player: Stepper, runner: Runner) -> None:
        self._runner = runner
        self._turns = Turns(player)

    def submit(self, view: View) -> Lazy:
        """Keep the view until the action is asked for."""
        return Lazy(partial(self._step, view))

    def close(self) -> None:
        """Nothing to drop."""

    def _step(self, view: View) -> int:
        action: int = self._runner.result(self._runner.start(self._turns.what, self._turns.work(view)))
        return action


@dataclass(frozen=True)
class Lazy:
    """A step that is done when its action is asked for."""

    step: Callable[[], int]

    def result(self) -> int:
        """Do the step."""
        return self.step()


class PoolSeat:
    """Steps a policy on a pool of threads, as soon as one is free.

    Args:
        player: the policy.
        pool: the threads.
    """

    def __init__(self, player: Player, pool: ThreadPool) -> None:
        self._pool = pool
        self._turns = Turns(player)
        self._last: Task | None = None

    def submit(self, view: View) -> Pooled:
        """Queue the step."""
        self._last = self._pool.start(self._turns.what, self._turns.work(view))
        return Pooled(self._pool, self._last)

    def close(self) -> None:
        """Drop a step that has not begun."""
        if self._last is not None:
            self._pool.cancel(self._last)


@dataclass(frozen=True)
class Pooled:
    """A step on a pool of threads."""

    pool: ThreadPool
    task: Task

    def result(self) -> int:
        """Wait for it."""
        action: int = self.pool.result(self.task)
        return action


class Turns:
    """The steps of one instance, one at a time: one that was given up may still be under way."""

    def __init__(self, player: Stepper) -> None:
        self.what = f"policy {player.name!r}"
        """The policy in messages."""
        self._player = player
        self._lock = threading.Lock()

    def work(self, view: View) -> Callable[[], int]:
        """One step, to be done later."""
        return partial(self._step, view)

    def _step(self, view: View) -> int:
        """The policy's action.

        Raises:
            PolicyBusyError: an earlier step has not ended.
            Exception: whatever the policy raises.
        """
        if not self._lock.acquire(blocking=False):
            raise PolicyBusyError(f"{self.what} has not ended an earlier step; ask for one action at a time")
        try:
            return self._player.step(view)
        finally:
            self._lock.release()
