"""Rollouts that depend on the seed alone: collected from lanes, in rows of which some did not happen."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from train.rollout_buffer import MaskedRolloutBuffer

BLOCK_ROWS = 16
"""Rows of every forward pass that chooses actions."""

log = logging.getLogger(__name__)


class Choice(NamedTuple):
    """What the policy chose for N lanes."""

    actions: NDArray[np.int64]
    """(N,)"""
    values: NDArray[np.float32]
    """(N,), the values of the observations acted on."""
    log_probs: NDArray[np.float32]
    """(N,), the log probabilities of the actions."""


def in_blocks(
    forward: Callable[[NDArray[Any]], Sequence[torch.Tensor]],
    observations: NDArray[Any],
    lanes: Sequence[int] | None = None,
) -> tuple[NDArray[Any], ...]:
    """What a network makes of N observations: its outputs, each with N rows.

    It runs in blocks of 16 rows, lane i in row i mod 16 of block i // 16, and rows without a lane are zero. A
    matrix product of one shape gives a row the same bits whatever the other rows hold, so a lane's results do
    not depend on which other lanes are asked about, or what those show.

    Args:
        forward: from observations (16, ...) to outputs of 16 rows each.
        observations: (N, ...), as the environments give them.
        lanes: the N lanes they come from, all different; None: 0 to N - 1.
    """
    places = np.arange(len(observations)) if lanes is None else np.asarray(lanes, np.int64)
    numbers, which = np.unique(places // BLOCK_ROWS, return_inverse=True)
    blocks = np.zeros((max(1, len(numbers)), BLOCK_ROWS, *observations.shape[1:]), observations.dtype)
    blocks[which, places % BLOCK_ROWS] = observations
    with torch.no_grad():
        outputs = zip(*(forward(block) for block in blocks), strict=True)
        return tuple(torch.stack(rows).cpu().numpy()[which, places % BLOCK_ROWS] for rows in outputs)


def scored_lanes(dones: NDArray[np.bool_], infos: Sequence[Mapping[str, Any]]) -> NDArray[np.bool_]:
    """Which lanes (N,) took a step that counts: all but those whose info has `unscored` True.

    Raises:
        ValueError: a lane ended its episode with an unscored step, which did not happen.
    """
    scored = np.array([not info.get("unscored", False) for info in infos], np.bool_)
    if (dones & ~scored).any():
        raise ValueError(
            f"lanes {np.flatnonzero(dones & ~scored).tolist()} ended their episode with an unscored step; "
            "expected the same observation again: a step limit must not count unscored steps"
        )
    return scored


class MaskedRollouts(OnPolicyAlgorithm):
    """An on-policy algorithm of Stable-Baselines3 for steps that may turn out not to have happened.

    A row whose info has `unscored` True is masked in the `MaskedRolloutBuffer`: nothing is learned from it.
    An update without scored rows is skipped; `train/skipped_updates` counts them. Without a seed one is drawn
    and kept in `seed`. Whoever inherits says how actions are chosen and what an update is.

    Raises:
        TypeError: the actions are not `Discrete`, or the observations are a dict.
    """

    rollout_buffer: MaskedRolloutBuffer
    actions_per_lane: int = 0
    """Actions each lane has taken since the model was made; `learn` never resets it."""
    rollouts: int = 0
    """Complete rollouts since the model was made."""
    skipped_updates: int = 0
    """Updates skipped because no row was scored."""
    log_every: int = 1
    """Of the log entries that `learn(log_interval=)` asks for, only those after each `log_every`-th rollout
    since the model was made are written: resumed or not, a run has the same entries."""
    _entry_due: bool = False

    @abstractmethod
    def choose(self, observations: NDArray[Any], lanes: Sequence[int], rows: Sequence[int]) -> Choice:
        """Choose the next actions of N lanes.

        Args:
            observations: (N, ...), what the lanes show.
            lanes: the N lanes, all different.
            rows: how many actions each of them took before (counted like `actions_per_lane`).
        """

    @abstractmethod
    def greedy(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """The actions (N,), counted from 0, that the policy takes at use, for observations (N, ...)."""

    @abstractmethod
    def values(self, observations: NDArray[Any], lanes: Sequence[int] | None = None) -> NDArray[np.float32]:
        """What is still to be earned (N,) from what N lanes show; see `in_blocks`."""

    @abstractmethod
    def update(self) -> None:
        """Learn from the rollout buffer, which has scored rows."""

    @property
    def first_action(self) -> int:
        """The environment's action that the policy counts as 0."""
        return int(self.action_space.start)  # type: ignore[attr-defined] # Discrete

    def act(self, env: VecEnv, shown: NDArray[Any], rows_left: int) -> Choice:  # noqa: ARG002 - for those who look ahead
        """Choose the next action of every lane, which `env.step` is to take.

        Args:
            env: the environment, with all its wrappers.
            shown: (n_envs, ...), what the lanes show.
            rows_left: how many rows the rollout still has, this one included.
        """
        return self.choose(shown, range(env.num_envs), [self.actions_per_lane] * env.num_envs)

    def bootstrap(self, dones: NDArray[np.bool_], infos: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """What counts to the rewards (N,): gamma * V(terminal observation) of truncated episodes, else 0."""
        cut = [i for i, info in enumerate(infos) if dones[i] and info.get("TimeLimit.truncated", False)]
        worth = np.zeros(len(dones), np.float32)
        if cut:
            last = np.stack([infos[i]["terminal_observation"] for i in cut])
            worth[cut] = self.gamma * self.values(last, cut)
        return worth

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """Fill the buffer with `n_rollout_steps` rows of all lanes; False if a callback stopped it.

        Raises:
            ValueError: a lane ended its episode with an unscored step.
            TypeError: the buffer has no mask.
        """
        buffer = _masked(rollout_buffer)
        buffer.reset(self.rollouts)
        callback.on_rollout_start()
        for n_steps in range(n_rollout_steps):  # SB3's callbacks look it up in the locals
            shown, starts = np.asarray(self._last_obs), np.asarray(self._last_episode_starts)
            actions, values, log_probs = self.act(env, shown, n_rollout_steps - n_steps)
            new_obs, rewards, dones, infos = env.step(actions + self.first_action)
            self.actions_per_lane += 1
            self.num_timesteps += env.num_envs
            scored = scored_lanes(dones, infos)
            callback.update_locals(locals())
            if not callback.on_step():
                return False
            self._update_info_buffer(infos, dones)
            worth = rewards + self.bootstrap(dones, infos)
            record = torch.from_numpy(values), torch.from_numpy(log_probs)
            buffer.add(shown, actions, worth, starts, *record, scored)
            self._last_obs = np.asarray(new_obs)
            self._last_episode_starts = np.where(scored, dones, starts)
        self._finish_rollout(buffer)
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def predict(self, *args: Any, **kwargs: Any) -> tuple[NDArray[Any], tuple[NDArray[Any], ...] | None]:  # noqa: ANN401 - SB3's
        """SB3's, with the environment's actions where they do not start at 0."""
        actions, state = super().predict(*args, **kwargs)
        return (np.asarray(actions + self.first_action) if self.first_action else actions), state

    def dump_logs(self, iteration: int = 0) -> None:  # noqa: ARG002 - SB3's signature
        """Note that `learn` wants an entry: SB3 would write it before the update that belongs to it."""
        self._entry_due = True

    def train(self) -> None:
        """Update on the scored rows; skipped, and said so, where there are none. Then the log entry."""
        if self.rollout_buffer.scored.any():
            self.update()
        else:
            self.skipped_updates += 1
            log.warning("rollout %d has no scored row: its update is skipped", self.rollouts)
        self.logger.record("train/skipped_updates", self.skipped_updates)
        if self._entry_due and self.rollouts % self.log_every == 0:
            super().dump_logs(self.rollouts)
        self._entry_due = False

    def _finish_rollout(self, buffer: MaskedRolloutBuffer) -> None:
        """Advantages of a full buffer, from the value of what each lane shows now."""
        last_values = self.values(np.asarray(self._last_obs))
        starts = np.asarray(self._last_episode_starts)
        buffer.compute_returns_and_advantage(torch.from_numpy(last_values), starts)
        self.rollouts += 1

    def _setup_model(self) -> None:
        self._check_spaces()
        if self.seed is None:
            self.seed = int(np.random.SeedSequence().generate_state(1)[0])
        self.rollout_buffer_class = self.rollout_buffer_class or MaskedRolloutBuffer
        self.rollout_buffer_kwargs = {**self.rollout_buffer_kwargs, "seed": self.seed}
        super()._setup_model()

    def _check_spaces(self) -> None:
        actions = self.action_space
        if not isinstance(actions, spaces.Discrete):
            raise TypeError(f"the action space is {actions}; expected Discrete actions")
        if isinstance(self.observation_space, spaces.Dict):
            raise TypeError(f"the observation space is {self.observation_space}; expected a Box: flatten it")


def _masked(buffer: RolloutBuffer) -> MaskedRolloutBuffer:
    if not isinstance(buffer, MaskedRolloutBuffer):
        raise TypeError(f"the rollout buffer is a {type(buffer).__name__}; expected a MaskedRolloutBuffer")
    return buffer
