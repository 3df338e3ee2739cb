"""The learner: PPO or a bandit on the vector environment, the policies it saves, and its checkpoint.

Under `auto` a bandit learns first. Then a network is fitted to what it learned, and PPO goes on with that, on
the same lanes, in the middle of their episodes.

The checkpoint is the state of a run between two rollouts, in one file: whole, or that of the rollout before.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HParam, Logger

from envs.batched import BatchedQueryMutationEnv
from envs.sb3 import GymnasiumVecEnv
from ollama_utils.batching import batch_encode_queries
from records.errors import UserError
from records.outputs import replacing
from records.run_folder import RecordedRun, RunFolder
from records.settings import resolved
from train.actor_critic import QueryPolicy
from train.bandit import BanditPolicy, LaneBandit, MaskedBandit
from train.board import layout
from train.config import TrainConfig
from train.kept import Looks, SettledError
from train.lanes import LanePPO
from train.linear_bandit import rule_actions
from train.policy_file import save_weights
from train.ppo import MaskedPPO, weights_sha256
from train.random_streams import GLOBAL_RNG_LOCK, Stream
from train.recorder import Recorder, make_logger
from train.rollouts import MaskedRollouts
from train.warm_start import LEARNING_RATE_SHARE, fit_to_bandit

FORMAT = 2
"""Goes up when an older program could not read the file, or the other way round."""
MOST_BYTES = 2**30
"""Bytes of a checkpoint that is read: a policy on the longest embeddings takes a tenth of it."""
_HASH_BYTES = sha256().digest_size
COUNTERS = ("num_timesteps", "rollouts", "actions_per_lane", "skipped_updates", "_n_updates")
"""Where the model is; with the seed they are all that its streams of chance need."""


def save_checkpoint(folder: RunFolder, learner: Mapping[str, Any], recorder: Mapping[str, Any]) -> None:
    """Save the state behind its SHA-256; the lines that it is based on are forced to the disk first.

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


def load_checkpoint(folder: RecordedRun) -> dict[str, Any] | None:
    """The state that was saved last; None for a run that ended before its first step.

    Nothing in the file is executed: with anything but tensors and plain data it is refused.

    Raises:
        UserError: the file is damaged, or of another version of the program.
    """
    if not folder.checkpoint.exists():
        return None
    damaged = f"{str(folder.checkpoint)!r} is damaged: the run cannot go on; begin a new one"
    try:
        if folder.checkpoint.stat().st_size > MOST_BYTES:
            raise ValueError(f"it is over {MOST_BYTES} bytes")  # noqa: TRY301 - said as the others are
        raw = folder.checkpoint.read_bytes()
        digest, content = raw[:_HASH_BYTES], raw[_HASH_BYTES:]
        _check_bytes(content, digest)
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        version = state["format"]
    except OSError:
        raise
    except Exception as error:  # not a file of ours: whatever its reader stumbles on
        raise UserError(damaged) from error
    if type(version) is not int or version != FORMAT:
        raise UserError(
            f"{str(folder.checkpoint)!r} has format {version!r:.60}, this program has {FORMAT}: "
            "go on with the version of mutagym that began the run"
        )
    if not _is_state(state):
        raise UserError(damaged)
    return state


def _check_bytes(content: bytes, digest: bytes) -> None:
    """Check that these are the bytes that were written, and that they are as many when they are unpacked.

    Raises:
        ValueError: they are not.
        zipfile.BadZipFile: this is no file that torch writes.
    """
    if sha256(content).digest() != digest:
        raise ValueError("its hash is another")
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        if any(item.compress_type != zipfile.ZIP_STORED for item in file.infolist()):
            raise ValueError("it is compressed")


def _is_state(state: Mapping[str, Any]) -> bool:
    """Whether this has the form of a checkpoint's; what does not fit the run is found when it is put back."""
    try:
        lines, counters, recorder = state["lines"], state["learner"]["counters"], state["recorder"]
        counts = [lines["transitions"], lines["metrics"], *counters.values(), recorder["rows"]]
        return (
            set(lines) == {"transitions", "sha256", "metrics"}
            and isinstance(lines["sha256"], str)
            and set(counters) == set(COUNTERS)
            and all(type(count) is int and 0 <= count < 2**63 for count in counts)
            and isinstance(recorder["wall_s"], float)
            and math.isfinite(recorder["wall_s"])
        )
    except (AttributeError, LookupError, TypeError):
        return False


class Learner:
    """A policy in training, and the folder it is saved in."""

    def __init__(
        self,
        config: TrainConfig,
        bridge: GymnasiumVecEnv,
        folder: RunFolder,
        logger: Logger,
        *,
        by_bandit: bool,
    ) -> None:
        self.config = config
        self.bridge = bridge
        self.folder = folder
        self.logger = logger
        self.looks: Looks | None = None
        """Those at the kept queries; None where none are kept."""
        self.model: MaskedRollouts = self._bandit() if by_bandit else self._ppo()

    @property
    def env(self) -> BatchedQueryMutationEnv:
        """The vector environment."""
        return cast("BatchedQueryMutationEnv", self.bridge.vector_env)

    def learn(self, recorder: Recorder, *callbacks: BaseCallback) -> None:
        """Train to the config's `total_steps`, or until that is settled, recording, logging and saving."""
        model, done = self.model, self.model.num_timesteps
        if not done:
            numbers = {
                k: v for k, v in resolved(self.config).items() if isinstance(v, bool | int | float | str)
            }
            metrics = {"rollout/success_rate": 0.0, "rollout/ep_rew_mean": 0.0}
            model.logger.record("hparams", HParam(numbers, metrics), exclude="jsonl")
        checkpoints = Checkpoints(self, recorder)
        looks = [self.looks] if self.looks else []
        with torch.enable_grad():  # Ctrl-C in a no_grad() that has just begun would switch it off for good
            try:
                self._learn_to_the_end([*looks, checkpoints, recorder, *callbacks])
            except SettledError:
                recorder.on_training_end()
            for each in looks:
                each.look(self.model, self.model.num_timesteps)
        checkpoints.save_state()

    def _learn_to_the_end(self, callbacks: list[BaseCallback]) -> None:
        """The steps of a bandit, if there are any, and then those of PPO."""
        by_bandit, total = self.config.steps_by_bandit, self.config.total_steps
        for end in (by_bandit, total):
            if end > by_bandit and isinstance(self.model, MaskedBandit):
                self.model = self._ppo_after(self.model)
            if end > self.model.num_timesteps:
                steps = end - self.model.num_timesteps
                self.model.learn(steps, callback=callbacks, reset_num_timesteps=False)

    def save(self, stem: str) -> None:
        """Write the policy that there is now, each file whole or not at all, under `stem` in the run folder.

        Its weights; and of PPO's a .zip for users of SB3.
        """
        if isinstance(self.model, MaskedPPO):
            with replacing(self.folder.path / f"{stem}.zip") as part:
                self.model.save(part)
        policy = cast("QueryPolicy | BanditPolicy", self.model.policy)
        save_weights(policy, self.folder.path / f"{stem}.safetensors")

    def state(self) -> dict[str, Any]:
        """All that the learner is between two rollouts: tensors and plain data."""
        model = self.model
        to_log = model.logger.name_to_value.items()
        return {
            "policy": model.policy.state_dict(),
            "optimizer": model.policy.optimizer.state_dict() if isinstance(model, MaskedPPO) else {},
            "counters": {name: getattr(model, name) for name in COUNTERS},
            "episode_starts": [bool(start) for start in np.asarray(model._last_episode_starts)],  # noqa: SLF001 - SB3's
            "lanes": self.env.state(),
            "to_log": {k: float(v) for k, v in to_log if np.isscalar(v) and not isinstance(v, str)},
            **({"gain": self.looks.record.state()} if self.looks else {}),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another process stopped.

        Raises:
            OllamaError: a query of a lane could not be embedded.
        """
        model = self.model
        model.policy.load_state_dict(state["policy"])
        if isinstance(model, MaskedPPO):
            model.policy.optimizer.load_state_dict(state["optimizer"])
        for name, value in state["counters"].items():
            setattr(model, name, value)
        model._last_obs = self.env.restore(state["lanes"])  # noqa: SLF001 - SB3's
        model._last_episode_starts = np.array(state["episode_starts"])  # noqa: SLF001 - SB3's
        if self.looks:
            self.looks.record.restore(state["gain"])
        for name, value in state["to_log"].items():
            model.logger.record(name, value)

    def weights_sha256(self) -> str:
        """A hash of the policy's weights."""
        return weights_sha256(self.model.policy)

    def _ppo(self) -> MaskedPPO:
        """PPO with a new network."""
        config = self.config
        share = LEARNING_RATE_SHARE if config.steps_by_bandit else 1.0
        collects = LanePPO if config.driven_by == "lanes" else MaskedPPO
        with GLOBAL_RNG_LOCK:
            model = collects(
                QueryPolicy,
                self.bridge,
                learning_rate=config.lr * share,
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
        self._prepare(model)
        return model

    def _bandit(self) -> MaskedBandit:
        """A bandit that knows nothing yet but the training queries.

        Raises:
            EncodingError: a training query cannot be embedded.
        """
        config = self.config
        collects = LaneBandit if config.driven_by == "lanes" else MaskedBandit
        mutators, embeddings = self.env.envs[0].rules.mutators, self._embeddings
        with GLOBAL_RNG_LOCK:
            model = collects(
                self.bridge,
                "thompson" if config.algorithm == "thompson" else "linucb",
                n_steps=config.bandit_steps,
                embeddings=embeddings,
                rules=rule_actions(mutators),
                seed=config.seed,
            )
        self._prepare(model)
        return model

    def _ppo_after(self, bandit: MaskedBandit) -> MaskedPPO:
        """PPO on a network that is fitted to what a bandit learned; it goes on where the bandit stands."""
        config = self.config
        model = self._ppo()
        fit_to_bandit(
            cast("QueryPolicy", model.policy),
            bandit.policy.model,
            self._embeddings,
            max_steps=config.mission.max_steps,
            gamma=config.gamma,
            seed=config.seed,
        )
        for name in (*COUNTERS, "_last_obs", "_last_episode_starts"):
            setattr(model, name, getattr(bandit, name))
        return model

    @cached_property
    def _embeddings(self) -> NDArray[np.float32]:
        """Those of the training queries (queries, D)."""
        env = self.env.envs[0]
        return batch_encode_queries(env.answerer.encoder, list(dict.fromkeys(env.queries)))

    def _prepare(self, model: MaskedRollouts) -> None:
        # The model seeded it, too.
        self.bridge.seed_lanes(lane_seeds(self.config.seed, self.config.num_processes))
        model.log_every = self.config.log_interval
        model.set_logger(self.logger)


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
            self.learner.save(f"checkpoints/policy-{self.num_timesteps}")

    def _on_step(self) -> bool:
        return True


def make_learner(
    config: TrainConfig,
    env: BatchedQueryMutationEnv,
    folder: RunFolder,
    saved: Mapping[str, Any] | None = None,
) -> Learner:
    """A new policy for `env`; every stream of chance in it is keyed by `config.seed`.

    `saved` is the checkpoint of a run that is resumed; `Learner.restore` is to follow.

    Raises:
        EncodingError: a training query that a bandit is to know cannot be embedded.
    """
    # Sums are split among threads, so other weights come of two than of one; which is as fast on a network of
    # this size, and on a busy machine faster.
    torch.set_num_threads(1)
    state = saved["learner"] if saved else {"counters": {"num_timesteps": 0}, "optimizer": {}}
    by_bandit = config.steps_by_bandit > 0 and not state.get("optimizer")
    mutators = [mutator.name for mutator in env.envs[0].rules.mutators]
    charts = layout(mutators, kept=config.gain.share(1) > 0)
    logger = make_logger(folder, state["counters"]["num_timesteps"], charts)
    return Learner(config, GymnasiumVecEnv(env), folder, logger, by_bandit=by_bandit)


def lane_seeds(seed: int, lanes: int) -> list[int]:
    """One seed per lane; runs with neighbouring seeds share none (seed + lane would)."""
    keys = [np.random.SeedSequence(seed, spawn_key=(Stream.LANE, lane)) for lane in range(lanes)]
    return [int(key.generate_state(1)[0]) for key in keys]
