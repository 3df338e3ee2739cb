"""Bandits: they learn which mutator is best whatever the query, and are then frozen into a policy.

Each one is asked for an arm (a mutator's number) and told what it brought; it may be asked several times
before it is told. A step that could not be scored is not told: it did not happen. The same seed and the
same rewards in the same order give the same arms.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from search.policies.baselines import FixedSource, SampledSource
from search.policies.means import Means, check_all_played, check_arm, check_arms, check_reward
from search.policies.policy import PolicySource


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
            ValueError: too little was told.
        """
        ...


class EpsilonGreedy:
    """Mostly the arm with the best mean, and with probability epsilon any arm.

    Epsilon is constant (Sutton and Barto, Reinforcement Learning, section 2.2); Auer, Cesa-Bianchi and
    Fischer 2002, Machine Learning 47, study one that falls. Each arm is played once first.

    Args:
        arms: how many there are.
        seed: of all its chance.
        epsilon: in [0, 1].
        name: what the frozen policy is called.

    Raises:
        ValueError: there is no arm, or epsilon is out of range.
    """

    def __init__(self, arms: int, *, seed: int, epsilon: float = 0.1, name: str = "epsilon_greedy") -> None:
        self.name = name
        self._means = Means(arms, seed)
        self._epsilon = _share("epsilon", epsilon)

    def ask(self) -> int:
        """The arm to play next."""
        means = self._means
        arm = means.unplayed()
        if arm is None and means.chance.random() < self._epsilon:
            arm = int(means.chance.integers(means.arms))
        return means.note(means.leader() if arm is None else arm)

    def tell(self, arm: int, reward: float) -> None:
        """What an arm brought, in [0, 1]."""
        self._means.add(arm, reward)

    def frozen(self) -> SampledSource:
        """The best arm, and with probability epsilon any: it stays as random as it was."""
        weights = np.full(self._means.arms, self._epsilon / self._means.arms)
        weights[self._means.best()] += 1 - self._epsilon
        return SampledSource(name=self.name, weights=_normalised(weights))


class UCB1:
    """The arm with the highest mean + sqrt(2 ln n / n_arm), after n plays of which n_arm are its own.

    Auer, Cesa-Bianchi and Fischer 2002, Machine Learning 47, figure 1. Each arm is played once first. Arms
    that wait for their reward are counted as played, so that arms asked for together differ.

    Args:
        arms: how many there are.
        seed: of the order in which arms are first played, and in which ties are broken.
        name: what the frozen policy is called.

    Raises:
        ValueError: there is no arm.
    """

    def __init__(self, arms: int, *, seed: int, name: str = "ucb1") -> None:
        self.name = name
        self._means = Means(arms, seed)

    def ask(self) -> int:
        """The arm to play next."""
        means = self._means
        arm = means.unplayed()
        if arm is None:
            plays = means.plays
            arm = means.leader(np.sqrt(2 * math.log(plays.sum()) / np.maximum(plays, 1)))
        return means.note(arm)

    def tell(self, arm: int, reward: float) -> None:
        """What an arm brought, in [0, 1]."""
        self._means.add(arm, reward)

    def frozen(self) -> FixedSource:
        """The arm with the best mean."""
        return FixedSource(name=self.name, action=self._means.best())


class Exp3:
    """Draws arms by weights that grow with the reward of an arm over the probability it was drawn with.

    Auer, Cesa-Bianchi, Freund and Schapire 2002, SIAM Journal on Computing 32, figure 1. The weights are
    kept as logarithms.

    Args:
        arms: how many there are.
        seed: of all its chance.
        gamma: the share of draws that pay no heed to the weights, in (0, 1].
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
        self._is_told = False

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
        self._is_told = True

    def frozen(self) -> SampledSource:
        """Draws by the weights alone: it explores no more.

        Raises:
            ValueError: it was never told a reward.
        """
        if not self._is_told:
            raise ValueError("exp3 was never told a reward; fit it first")
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

    def frozen(self) -> FixedSource:
        """The arm with the highest mean return of an episode; of several, the first.

        Raises:
            ValueError: some arm had no episode.
        """
        check_all_played(self._episodes)
        return FixedSource(name=self.name, action=int(np.argmax(self._returns / self._episodes)))


def _share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, got {value!r}")
    return float(value)


def _normalised(weights: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple((weights / weights.sum()).tolist())
