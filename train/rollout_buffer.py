"""A rollout buffer in which unscored rows did not happen."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import RolloutBufferSamples

from train.random_streams import Stream


class MaskedRolloutBuffer(RolloutBuffer):
    """SB3's rollout buffer with a mask `scored` of shape (n_steps, n_envs), bool.

    An unscored row is as if it never happened: advantages are carried over it from the row behind it to the
    row before it, and `get` leaves it out. With every row scored the advantages and returns are SB3's.

    `episode_starts` is SB3's: 1 where the row's observation is the first of an episode. An unscored row
    cannot end an episode, so it may pass the flag on to the row behind it or keep it; both mean the same.

    Shuffles have their own stream, keyed (seed, update, epoch): nothing depends on numpy's global state.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        gae_lambda: float = 1,
        gamma: float = 0.99,
        n_envs: int = 1,
        *,
        seed: int = 0,
    ) -> None:
        self.seed = seed
        self.update = -1
        super().__init__(buffer_size, observation_space, action_space, device, gae_lambda, gamma, n_envs)

    def reset(self, update: int | None = None) -> None:
        """Empty the buffer for another rollout.

        Args:
            update: the number of the update this rollout is for, which keys its shuffles; None: the next.
        """
        super().reset()
        self.scored = np.zeros((self.buffer_size, self.n_envs), np.bool_)
        self.update = self.update + 1 if update is None else update
        self.epoch = 0

    def add(
        self,
        obs: NDArray[Any],
        action: NDArray[Any],
        reward: NDArray[np.float32],
        episode_start: NDArray[Any],
        value: torch.Tensor,
        log_prob: torch.Tensor,
        scored: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add one row of all lanes; every argument has n_envs entries. `scored` None: all of them."""
        self.scored[self.pos] = True if scored is None else scored
        super().add(obs, action, reward, episode_start, value, log_prob)

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[np.bool_]) -> None:
        """Fill in advantages by GAE(lambda) (arXiv 1506.02438) and returns = advantages + values.

        Unscored rows get advantage 0.

        Args:
            last_values: the values (n_envs,) of the observations that follow the last row.
            dones: (n_envs,), whether those observations are the first of an episode.
        """
        value = last_values.clone().cpu().numpy().flatten()
        goes_on = 1.0 - dones.astype(np.float32)  # 0 where the episode ends before what follows
        advantage = np.zeros(self.n_envs, np.float32)
        for step in reversed(range(self.buffer_size)):
            scored = self.scored[step]
            starts_later = 1.0 - self.episode_starts[step]
            delta = self.rewards[step] + self.gamma * value * goes_on - self.values[step]
            joined = delta + self.gamma * self.gae_lambda * goes_on * advantage
            self.advantages[step] = np.where(scored, joined, 0)
            advantage = np.where(scored, joined, advantage)
            value = np.where(scored, self.values[step], value)
            goes_on = np.where(scored, starts_later, np.minimum(goes_on, starts_later))
        self.returns = self.advantages + self.values

    def get(self, batch_size: int | None = None) -> Generator[RolloutBufferSamples, None, None]:
        """One epoch: every scored row once, in shuffled minibatches.

        With every row scored the minibatches have SB3's sizes: what does not fill the last one leaves it
        shorter. With rows masked out they are dealt evenly, so that a failed call never leaves a minibatch of
        a single row.
        Afterwards `values`, `returns` and the other arrays hold the scored rows alone, flat, as SB3's
        explained variance expects.

        Args:
            batch_size: the most rows in a minibatch; None: all rows in one.

        Raises:
            ValueError: the buffer is not full.
        """
        if not self.full:
            raise ValueError(f"the buffer has {self.pos} of {self.buffer_size} rows; fill it before get()")
        self._keep_scored()
        count = len(self.advantages)
        key = (Stream.SHUFFLE, self.update, self.epoch)
        stream = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))
        self.epoch += 1
        if not count:
            return
        most = batch_size or count
        complete = count == self.buffer_size * self.n_envs
        starts = list(range(most, count, most))
        for rows in np.array_split(stream.permutation(count), starts if complete else len(starts) + 1):
            yield self._get_samples(rows)

    def _keep_scored(self) -> None:
        """Flatten the arrays, lane after lane, and drop the unscored rows; done once a rollout."""
        if self.generator_ready:
            return
        scored = self.swap_and_flatten(self.scored)[:, 0]
        for name in ("observations", "actions", "values", "log_probs", "advantages", "returns"):
            setattr(self, name, self.swap_and_flatten(getattr(self, name))[scored])
        self.generator_ready = True
