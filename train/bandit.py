"""Contextual bandits as algorithms of Stable-Baselines3: LinUCB and Thompson sampling on a linear model.

They learn from every step what it earned, some credit for a partial refusal among it, and look no further
than the next one; at use the mutator that is expected to earn most is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.common.vec_env import VecEnv

from envs.observation import observation_size
from train.lanes import LaneRollouts
from train.linear_bandit import LinearBandit, credit
from train.random_streams import action_streams
from train.rollouts import Choice, MaskedRollouts, in_blocks

Explore = Literal["linucb", "thompson"]
ALPHAS = (0.5, 0.8, 1.25, 2.0)
"""LinUCB's alphas, one lane after another: the mutator whose mean plus so many standard deviations is highest
is taken. Some lanes look far, some close by, as the actors of Horgan et al. 2018 do (arXiv 1803.00933); tuned
on `cautious`."""


class BanditPolicy(BasePolicy):
    """The policy that takes the mutator which `model` expects to earn most."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        _lr_schedule: Schedule | None = None,
        *,
        rules: Sequence[int] = (),
        use_sde: bool = False,  # noqa: ARG002 - what SB3 gives every policy
    ) -> None:
        super().__init__(observation_space, action_space)
        num_actions = int(action_space.n)  # type: ignore[attr-defined] # Discrete
        (size,) = observation_space.shape  # type: ignore[misc] # a Box
        self.model = LinearBandit(size - observation_size(0, num_actions), num_actions, rules)

    def scores(self, observations: torch.Tensor) -> torch.Tensor:
        """The expected rewards (N, A)."""
        expected: torch.Tensor = self.model(observations)
        return expected

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> torch.Tensor:  # noqa: ARG002, FBT001, FBT002 - SB3's
        return self.scores(cast("torch.Tensor", observation)).argmax(
            dim=1
        )  # no dict: MaskedRollouts refuses those


class MaskedBandit(MaskedRollouts):
    """A contextual bandit that learns after each rollout; see `MaskedRollouts`.

    Within a rollout the model stays as it is. How actions are chosen: see `explore`.

    Args:
        env: the environment.
        how: the way actions are chosen in training, `linucb` or `thompson`.
        n_steps: steps of each lane in a rollout.
        embeddings: (queries, D), those of the training queries: features are their principal components.
        rules: the actions whose mutator is a rule.
        seed: of all chance.
    """

    policy: BanditPolicy  # type: ignore[assignment] # SB3 names the policy that PPO has

    def __init__(
        self,
        env: VecEnv,
        how: Explore,
        *,
        n_steps: int,
        embeddings: NDArray[np.float32],
        rules: Sequence[int] = (),
        seed: int | None = None,
    ) -> None:
        self.how = how
        super().__init__(
            BanditPolicy,  # type: ignore[arg-type] # SB3 names the policy that PPO has
            env,
            learning_rate=0.0,
            n_steps=n_steps,
            gamma=1.0,
            gae_lambda=1.0,
            ent_coef=0.0,
            vf_coef=0.0,
            max_grad_norm=0.0,
            use_sde=False,
            sde_sample_freq=-1,
            policy_kwargs={"rules": tuple(rules)},
            seed=seed,
            device="cpu",
        )
        self.policy.model.fit_components(embeddings)

    def choose(self, observations: NDArray[Any], lanes: Sequence[int], rows: Sequence[int]) -> Choice:
        """The next actions of N lanes; their log probabilities are 0, for there are none to learn from."""
        seed = self.rollout_buffer.seed
        actions = explore(self.policy.model, self.how, observations, seed=seed, lanes=lanes, rows=rows)
        nothing = np.zeros(len(actions), np.float32)
        return Choice(actions, nothing, nothing)

    def greedy(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """The mutators that are expected to earn most (N,)."""
        (means, _) = in_blocks(lambda block: self.policy.model.expect(_tensor(block)), observations)
        return np.asarray(np.argmax(means, axis=1))

    def values(self, observations: NDArray[Any], lanes: Sequence[int] | None = None) -> NDArray[np.float32]:  # noqa: ARG002 - MaskedRollouts'
        """Nothing: a bandit looks at the next step alone."""
        return np.zeros(len(observations), np.float32)

    def bootstrap(self, dones: NDArray[np.bool_], infos: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:  # noqa: ARG002 - MaskedRollouts'
        """What counts to the rewards (N,): credit for partial refusals."""
        return np.array([credit(info) for info in infos], np.float32)

    def update(self) -> None:
        """Learn from the scored rows of the rollout."""
        buffer = self.rollout_buffer
        scored = buffer.scored
        self.policy.model.learn(
            torch.from_numpy(buffer.observations[scored]),
            torch.from_numpy(buffer.actions[scored][:, 0].astype(np.int64)),
            torch.from_numpy(buffer.rewards[scored]),
        )
        self._n_updates += 1
        deviations = self.policy.model.expect(torch.from_numpy(buffer.observations[scored])).deviations
        self.logger.record("bandit/deviation", float(deviations.mean()))


class LaneBandit(LaneRollouts, MaskedBandit):
    """MaskedBandit that collects as `LaneRollouts` does."""


def explore(
    model: LinearBandit,
    how: Explore,
    observations: NDArray[Any],
    *,
    seed: int,
    lanes: Sequence[int],
    rows: Sequence[int],
) -> NDArray[np.int64]:
    """The next actions (N,) of N lanes in training.

    Args:
        model: what is known.
        how: `linucb` takes the mutator with the highest mean plus `ALPHAS` standard deviations (Li et al.
            2010), `thompson` the highest draw, each mutator's from its own normal distribution (Agrawal and
            Goyal 2013, arXiv 1209.3352).
        observations: (N, size), what the lanes show.
        seed: of the draws, which are keyed (seed, lane, row).
        lanes: the N lanes, all different.
        rows: how many actions each of them took before.
    """
    means, deviations = in_blocks(lambda block: model.expect(_tensor(block)), observations, lanes)
    if how == "thompson":
        streams = action_streams(seed, lanes, rows)
        bonus = np.array([stream.standard_normal(model.num_actions) for stream in streams])
    else:
        bonus = np.array([[ALPHAS[lane % len(ALPHAS)]] for lane in lanes])
    chosen: NDArray[np.int64] = (means + deviations * bonus).argmax(axis=1)
    return chosen


def _tensor(block: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(block).clone()  # in torch's own memory: its alignment can change bits
