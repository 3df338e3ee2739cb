"""The learner: MaskedPPO on the vector environment, its checkpoints, and how many steps it takes."""

from __future__ import annotations

from math import ceil

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HParam

from envs.batched import BatchedQueryMutationEnv
from envs.sb3 import GymnasiumVecEnv
from train.config import TrainConfig
from train.ppo import MaskedPPO, weights_sha256
from train.recorder import Recorder, make_logger
from train.run_folder import RunFolder, replacing
from train.settings import resolved

HIDDEN = (64, 64)
LANE_STREAM = 2
"""Keeps the lanes' seeds apart from the other streams of the seed (see `train.ppo.NOISE_STREAM`)."""


class Learner:
    """A policy in training, and the folder it is saved in."""

    def __init__(self, config: TrainConfig, model: MaskedPPO, folder: RunFolder) -> None:
        self.config = config
        self.model = model
        self.folder = folder
        rollout = config.num_steps * config.num_processes
        self.total_steps = ceil(config.num_env_steps / rollout) * rollout

    def learn(self, recorder: Recorder, *callbacks: BaseCallback) -> None:
        """Train to `total_steps`, recording, logging and saving on the way."""
        numbers = {k: v for k, v in resolved(self.config).items() if isinstance(v, bool | int | float | str)}
        metrics = {"outcome/success_rate": 0.0, "rollout/return": 0.0}
        self.model.logger.record("hparams", HParam(numbers, metrics), exclude="jsonl")
        self.model.learn(
            self.total_steps,
            callback=[Checkpoints(self), recorder, *callbacks],
            log_interval=self.config.log_interval,
        )
        self.model.logger.dump(self.model.num_timesteps)

    def save(self, name: str) -> None:
        """Write the policy whole or not at all, under `name` in the run folder."""
        with replacing(self.folder.path / name) as part:
            self.model.save(part)

    def weights_sha256(self) -> str:
        """A hash of the policy's weights."""
        return weights_sha256(self.model.policy)


class Checkpoints(BaseCallback):
    """Saves the policy after every `save_interval`-th update."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.learner = learner

    def _on_rollout_start(self) -> None:
        updates = self.learner.model.rollouts
        if updates and updates % self.learner.config.save_interval == 0:
            self.learner.save(f"checkpoints/policy-{self.num_timesteps}.zip")

    def _on_step(self) -> bool:
        return True


def make_learner(config: TrainConfig, env: BatchedQueryMutationEnv, folder: RunFolder) -> Learner:
    """A new policy for `env`; every stream of chance in it is keyed by `config.seed`."""
    bridge = GymnasiumVecEnv(env)
    model = MaskedPPO(
        "MlpPolicy",
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
        policy_kwargs={"net_arch": list(HIDDEN)},
        device="cpu",  # two layers of 64: a GPU would only wait
    )
    bridge.seed_lanes(lane_seeds(config.seed, config.num_processes))  # after PPO, which seeds it too
    model.set_logger(make_logger(folder))
    return Learner(config, model, folder)


def lane_seeds(seed: int, lanes: int) -> list[int]:
    """One seed per lane; runs with neighbouring seeds share none (seed + lane would)."""
    keys = [np.random.SeedSequence(seed, spawn_key=(LANE_STREAM, lane)) for lane in range(lanes)]
    return [int(key.generate_state(1)[0]) for key in keys]
