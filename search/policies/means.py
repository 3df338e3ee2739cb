"""What a bandit knows of its arms, and what it may be asked and told."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Means:
    """The mean reward of each arm.

    Several arms may be chosen before the first reward comes: those chosen since the last reward count as
    played. What is not told after that did not happen.

    Args:
        arms: how many there are.
        seed: of the order in which arms are first played, and in which ties are broken.

    Raises:
        ValueError: there is no arm.
    """

    def __init__(self, arms: int, seed: int) -> None:
        check_arms(arms)
        self.chance = np.random.default_rng(seed)
        self._counts = np.zeros(arms, np.int64)
        self._sums = np.zeros(arms)
        self._waiting = np.zeros(arms, np.int64)
        self._order = self.chance.permutation(arms)

    @property
    def arms(self) -> int:
        """How many arms there are."""
        return len(self._counts)

    @property
    def plays(self) -> NDArray[np.int64]:
        """(arms,), how often each was played; those that wait for their reward are counted."""
        return self._counts + self._waiting

    def note(self, arm: int) -> int:
        """Note that an arm was chosen; returns it."""
        self._waiting[arm] += 1
        return arm

    def add(self, arm: int, reward: float) -> None:
        """Note a reward.

        Raises:
            ValueError: there is no such arm, or the reward is not in [0, 1].
        """
        check_arm(arm, self.arms)
        check_reward(reward)
        self._counts[arm] += 1
        self._sums[arm] += reward
        self._waiting[:] = 0

    def unplayed(self) -> int | None:
        """The first arm, in the seed's order, of which nothing is known; None where all are, or wait.

        While nothing at all is known the arms wait in turn.
        """
        unknown = [int(arm) for arm in self._order if not self._counts[arm]]
        fresh = [arm for arm in unknown if not self._waiting[arm]]
        if fresh or len(unknown) < self.arms:
            return fresh[0] if fresh else None
        return min(unknown, key=lambda arm: self._waiting[arm])

    def leader(self, bonus: float | NDArray[np.float64] = 0.0) -> int:
        """Of the arms of which something is known, the one with the highest mean plus `bonus` (arms,)."""
        means = np.divide(self._sums, self._counts, where=self._counts > 0, out=np.full(self.arms, -np.inf))
        return int(self._order[np.argmax((means + bonus)[self._order])])

    def best(self) -> int:
        """The arm with the highest mean.

        Raises:
            ValueError: nothing is known of some arm.
        """
        check_all_played(self._counts)
        return self.leader()


def check_arms(arms: int) -> None:
    """Raise ValueError where there is no arm."""
    if arms < 1:
        raise ValueError(f"a bandit needs at least one arm, got {arms!r}")


def check_arm(arm: int, arms: int) -> None:
    """Raise ValueError where `arm` is none of so many."""
    if not 0 <= arm < arms:
        raise ValueError(f"there is no arm {arm!r}; expected 0 to {arms - 1}")


def check_reward(reward: float) -> None:
    """Raise ValueError where a reward is not in [0, 1]."""
    if not 0 <= reward <= 1:
        raise ValueError(f"a bandit's reward must be in [0, 1], got {reward!r}")


def check_all_played(counts: NDArray[np.int64]) -> None:
    """Raise ValueError where an arm's count (arms,) is 0."""
    if not counts.all():
        missing = np.flatnonzero(counts == 0).tolist()
        raise ValueError(f"nothing is known of the arms {missing}; play each at least once")
