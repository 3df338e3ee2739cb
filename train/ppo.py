"""PPO whose runs depend on the seed alone: not on who else is in a batch, nor on rows that did not happen."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv

from train.random_streams import Stream
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


def predict_blocks(
    policy: ActorCriticPolicy, observations: NDArray[Any], lanes: Sequence[int] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Values (N,) and normalised logits (N, actions) of N observations, for a policy over discrete actions.

    The policy runs in blocks of 16 rows, lane i in row i mod 16 of block i // 16, and rows without a lane are
    zero. A matrix product of one shape gives a row the same bits whatever the other rows hold, so a lane's
    results do not depend on which other lanes are asked about, or what those show.

    The policy is left in evaluation mode.

    Args:
        policy: the policy.
        observations: (N, ...), as the environments give them.
        lanes: the N lanes they come from, all different; None: 0 to N - 1.
    """
    policy.set_training_mode(False)
    places = np.arange(len(observations)) if lanes is None else np.asarray(lanes, np.int64)
    rows = (places.max(initial=-1) // BLOCK_ROWS + 1) * BLOCK_ROWS
    padded = np.zeros((rows, *observations.shape[1:]), observations.dtype)
    padded[places] = observations
    values = np.zeros(rows, np.float32)
    logits = np.zeros((rows, int(policy.action_space.n)), np.float32)  # type: ignore[attr-defined] # Discrete
    for start in np.unique(places // BLOCK_ROWS) * BLOCK_ROWS:
        block = slice(start, start + BLOCK_ROWS)
        values[block], logits[block] = _forward(policy, padded[block])
    return values[places], logits[places]


def action_noise(
    seed: int, lanes: Sequence[int], rows: Sequence[int], num_actions: int
) -> NDArray[np.float64]:
    """Standard Gumbel noise (N, num_actions) for the next actions of N lanes, which took `rows` (N,) before.

    Each lane has a stream of its own, keyed (seed, lane, row): counters are all that a resumed run needs.
    """
    keys = [(Stream.NOISE, lane, row) for lane, row in zip(lanes, rows, strict=True)]
    streams = [np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key)) for key in keys]
    return np.array([stream.gumbel(size=num_actions) for stream in streams])


def weights_sha256(policy: torch.nn.Module) -> str:
    """A hash of the weights: names in sorted order, each with dtype, shape and bytes."""
    digest = hashlib.sha256()
    for name, weight in sorted(policy.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


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


class MaskedPPO(PPO):
    """Stable-Baselines3's PPO for steps that may turn out not to have happened.

    - A row whose info has `unscored` True is masked in the `MaskedRolloutBuffer`: out of the advantages and
      of the loss. An update without scored rows is skipped; `train/skipped_updates` counts them.
    - Actions are argmax(logits + Gumbel noise), the noise keyed (seed, lane, row): see `action_noise`.
    - Inference runs in fixed blocks: see `predict_blocks`.
    - What the network draws in an update, as dropout does, is keyed (seed, update).

    So a run depends on the seed and on what the environments answer, and on nothing else. Without a seed one
    is drawn and kept in `seed`. The loss and its options are SB3's own.

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

    @property
    def first_action(self) -> int:
        """The environment's action that the policy counts as 0."""
        return int(self.action_space.start)  # type: ignore[attr-defined] # Discrete

    def choose(self, observations: NDArray[Any], lanes: Sequence[int], rows: Sequence[int]) -> Choice:
        """Choose the next actions of N lanes.

        Args:
            observations: (N, ...), what the lanes show.
            lanes: the N lanes, all different.
            rows: how many actions each of them took before (counted like `actions_per_lane`).
        """
        values, logits = predict_blocks(self.policy, observations, lanes)
        noise = action_noise(self.rollout_buffer.seed, lanes, rows, logits.shape[1])
        actions = np.argmax(logits + noise, axis=1)
        return Choice(actions, values, logits[np.arange(len(actions)), actions])

    def greedy(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """The likeliest actions (N,) for observations (N, ...), counted from 0."""
        _, logits = predict_blocks(self.policy, observations)
        return np.asarray(np.argmax(logits, axis=1))

    def act(self, env: VecEnv, shown: NDArray[Any], rows_left: int) -> Choice:  # noqa: ARG002 - for those who look ahead
        """Choose the next action of every lane, which `env.step` is to take.

        Args:
            env: the environment, with all its wrappers.
            shown: (n_envs, ...), what the lanes show.
            rows_left: how many rows the rollout still has, this one included.
        """
        return self.choose(shown, range(env.num_envs), [self.actions_per_lane] * env.num_envs)

    def bootstrap(self, dones: NDArray[np.bool_], infos: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """What truncated episodes (N,) would still have earned: gamma * V(terminal observation), else 0."""
        cut = [i for i, info in enumerate(infos) if dones[i] and info.get("TimeLimit.truncated", False)]
        worth = np.zeros(len(dones), np.float32)
        if cut:
            last = np.stack([infos[i]["terminal_observation"] for i in cut])
            worth[cut] = self.gamma * predict_blocks(self.policy, last, cut)[0]
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
        """SB3's update on the scored rows; skipped, and said so, where there are none. Then the log entry."""
        if self.rollout_buffer.scored.any():
            key = np.random.SeedSequence(self.rollout_buffer.seed, spawn_key=(Stream.DROPOUT, self.rollouts))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(key.generate_state(1)[0]))
                super().train()
        else:
            self.skipped_updates += 1
            log.warning("rollout %d has no scored row: its update is skipped", self.rollouts)
        self.logger.record("train/skipped_updates", self.skipped_updates)
        if self._entry_due and self.rollouts % self.log_every == 0:
            super().dump_logs(self.rollouts)
        self._entry_due = False

    def _finish_rollout(self, buffer: MaskedRolloutBuffer) -> None:
        """Advantages of a full buffer, from the value of what each lane shows now."""
        last_values, _ = predict_blocks(self.policy, np.asarray(self._last_obs))
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


def _forward(policy: ActorCriticPolicy, block: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values (16,) and normalised logits (16, actions) of one block."""
    shared, _ = policy.obs_to_tensor(block)
    # A copy in torch's own memory: how an array happens to be aligned can change the bits of a product.
    observations = shared.clone()  # type: ignore[union-attr] # no dict: MaskedPPO refuses those
    with torch.no_grad():
        values = policy.predict_values(observations).flatten()
        distribution = policy.get_distribution(observations).distribution
        logits = distribution.logits  # type: ignore[union-attr] # a Categorical: the actions are Discrete
    return values.cpu().numpy(), logits.cpu().numpy()


def _masked(buffer: RolloutBuffer) -> MaskedRolloutBuffer:
    if not isinstance(buffer, MaskedRolloutBuffer):
        raise TypeError(f"the rollout buffer is a {type(buffer).__name__}; expected a MaskedRolloutBuffer")
    return buffer
