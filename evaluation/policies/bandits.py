"""Bandits: they learn which mutator is best whatever the query, and are then frozen into a policy.

`ask` returns an arm (a mutator's number), `tell` takes the reward that it brought; `ask` may be called
several times before `tell`. The reward of a step that could not be scored is left out: it did not happen.
The same seed and the same rewards in the same order give the same arms.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evaluation.policies.baselines import FixedPolicy, SampledSource
from evaluation.policies.policy import PolicySource


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


class Bandit(Protocol):
    """Learns from one reward at a time."""

    def ask(self) -> int:
        """The arm to play next."""
        ...

    def tell(self, arm: int, reward: float) -> None:
        """What an arm brought, in [0, 1]."""
        ...

    def frozen(self) -> PolicySource:
        """The policy that plays what was learned and learns no more.

        Raises:
            ValueError: too few rewards came.
        """
        ...


class MeanBandit(ABC):
    """Goes by the mean reward of each arm; each arm is played once first.

    Several arms may be asked for before the first reward comes: those asked for since the last reward count
    as played. Those of them that bring no reward after that did not happen.

    Args:
        arms: how many there are.
        seed: of all its chance, such as the order in which arms are first played and ties are broken.
        name: what the frozen policy is called.

    Raises:
        ValueError: there is no arm.
    """

    def __init__(self, arms: int, *, seed: int, name: str) -> None:
        check_arms(arms)
        self.name = name
        self.arms = arms
        """How many there are."""
        self._chance = np.random.default_rng(seed)
        self._counts = np.zeros(arms, np.int64)
        self._sums = np.zeros(arms)
        self._waiting = np.zeros(arms, np.int64)
        self._order = self._chance.permutation(arms)

    def ask(self) -> int:
        """The arm to play next."""
        arm = self._unplayed()
        if arm is None:
            arm = self._choose()
        self._waiting[arm] += 1
        return arm

    def tell(self, arm: int, reward: float) -> None:
        """What an arm brought.

        Raises:
            ValueError: there is no such arm, or the reward is not in [0, 1].
        """
        check_arm(arm, self.arms)
        check_reward(reward)
        self._counts[arm] += 1
        self._sums[arm] += reward
        self._waiting[:] = 0

    def best(self) -> int:
        """The arm with the highest mean.

        Raises:
            ValueError: nothing is known of some arm.
        """
        check_all_played(self._counts)
        return self._leader()

    @abstractmethod
    def _choose(self) -> int:
        """The next arm, where all were played, or wait for their reward."""

    def _unplayed(self) -> int | None:
        """The first arm, in the seed's order, of which nothing is known; None where all are, or wait.

        While nothing at all is known the arms wait in turn.
        """
        unknown = [int(arm) for arm in self._order if not self._counts[arm]]
        fresh = [arm for arm in unknown if not self._waiting[arm]]
        if fresh or len(unknown) < self.arms:
            return fresh[0] if fresh else None
        return min(unknown, key=lambda arm: self._waiting[arm])

    def _leader(self, bonus: float | NDArray[np.float64] = 0.0) -> int:
        """Of the arms of which something is known, the one with the highest mean plus `bonus` (arms,)."""
        means = np.divide(self._sums, self._counts, where=self._counts > 0, out=np.full(self.arms, -np.inf))
        return int(self._order[np.argmax((means + bonus)[self._order])])


class EpsilonGreedy(MeanBandit):
    """Mostly the arm with the best mean, and with probability epsilon any arm.

    Epsilon is constant (Sutton and Barto, Reinforcement Learning, section 2.2); Auer, Cesa-Bianchi and
    Fischer 2002, Machine Learning 47, study one that falls.

    Args:
        arms: how many there are.
        seed: of all its chance.
        epsilon: in [0, 1].
        name: what the frozen policy is called.

    Raises:
        ValueError: there is no arm, or epsilon is out of range.
    """

    def __init__(self, arms: int, *, seed: int, epsilon: float = 0.1, name: str = "epsilon_greedy") -> None:
        super().__init__(arms, seed=seed, name=name)
        self._epsilon = _share("epsilon", epsilon)

    def frozen(self) -> SampledSource:
        """The best arm, and with probability epsilon any: it stays as random as it was."""
        weights = np.full(self.arms, self._epsilon / self.arms)
        weights[self.best()] += 1 - self._epsilon
        return SampledSource(name=self.name, weights=_normalised(weights))

    def _choose(self) -> int:
        if self._chance.random() < self._epsilon:
            return int(self._chance.integers(self.arms))
        return self._leader()


class UCB1(MeanBandit):
    """The arm with the highest mean + sqrt(2 ln n / n_arm), after n plays of which n_arm are its own.

    Auer, Cesa-Bianchi and Fischer 2002, Machine Learning 47, figure 1. Arms that wait for their reward are
    counted as played, so that arms asked for together differ.
    """

    def __init__(self, arms: int, *, seed: int, name: str = "ucb1") -> None:
        super().__init__(arms, seed=seed, name=name)

    def frozen(self) -> FixedPolicy:
        """The arm with the best mean."""
        return FixedPolicy(name=self.name, action=self.best())

    def _choose(self) -> int:
        plays = self._counts + self._waiting
        return self._leader(np.sqrt(2 * math.log(plays.sum()) / np.maximum(plays, 1)))


class Exp3:
    """Draws arms by weights that grow with the reward of an arm over the probability it was drawn with.

    Auer, Cesa-Bianchi, Freund and Schapire 2002, SIAM Journal on Computing 32, figure 1. The weights are
    kept as logarithms.

    Args:
        arms: how many there are.
        seed: of all its chance.
        gamma: the share of draws that disregard the weights, in (0, 1].
        name: what the frozen policy is called.

    Raises:
        ValueError: there is no arm, or gamma is out of range.
    """

    def __init__(self, arms: int, *, seed: int, gamma: float = 0.1, name: str = "exp3") -> None:
        check_arms(arms)
        self.name = name
        self._gamma = _share("gamma", gamma)
        if not self._gamma:
            raise ValueError("gamma must be over 0, got 0: it would never explore")
        self._chance = np.random.default_rng(seed)
        self._log_weights = np.zeros(arms)
        self._drawn_with = np.full(arms, 1 / arms)
        self._has_learned = False

    def ask(self) -> int:
        """The arm to play next."""
        arms = len(self._log_weights)
        odds = (1 - self._gamma) * self._shares() + self._gamma / arms
        arm = int(self._chance.choice(arms, p=odds))
        self._drawn_with[arm] = odds[arm]
        return arm

    def tell(self, arm: int, reward: float) -> None:
        """What an arm brought, in [0, 1], when it was last asked for."""
        arms = len(self._log_weights)
        check_arm(arm, arms)
        check_reward(reward)
        self._log_weights[arm] += self._gamma * reward / self._drawn_with[arm] / arms
        self._has_learned = True

    def frozen(self) -> SampledSource:
        """Draws by the weights alone: it explores no more.

        Raises:
            ValueError: it never took a reward.
        """
        if not self._has_learned:
            raise ValueError("exp3 never took a reward; fit it first")
        return SampledSource(name=self.name, weights=_normalised(self._shares()))

    def _shares(self) -> NDArray[np.float64]:
        """The weights (arms,), scaled to sum to 1."""
        weights = np.exp(self._log_weights - self._log_weights.max())
        shares: NDArray[np.float64] = weights / weights.sum()
        return shares


class BestFixed:
    """Of arms that were each played alone in whole episodes, the one with the best mean return.

    Args:
        arms: how many there are.

    Raises:
        ValueError: there is no arm.
    """

    name = "best_fixed"

    def __init__(self, arms: int) -> None:
        check_arms(arms)
        self._returns = np.zeros(arms)
        self._episodes = np.zeros(arms, np.int64)

    def tell(self, arm: int, episode_return: float) -> None:
        """What an episode that played one arm alone brought.

        Args:
            arm: the arm.
            episode_return: the sum of the episode's rewards.

        Raises:
            ValueError: there is no such arm, or the return is not finite.
        """
        check_arm(arm, len(self._returns))
        if not math.isfinite(episode_return):
            raise ValueError(f"an episode's return must be finite, got {episode_return!r}")
        self._returns[arm] += episode_return
        self._episodes[arm] += 1

    def frozen(self) -> FixedPolicy:
        """The arm with the highest mean return of an episode; of several, the first.

        Raises:
            ValueError: some arm had no episode.
        """
        check_all_played(self._episodes)
        return FixedPolicy(name=self.name, action=int(np.argmax(self._returns / self._episodes)))


def _share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, got {value!r}")
    return float(value)


def _normalised(weights: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple((weights / weights.sum()).tolist())
