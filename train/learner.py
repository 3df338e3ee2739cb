"""The learner: MaskedPPO on the vector environment, and what it saves.

The actor and critic of `mutagym train`: an MLP, ways around it, much of the embedding hidden.

There are a few hundred training queries, so a plain MLP learns each by heart, and for a query that it has not
seen it has no second choice. Against that:

- Dropout hides most of the embedding in updates (Srivastava et al., JMLR 15, 2014). Actions are chosen with
  all of it.
- The logits are linear in the observation, plus what the MLP adds to that.
- What was done with a mutator adds to its own logit by weights that all mutators share, so what a repetition
  is worth is learned once and not for each.
- The embedding is scaled down and the episode's history up: Adam moves every weight at about one pace, and
  the query speaks through hundreds of entries, the history through a few.

The state of a run between two rollouts, in one file: whole, or that of the rollout before.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HParam
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from envs.batched import BatchedQueryMutationEnv
from envs.observation import observation_size
from envs.sb3 import GymnasiumVecEnv
from records.errors import UserError
from records.run_folder import RunFolder, replacing
from records.settings import resolved
from train.config import TrainConfig
from train.lanes import LanePPO
from train.ppo import MaskedPPO, weights_sha256
from train.random_streams import Stream
from train.recorder import Recorder, make_logger

HIDDEN = 64
"""Units in each of the two layers of actor and critic."""
EMBEDDING_DROPOUT = 0.7
"""The share of the embedding's entries that an update does not see."""
EMBEDDING_SCALE = 0.35
HISTORY_SCALE = 8.0
OWN_SCALE = 20.0
"""What the shared weights are multiplied by, so that they learn in time."""
OWN_FLAGS = 3
"""Flags of each action at the head of the history: tried, left the query as it was, last."""


class QueryPolicy(ActorCriticPolicy):
    """The policy for observations of `envs/observation.py` and the mutators as actions."""

    action_net: nn.Module

    def _build_mlp_extractor(self) -> None:
        dimension = self.features_dim - observation_size(0, self._num_actions)
        self.mlp_extractor = Latents(self.features_dim, dimension)  # type: ignore[assignment] # what SB3 asks of one

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        self.action_net = Logits(self.action_net, observation_size(0, self._num_actions), self._num_actions)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg] # torch's optimizers have one

    @property
    def _num_actions(self) -> int:
        return int(self.action_space.n)  # type: ignore[attr-defined] # Discrete


class Latents(nn.Module):
    """From observations (N, size) to what the last layers of actor and critic see.

    Args:
        size: of an observation.
        dimension: of the embedding at its head.
    """

    def __init__(self, size: int, dimension: int) -> None:
        super().__init__()
        self.actor, self.critic = _layers(size), _layers(size)
        self.hide = nn.Dropout(EMBEDDING_DROPOUT)
        self.dimension = dimension
        self.latent_dim_pi = HIDDEN + size
        self.latent_dim_vf = HIDDEN

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both latents."""
        return self.forward_actor(observations), self.forward_critic(observations)

    def forward_actor(self, observations: torch.Tensor) -> torch.Tensor:
        """(N, HIDDEN + size): the MLP's output beside its input."""
        seen = self._seen(observations)
        return torch.cat([self.actor(seen), seen], dim=1)

    def forward_critic(self, observations: torch.Tensor) -> torch.Tensor:
        """(N, HIDDEN)."""
        hidden: torch.Tensor = self.critic(self._seen(observations))
        return hidden

    def _seen(self, observations: torch.Tensor) -> torch.Tensor:
        embedding, history = observations[:, : self.dimension], observations[:, self.dimension :]
        return torch.cat([self.hide(embedding * EMBEDDING_SCALE), history * HISTORY_SCALE], dim=1)


class Logits(nn.Module):
    """A linear layer, plus what each action's own flags say to it.

    Args:
        linear: from the latent to the logits.
        history: length of the history at the end of the latent; it begins with the flags.
        num_actions: A.
    """

    def __init__(self, linear: nn.Module, history: int, num_actions: int) -> None:
        super().__init__()
        self.linear = linear
        self.own = nn.Parameter(torch.zeros(OWN_FLAGS))
        self.history = history
        self.num_actions = num_actions

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        """The logits (N, A)."""
        history = latent[:, latent.shape[1] - self.history :] / HISTORY_SCALE
        flags = history[:, : OWN_FLAGS * self.num_actions].reshape(-1, OWN_FLAGS, self.num_actions)
        own = (self.own[:, None] * flags).sum(dim=1)
        logits: torch.Tensor = self.linear(latent) + OWN_SCALE * own
        return logits


def _layers(size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh())


FORMAT = 2
"""Goes up when an older program could not read the file, or the other way round."""
_HASH_BYTES = sha256().digest_size


def save_checkpoint(folder: RunFolder, learner: Mapping[str, Any], recorder: Mapping[str, Any]) -> None:
    """Write the state down, behind its SHA-256; the lines that it stands on are forced to the disk first.

    Args:
        folder: the run's.
        learner: `Learner.state()`.
        recorder: `Recorder.state()`.
    """
    transitions, metrics = folder.transitions, folder.metrics
    transitions.sync()
    metrics.sync()
    lines = {"transitions": transitions.count, "sha256": transitions.sha256, "metrics": metrics.count}
    content = io.BytesIO()
    torch.save({"format": FORMAT, "learner": learner, "recorder": recorder, "lines": lines}, content)
    with replacing(folder.checkpoint) as part:
        part.write_bytes(sha256(content.getvalue()).digest() + content.getvalue())


def load_checkpoint(folder: RunFolder) -> dict[str, Any] | None:
    """The state that was saved last; None for a run that ended before its first step.

    Nothing in the file is executed: it may hold tensors and plain data only.

    Raises:
        UserError: the file is damaged, or of another version of the program.
    """
    if not folder.checkpoint.exists():
        return None
    raw = folder.checkpoint.read_bytes()
    digest, content = raw[:_HASH_BYTES], raw[_HASH_BYTES:]
    damaged = f"{str(folder.checkpoint)!r} is damaged: the run cannot go on; begin a new one"
    if sha256(content).digest() != digest:
        raise UserError(damaged)
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
        version = state["format"]
    except (RuntimeError, TypeError, KeyError, pickle.UnpicklingError) as error:  # not a file of ours
        raise UserError(damaged) from error
    if version != FORMAT:
        raise UserError(
            f"{str(folder.checkpoint)!r} has format {version!r}, this program has {FORMAT}: "
            "go on with the version of mutagym that began the run"
        )
    return state


COUNTERS = ("num_timesteps", "rollouts", "actions_per_lane", "skipped_updates", "_n_updates")
"""Where the model is; with the seed they are all that its streams of chance need."""


class Learner:
    """A policy in training, and the folder it is saved in."""

    def __init__(
        self, config: TrainConfig, model: MaskedPPO, env: BatchedQueryMutationEnv, folder: RunFolder
    ) -> None:
        self.config = config
        self.model = model
        self.env = env
        self.folder = folder

    def learn(self, recorder: Recorder, *callbacks: BaseCallback) -> None:
        """Train to the config's `total_steps`, recording, logging and saving on the way."""
        model, done = self.model, self.model.num_timesteps
        if not done:
            numbers = {
                k: v for k, v in resolved(self.config).items() if isinstance(v, bool | int | float | str)
            }
            metrics = {"outcome/success_rate": 0.0, "rollout/return": 0.0}
            model.logger.record("hparams", HParam(numbers, metrics), exclude="jsonl")
        checkpoints = Checkpoints(self, recorder)
        with torch.enable_grad():  # Ctrl-C in a no_grad() that has just begun would switch it off for good
            model.learn(
                self.config.total_steps - done,
                callback=[checkpoints, recorder, *callbacks],
                reset_num_timesteps=False,
            )
        checkpoints.save_state()

    def save(self, name: str) -> None:
        """Write the policy whole or not at all, under `name` in the run folder."""
        with replacing(self.folder.path / name) as part:
            self.model.save(part)

    def state(self) -> dict[str, Any]:
        """All that the learner is between two rollouts: tensors and plain data."""
        model = self.model
        to_log = model.logger.name_to_value.items()
        return {
            "policy": model.policy.state_dict(),
            "optimizer": model.policy.optimizer.state_dict(),
            "counters": {name: getattr(model, name) for name in COUNTERS},
            "episode_starts": [bool(start) for start in np.asarray(model._last_episode_starts)],  # noqa: SLF001 - SB3's
            "lanes": self.env.state(),
            "to_log": {k: float(v) for k, v in to_log if np.isscalar(v) and not isinstance(v, str)},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another process stopped.

        Raises:
            OllamaError: a query of a lane could not be embedded.
        """
        model = self.model
        model.policy.load_state_dict(state["policy"])
        model.policy.optimizer.load_state_dict(state["optimizer"])
        for name, value in state["counters"].items():
            setattr(model, name, value)
        model._last_obs = self.env.restore(state["lanes"])  # noqa: SLF001 - SB3's
        model._last_episode_starts = np.array(state["episode_starts"])  # noqa: SLF001 - SB3's
        for name, value in state["to_log"].items():
            model.logger.record(name, value)

    def weights_sha256(self) -> str:
        """A hash of the policy's weights."""
        return weights_sha256(self.model.policy)


class Checkpoints(BaseCallback):
    """Saves the state of the run after every update, and the policy after every `save_interval`-th."""

    def __init__(self, learner: Learner, recorder: Recorder) -> None:
        super().__init__()
        self.learner = learner
        self.recorder = recorder

    def save_state(self) -> None:
        """Write down all that a resumed run needs; between two rollouts alone."""
        save_checkpoint(self.learner.folder, self.learner.state(), self.recorder.state())

    def _on_rollout_start(self) -> None:
        self.save_state()
        updates = self.learner.model.rollouts
        if updates and updates % self.learner.config.save_interval == 0:
            self.learner.save(f"checkpoints/policy-{self.num_timesteps}.zip")

    def _on_step(self) -> bool:
        return True


def make_learner(
    config: TrainConfig, env: BatchedQueryMutationEnv, folder: RunFolder, *, done_steps: int = 0
) -> Learner:
    """A new policy for `env`; every stream of chance in it is keyed by `config.seed`.

    `done_steps` is what a run that is resumed has behind it; `Learner.restore` is to follow.
    """
    bridge = GymnasiumVecEnv(env)
    collects = LanePPO if config.driven_by == "lanes" else MaskedPPO
    model = collects(
        QueryPolicy,
        bridge,
        learning_rate=config.lr,
        n_steps=config.num_steps,
        batch_size=config.num_steps * config.num_processes // config.num_mini_batch,
        n_epochs=config.ppo_epoch,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip_param,
        ent_coef=config.entropy_coef,
        vf_coef=config.value_loss_coef,
        max_grad_norm=config.max_grad_norm,
        seed=config.seed,
        device="cpu",  # two layers of 64: a GPU would only wait
    )
    bridge.seed_lanes(lane_seeds(config.seed, config.num_processes))  # after PPO, which seeds it too
    model.log_every = config.log_interval
    model.set_logger(make_logger(folder, done_steps))
    return Learner(config, model, env, folder)


def lane_seeds(seed: int, lanes: int) -> list[int]:
    """One seed per lane; runs with neighbouring seeds share none (seed + lane would)."""
    keys = [np.random.SeedSequence(seed, spawn_key=(Stream.LANE, lane)) for lane in range(lanes)]
    return [int(key.generate_state(1)[0]) for key in keys]
