"""A run's learner: PPO or a bandit on its environments, and the checkpoint that goes on with it.

Under `auto` a bandit learns first. Then a network is fitted to what it learned, and PPO continues
on the same lanes, in the middle of their episodes.

The checkpoint is the state of a run between two rollouts, in one file, which is replaced as a whole
after each rollout. With it and the log of replies a run goes on as if it had not been interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from envs.episode import begin_together
from envs.queries import guards_of
from envs.query_mutation import step_envs
from ollama_utils.batching import batch_encode_queries
from ollama_utils.errors import EncodingError, OllamaError
from ollama_utils.monitor import CallMonitor
from records.errors import UserError, describe
from records.interrupt import Interrupted
from records.json_lines import LinesHash
from records.metrics import MetricsWriter
from records.outputs import replacing
from records.progress import ProgressDisplay
from records.run_folder import SUMMARY, RecordedRun
from records.terminal import write_stderr
from train.bandit import (
    LEARNING_RATE_SHARE,
    BanditPolicy,
    LaneBandit,
    fit_network,
    rule_actions,
)
from train.choice import LEARNED, Choice, Situations, candidates, choice_of, fixed_policy
from train.config import MOST_BANDIT_MUTATORS
from train.gain import Looks
from train.kept import KeptQueries
from train.network import QueryPolicy
from train.policy import LEARNED_WEIGHTS, save_weights
from train.ppo import UPDATE_LOCK, LanePPO, weights_sha256
from train.prior import Prior, fit_prior
from train.record import Recorder
from train.screening import Screen, screen
from train.summary import Summary, Trained, played_by, rates

if TYPE_CHECKING:
    from train.run import Stop, TrainingRun

PHASE_WORKERS = 8
"""Calls of a phase at once, unless another number is set."""
_COUNTERS = ("num_timesteps", "rollouts", "rows", "skipped_updates", "_n_updates")
"""Where the model is; with the seed they are all that its streams of chance need."""


class Learner:
    """The policy of a run in training.

    Raises:
        EncodingError: a training query that a bandit is to know cannot be embedded.
    """

    def __init__(self, run: TrainingRun) -> None:
        # Torch splits sums among its threads, so their number would change the weights. On a
        # network of this size one thread is as fast as two, and on a busy machine faster.
        torch.set_num_threads(1)
        self.run, config, saved = run, run.config, run.saved
        done = saved["counters"]["num_timesteps"] if saved else 0
        self.metrics = MetricsWriter(run.folder.metrics, run.folder.tensorboard, done + 1)
        self.prior = self._prior()
        self.kept = KeptQueries(run) if run.queries.kept else None
        looks = self.kept and config.gain.looks and not run.envs[0].rules.guards
        self.looks = Looks(run, self.kept, self.metrics) if self.kept and looks else None
        self.choice: Choice | None = None
        """What came of the kept queries in the end."""
        # Only PPO has an optimizer's state to save.
        by_bandit = config.steps_by_bandit > 0 and not (saved and saved["optimizer"])
        self.model: LanePPO = self._bandit() if by_bandit else self._ppo()
        self.screen: Screen | None = None
        """What the target says to the training queries as they stand, once it is known."""
        self.fixed: dict[str, BanditPolicy] = {}
        """The fixed policies that may be saved."""
        self.weights: Mapping[str, torch.Tensor] = {}
        """The weights of the last checkpoint."""
        self.saved: Mapping[str, torch.Tensor] = {}
        """Those of the policy that was saved."""

    def learn(self, recorder: Recorder, *callbacks: BaseCallback) -> None:
        """Train to the config's `total_steps`, or until the gain is settled."""
        config = self.run.config
        if self.run.envs[0].rules.asks_first:
            self.screen = screen(self.run, recorder.display)
            for env in self.run.envs:
                env.know(self.screen.played, self.screen.looks)
        while True:
            done = self.model.num_timesteps
            is_over = done >= config.total_steps
            if (
                not is_over
                and isinstance(self.model, LaneBandit)
                and done >= config.steps_by_bandit
            ):
                self.model = self._ppo_after(self.model)
            if self.looks:
                if is_over or self.looks.is_due(self.model.rollouts):
                    self.looks.look(self.model)
                is_over = is_over or bool(self.looks.record.end)
            if is_over:
                recorder.check_failures()
            self.save(recorder)
            if is_over:
                self.choice = self._choose() if self.kept else None
                return
            self.model.learn(
                1,  # step, rounded up to a rollout
                callback=[recorder, *callbacks],
                reset_num_timesteps=False,
                log_interval=None,  # type: ignore[arg-type]  # SB3 takes it
            )
            if self.model.rollouts % config.log_interval == 0:
                self._log(recorder)

    def _log(self, recorder: Recorder) -> None:
        """Write the numbers of the last rollout and update."""
        steps, logger = self.model.num_timesteps, self.model.logger
        numbers = {tag: float(value) for tag, value in logger.name_to_value.items()}
        self.metrics.write(steps, recorder.numbers | numbers)
        self.metrics.flush()
        logger.dump()  # it has no outputs; this empties it

    def save(self, recorder: Recorder) -> None:
        """Write down all that a resumed run needs; between two rollouts alone.

        The lines that it is based on are forced to the disk first.
        """
        model, folder = self.model, self.run.folder
        folder.transitions.sync()
        folder.metrics.sync()
        is_ppo = not isinstance(model, LaneBandit)
        has_begun = model._last_obs is not None  # noqa: SLF001 - SB3's
        state = {
            "policy": model.policy.state_dict(),
            "optimizer": model.policy.optimizer.state_dict() if is_ppo else {},
            "visited": model.visited if isinstance(model, LaneBandit) else {},
            "failed": model.failed if isinstance(model, LaneBandit) else [],
            "counters": {name: getattr(model, name) for name in _COUNTERS},
            "lanes": [env.state() for env in self.run.envs] if has_begun else [],
            "gain": self.looks.record.state() if self.looks else {},
            "wall_s": recorder.wall_s,
            "lines": {
                "transitions": folder.transitions.count,
                "metrics": folder.metrics.count,
                "sha256": folder.transitions.sha256,
            },
        }
        with replacing(folder.checkpoint) as part:
            torch.save(state, part)
        self.weights = {name: each.clone() for name, each in model.policy.state_dict().items()}
        if model.rollouts and model.rollouts % self.run.config.save_interval == 0:
            self.save_policy(f"checkpoints/policy-{model.num_timesteps}")

    def save_policy(self, stem: str, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        """Write weights, or those of the last checkpoint, if there is one."""
        if weights := weights or self.weights:
            actions, path = self.run.envs[0].num_actions, self.run.folder.path
            save_weights(weights, actions, path / f"{stem}.safetensors")

    def save_choice(self) -> None:
        """Write the policy that was chosen, and beside it what was learned, if that is another."""
        learned = self.run.folder.path / LEARNED_WEIGHTS
        fixed = self.fixed.get(self.choice.chosen) if self.choice else None
        self.saved = fixed.state_dict() if fixed else self.weights
        self.save_policy("policy", self.saved)
        if fixed:
            self.save_policy(learned.stem)
        else:
            learned.unlink(missing_ok=True)

    def _choose(self) -> Choice | None:
        """Have the fixed policies and what was learned play the kept queries."""
        run, kept = self.run, cast("KeptQueries", self.kept)
        env, mission = run.envs[0], run.config.mission
        if env.num_actions > MOST_BANDIT_MUTATORS:
            write_stderr(f"{run.prefix}too many mutators to find a fixed choice: none is compared")
            return None
        open_ones = kept.look()
        queries = [each for each, is_open in zip(kept.queries, open_ones, strict=True) if is_open]
        every = list(dict.fromkeys(query.text for query in run.queries.train))
        rows = batch_encode_queries(env.models.encoder, every)
        situations = Situations(env.rules, dict(zip(every, rows, strict=True)), env.looks)
        found = candidates(
            situations.learned_from(run.folder.transitions.read()),
            situations,
            list(dict.fromkeys(env.queries)),
            step_cost=mission.step_cost,
            guard_weight=mission.guard_weight,
        )
        shape = env.observation_space, env.num_actions, env.rules.stop
        self.fixed = {each.name: fixed_policy(each, *shape) for each in found}
        policies = {name: each.greedy for name, each in self.fixed.items()}
        policies[LEARNED] = self.model.greedy
        is_guarded = bool(guards_of(run.queries.train))
        nothing = dict.fromkeys(policies, np.zeros(len(queries)))
        if choice_of(nothing, queries, is_guarded=is_guarded):
            names = ", ".join(policies)
            write_stderr(f"{run.prefix}{len(queries)} kept queries are played by {names}")
            returns = kept.play([*policies.values()]).returns[:, open_ones]
            both = dict(zip(policies, returns, strict=True))
            if choice := choice_of(both, queries, is_guarded=is_guarded):
                return choice
        write_stderr(
            f"{run.prefix}too few kept queries got no answer as they stand to compare policies: "
            "what was learned is saved"
        )
        return None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another process stopped; steps that it recorded as unscored are so again.

        Raises:
            OllamaError: a query of a lane could not be embedded.
        """
        model, envs = self.model, self.run.envs
        model.policy.load_state_dict(state["policy"])
        if isinstance(model, LaneBandit):
            model.visited, model.failed = state["visited"], state["failed"]
        else:
            model.policy.optimizer.load_state_dict(state["optimizer"])
        for name in _COUNTERS:
            setattr(model, name, state["counters"][name])
        if self.looks:
            self.looks.record.restore(state["gain"], self.run.config.total_steps)
        if state["lanes"]:
            lanes = zip(envs, state["lanes"], strict=True)
            episodes = [env.restored(lane) for env, lane in lanes]
            model._last_obs = np.stack(begin_together(episodes, envs[0].models))  # noqa: SLF001 - SB3's
        self.run.replay_unscored(self.run.folder.transitions.ahead)

    def _prior(self) -> Prior | None:
        """What is known of queries by their words; lanes see it from the first step."""
        queries, env = self.run.queries, self.run.envs[0]
        if not env.rules.guards:
            return None
        rows = batch_encode_queries(env.models.encoder, [each.text for each in queries.train])
        prior = fit_prior(queries.train, rows.astype(np.float64))
        write_stderr(f"{self.run.prefix}{prior.says}")
        known = dict(prior.known)
        if kept := [query.text for query in queries.kept]:
            rows = batch_encode_queries(env.models.encoder, kept)
            known |= zip(kept, prior.likelihood(rows.astype(np.float64)).tolist(), strict=True)
        for lane in self.run.envs:
            lane.rules = replace(lane.rules, harmful=known)
        return prior

    def _with_prior(self, model: LanePPO) -> None:
        """Give a policy the prior that it is to use for other queries."""
        if self.prior:
            cast("QueryPolicy", model.policy).prior.copy_(torch.from_numpy(self.prior.weights))
        model.set_logger(Logger(None, []))

    def _options(self) -> dict[str, Any]:
        """How steps are taken, by the schedule."""
        config, options = self.run.config, {"seed": self.run.config.seed}
        if config.driven_by == "phased":
            workers = config.max_workers or PHASE_WORKERS
            return options | {"step_all": partial(step_envs, self.run.envs, max_workers=workers)}
        return options | {"workers": 1 if config.driven_by == "sequential" else config.max_workers}

    def _ppo(self) -> LanePPO:
        """PPO with a new network."""
        config = self.run.config
        share = LEARNING_RATE_SHARE if config.steps_by_bandit else 1.0
        with UPDATE_LOCK:
            model = LanePPO(
                QueryPolicy,
                self.run.envs,
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
        self._with_prior(model)
        return model

    def _bandit(self) -> LaneBandit:
        """A bandit that knows nothing yet but the training queries."""
        config, env = self.run.config, self.run.envs[0]
        queries = list(dict.fromkeys(env.queries))
        embeddings = batch_encode_queries(env.models.encoder, queries)
        with UPDATE_LOCK:
            model = LaneBandit(
                self.run.envs,
                "thompson" if config.algorithm == "thompson" else "linucb",
                n_steps=config.bandit_steps,
                embeddings=embeddings,
                rules=rule_actions(env.rules.mutators),
                stop=env.rules.stop,
                keeps_visited=config.algorithm == "auto",
                **self._options(),
            )
        self._with_prior(model)
        return model

    def _ppo_after(self, bandit: LaneBandit) -> LanePPO:
        """PPO on a network that is fitted to what a bandit learned, on the same lanes."""
        model, config = self._ppo(), self.run.config
        policy = cast("QueryPolicy", model.policy)
        known = bandit.policy.model
        fit_network(policy, known, bandit.visited, gamma=config.gamma, seed=config.seed)
        for name in (*_COUNTERS, "_last_obs"):
            setattr(model, name, getattr(bandit, name))
        return model


def learn(
    run: TrainingRun,
    stop: Stop,
    monitor: CallMonitor,
    *,
    display: ProgressDisplay | None = None,
    check: Callable[[Recorder], BaseCallback] | None = None,
) -> Trained:
    """Have a run learn, write its policy and sum up, whatever ends it.

    Args:
        run: from `train.run.prepare`.
        stop: is called with what ends the run before its time.
        monitor: watches the calls.
        display: shows the progress [on lines of its own].
        check: makes a callback that looks at each row once it is recorded.

    Raises:
        UserError: the state that was saved is not of this run, or the folder cannot be written.
    """
    recorder = Recorder(run, monitor, display)
    learner = Learner(run)
    if run.saved:
        _restore(learner, recorder, run.saved)
    ended: BaseException | None = None
    try:
        learner.learn(recorder, *([check(recorder)] if check else []))
    except (Interrupted, Exception) as error:  # noqa: BLE001 - what was done is kept
        ended = stop(error, run.folder)
    finally:
        recorder.display.stop()
    try:
        learner.metrics.close()
        learner.save_choice()
        summary = _summary(learner, recorder, ended)
        run.folder.write_json(SUMMARY, summary)
    except OSError as error:
        raise run.folder.reported(error) from ended or error
    return Trained(summary=summary, stopped=ended)


def _restore(learner: Learner, recorder: Recorder, saved: Mapping[str, Any]) -> None:
    run = learner.run
    try:
        learner.restore(saved)
        recorder.restore(saved["wall_s"])
    except (OllamaError, EncodingError):
        raise
    except Exception as error:
        raise UserError(
            f"{str(run.folder.checkpoint)!r} is not of this run, or damaged "
            f"({describe(error):.200}): the run cannot go on; begin a new one"
        ) from error
    write_stderr(f"{run.prefix}resumed at step {run.steps_done} of {run.config.total_steps}")
    if learner.looks and (end := learner.looks.record.end):
        write_stderr(f"{run.prefix}no step is added: --until-sure has ended this run ({end})")


def _summary(learner: Learner, recorder: Recorder, ended: BaseException | None) -> Summary:
    """The run in numbers: rates of episodes (success) or scored steps (refusal), seconds."""
    run, config = learner.run, learner.run.config
    hits, spent = run.connection.dispatcher.totals()["cache_hits"], run.replies.totals()
    count = recorder.rows * config.num_processes  # of whole rows: it may be stopped within one
    transitions = run.folder.transitions
    return {
        "simulated": run.connection.simulated,
        "stopped": str(ended) if ended else None,
        "env_steps": count,
        "wall_s": round(recorder.wall_s, 3),
        **rates(
            islice(transitions.read(), count),
            rows=recorder.rows,
            rollout=config.rows_of_rollout,
            max_steps=config.mission.max_steps,
            accuracy=run.accuracy,
            guarded=bool(run.envs[0].rules.guards),
        ),
        **(learner.screen.summary() if learner.screen else {}),
        **(learner.looks.record.summary() if learner.looks else {}),
        **(learner.choice.summary() if learner.choice else {}),
        **played_by(config, run.connection),
        "seed": config.seed,
        "llm_calls": spent["calls"],
        "cache_hits": None if config.resume else int(hits),
        "retries": spent["retries"],
        **{name: count for name, count in spent.items() if name.endswith("_tokens")},
        "transitions_sha256": LinesHash(islice(transitions.read(), count)).hexdigest(),
        "weights_sha256": weights_sha256(learner.weights),
        "policy_sha256": weights_sha256(learner.saved),
    }


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
        for key in ("policy", "optimizer", "visited", "counters", "lanes", "wall_s", "lines"):
            state[key]
    except Exception as error:  # torch and its pickle raise anything
        raise UserError(
            f"{str(run.checkpoint)!r} is damaged ({' '.join(str(error).split()):.200}): the run "
            "cannot go on; begin a new one"
        ) from error
    return state
