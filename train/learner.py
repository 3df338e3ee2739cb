"""The learner: PPO or a bandit on a run's environments, and the checkpoint that goes on with it.

Under `auto` a bandit learns first. Then a network is fitted to what it learned, and PPO continues
on the same lanes, in the middle of their episodes.

The checkpoint is the state of a run between two rollouts, in one file, which is replaced as a whole
after each rollout. With it and the log of replies a run goes on as if it had not been interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from envs.episode import begin_together
from envs.query_mutation import QueryMutationEnv, step_envs
from ollama_utils.batching import batch_encode_queries
from records.errors import UserError
from records.outputs import replacing
from records.run_folder import RecordedRun, RunFolder
from train.bandit import LEARNING_RATE_SHARE, LaneBandit, fit_network, rule_actions
from train.config import TrainConfig
from train.gain import Looks, SettledError
from train.network import QueryPolicy
from train.policy import save_weights
from train.ppo import UPDATE_LOCK, LanePPO
from train.record import Recorder, make_logger

PHASE_WORKERS = 8
"""Calls of a phase at once, unless another number is set."""
_COUNTERS = ("num_timesteps", "rollouts", "rows", "skipped_updates", "_n_updates")
"""Where the model is; with the seed they are all that its streams of chance need."""
Weights = Mapping[str, torch.Tensor]


class Learner:
    """A policy in training. For a resumed run `saved` is its checkpoint, and `restore` must follow.

    Raises:
        EncodingError: a training query that a bandit is to know cannot be embedded.
    """

    def __init__(
        self,
        config: TrainConfig,
        envs: Sequence[QueryMutationEnv],
        folder: RunFolder,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        # Torch splits sums among its threads, so their number would change the weights. On a
        # network of this size one thread is as fast as two, and on a busy machine faster.
        torch.set_num_threads(1)
        self.config, self.envs, self.folder = config, envs, folder
        done = saved["counters"]["num_timesteps"] if saved else 0
        self.logger: Logger = make_logger(folder, done)
        self.looks: Looks | None = None
        """The looks at the kept queries; None where none are kept."""
        # Only PPO has an optimizer's state to save.
        by_bandit = config.steps_by_bandit > 0 and not (saved and saved["optimizer"])
        self.model: LanePPO | LaneBandit = self._bandit() if by_bandit else self._ppo()
        self.weights: Weights = {}
        """The weights of the last checkpoint."""

    def learn(self, recorder: Recorder, *callbacks: BaseCallback) -> None:
        """Train to the config's `total_steps`, or until the gain is settled."""
        looks = [self.looks] if self.looks else []
        checkpoints = Checkpoints(self, recorder)
        try:
            self._learn_in_turn([*looks, checkpoints, recorder, *callbacks])
        except SettledError:
            recorder.on_training_end()
        for each in looks:
            each.look(self.model)
        checkpoints.save()

    def _learn_in_turn(self, callbacks: list[BaseCallback]) -> None:
        """The steps of a bandit, if there are any, and then those of PPO."""
        by_bandit, total = self.config.steps_by_bandit, self.config.total_steps
        for end in (by_bandit, total):
            if end > by_bandit and isinstance(self.model, LaneBandit):
                self.model = self._ppo_after(self.model)
            if (steps := end - self.model.num_timesteps) > 0:
                self.model.learn(
                    steps,
                    callback=callbacks,
                    reset_num_timesteps=False,
                    log_interval=None,  # type: ignore[arg-type]  # SB3 takes it: `save` logs
                )

    def save_policy(self, stem: str) -> None:
        """Write the weights of the last checkpoint, if there is one."""
        if self.weights:
            actions = self.envs[0].num_actions
            save_weights(self.weights, actions, self.folder.path / f"{stem}.safetensors")

    def state(self) -> dict[str, Any]:
        """All that the learner is between two rollouts: tensors and plain data."""
        model = self.model
        return {
            "policy": model.policy.state_dict(),
            "optimizer": model.policy.optimizer.state_dict() if isinstance(model, LanePPO) else {},
            "visited": {} if isinstance(model, LanePPO) else model.visited,
            "counters": {name: getattr(model, name) for name in _COUNTERS},
            "lanes": [env.state() for env in self.envs],
            "gain": self.looks.record.state() if self.looks else {},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another process stopped; steps that it recorded as unscored are so again.

        Raises:
            OllamaError: a query of a lane could not be embedded.
        """
        model = self.model
        model.policy.load_state_dict(state["policy"])
        if isinstance(model, LanePPO):
            model.policy.optimizer.load_state_dict(state["optimizer"])
        else:
            model.visited = state["visited"]
        for name in _COUNTERS:
            setattr(model, name, state["counters"][name])
        if self.looks:
            self.looks.record.restore(state["gain"], self.config.total_steps)
        episodes = [env.restored(lane) for env, lane in zip(self.envs, state["lanes"], strict=True)]
        observations = begin_together(episodes, self.envs[0].models)
        model._last_obs = np.stack(observations)  # noqa: SLF001 - SB3's
        for lane, env in enumerate(self.envs):
            lines = islice(self.folder.transitions.ahead, lane, None, len(self.envs))
            env.replay_unscored([line if line["unscored"] else None for line in lines])

    def _options(self) -> dict[str, Any]:
        """How steps are taken, by the schedule."""
        config, options = self.config, {"seed": self.config.seed}
        if config.driven_by == "phased":
            workers = config.max_workers or PHASE_WORKERS
            return options | {"step_all": partial(step_envs, self.envs, max_workers=workers)}
        return options | {"workers": 1 if config.driven_by == "sequential" else config.max_workers}

    def _ppo(self) -> LanePPO:
        """PPO with a new network."""
        config = self.config
        share = LEARNING_RATE_SHARE if config.steps_by_bandit else 1.0
        with UPDATE_LOCK:
            model = LanePPO(
                QueryPolicy,
                self.envs,
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
                **self._options(),
            )
        model.set_logger(self.logger)
        return model

    def _bandit(self) -> LaneBandit:
        """A bandit that knows nothing yet but the training queries."""
        config, env = self.config, self.envs[0]
        queries = list(dict.fromkeys(env.queries))
        embeddings = batch_encode_queries(env.models.encoder, queries)
        with UPDATE_LOCK:
            model = LaneBandit(
                self.envs,
                "thompson" if config.algorithm == "thompson" else "linucb",
                n_steps=config.bandit_steps,
                embeddings=embeddings,
                rules=rule_actions(env.rules.mutators),
                keeps_visited=config.algorithm == "auto",
                **self._options(),
            )
        model.set_logger(self.logger)
        return model

    def _ppo_after(self, bandit: LaneBandit) -> LanePPO:
        """PPO on a network that is fitted to what a bandit learned, on the same lanes."""
        model, config = self._ppo(), self.config
        policy = cast("QueryPolicy", model.policy)
        fit_network(
            policy, bandit.policy.model, bandit.visited, gamma=config.gamma, seed=config.seed
        )
        for name in (*_COUNTERS, "_last_obs"):
            setattr(model, name, getattr(bandit, name))
        return model


class Checkpoints(BaseCallback):
    """After every update: the log entry, and the state of the run; now and then the policy."""

    def __init__(self, learner: Learner, recorder: Recorder) -> None:
        super().__init__()
        self._learner, self._recorder = learner, recorder
        self._logged = learner.model.rollouts

    def save(self) -> None:
        """Write down all that a resumed run needs; between two rollouts alone.

        The lines that it is based on are forced to the disk first.
        """
        learner = self._learner
        model, config = learner.model, learner.config
        if model.rollouts > self._logged and model.rollouts % config.log_interval == 0:
            model.dump_logs(model.rollouts)
        transitions, metrics = learner.folder.transitions, learner.folder.metrics
        transitions.sync()
        metrics.sync()
        state = learner.state()
        counts = {"transitions": transitions.count, "metrics": metrics.count}
        state |= {"recorder": self._recorder.state()}
        state |= {"lines": counts | {"sha256": transitions.sha256}}
        with replacing(learner.folder.checkpoint) as part:
            torch.save(state, part)
        learner.weights = {name: each.clone() for name, each in state["policy"].items()}
        if model.rollouts > self._logged and model.rollouts % config.save_interval == 0:
            learner.save_policy(f"checkpoints/policy-{model.num_timesteps}")
        self._logged = model.rollouts

    def _on_rollout_start(self) -> None:
        self.save()

    def _on_step(self) -> bool:
        return True


def load_checkpoint(run: RecordedRun) -> dict[str, Any] | None:
    """The state that was saved last; None for a run that ended before its first step.

    Nothing in the file is executed: with anything but tensors and plain data it is refused.

    Raises:
        UserError: the file is damaged.
    """
    if not run.checkpoint.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(run.checkpoint, weights_only=True)
        for key in ("policy", "optimizer", "visited", "counters", "lanes", "recorder", "lines"):
            state[key]
    except Exception as error:  # torch and its pickle raise anything
        raise UserError(
            f"{str(run.checkpoint)!r} is damaged ({' '.join(str(error).split()):.200}): the run "
            "cannot go on; begin a new one"
        ) from error
    return state
