"""Train a policy (PPO) that chooses how a query is reworded.

Run it with `mutagym train --ollama-host http://127.0.0.1:11434 --target-model llama3.2 --queries my.csv`, or
with the same flags as `python -m train.train_query_mutator --num-processes 16 --no-batching`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from mutators.registry import DEFAULT_MUTATORS, load_mutators
from scorers.intent import INTENT_THRESHOLD
from train.errors import UserError
from train.interrupt import Interrupt, Interrupted, interruptible
from train.query_set import QueryConfig, QuerySet, load_query_set
from train.run_folder import RunFolder, check_new_or_empty, check_writable
from train.server import Connection, ServerConfig, connect
from train.settings import (
    Count,
    NotNegative,
    Positive,
    Seed,
    Share,
    check_num_mini_batch,
    comma_list,
    resolved,
)

if TYPE_CHECKING:
    from envs.batched import BatchedQueryMutationEnv


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything a training run is told. Defaults < --config file.toml < flags."""

    num_processes: Count = 16
    """Lanes: environments that run side by side."""
    num_steps: Count = 32
    """Steps of each lane per update."""
    num_env_steps: Count = 8192
    """Steps in all, rounded up to whole rollouts."""
    ppo_epoch: Count = 10
    """Passes over a rollout per update."""
    num_mini_batch: Count = 4
    """Minibatches per pass; must divide num-steps x num-processes."""
    lr: Positive = 1e-3
    """Adam's learning rate."""
    gamma: Share = 0.95
    """Discount."""
    gae_lambda: Share = 0.95
    """GAE's lambda (arXiv 1506.02438)."""
    clip_param: Positive = 0.2
    """PPO's clip range (arXiv 1707.06347)."""
    entropy_coef: NotNegative = 0.01
    """Weight of the entropy bonus."""
    value_loss_coef: NotNegative = 0.5
    """Weight of the value loss."""
    max_grad_norm: Positive = 0.5
    """Gradients are scaled down to this norm."""
    seed: Seed = 0
    """Same seed, same run."""
    use_batching: Annotated[bool, Parameter(name="--use-batching", negative="--no-batching")] = True
    """Model calls of all lanes together, or one after another."""
    schedule: Literal["sequential", "phased"] | None = None
    """Who waits for whom [phased with batching, sequential without]."""
    max_workers: Count | None = None
    """Threads of a phase [8]."""
    mutators: Annotated[tuple[str, ...], comma_list()] = DEFAULT_MUTATORS
    """Mutators the policy chooses from, by comma; a user's own is `file.py:name`."""
    encoder: str = "all-MiniLM-L6-v2"
    """Sentence encoder: a sentence-transformers name or path, `ollama:<model>`, or `hashing`."""
    reward: Literal["refusal", "judge", "keyword"] = "refusal"
    """What counts as answered: refusal rules, an LLM judge, or keywords (smoke test only)."""
    intent_threshold: Share = INTENT_THRESHOLD
    """Similarity to the original under which a rewording is not adopted; each encoder has its own scale."""
    step_cost: NotNegative = 0.05
    """What a step costs."""
    max_steps: Count = 5
    """Steps after which an unanswered query is given up."""
    target_system: str | None = None
    """The target's system prompt."""
    target_temperature: NotNegative = 0.0
    """The target's temperature."""
    num_predict: Count = 512
    """Most tokens of a reply; one that is cut is flagged."""
    num_ctx: Count | None = None
    """Context length of the models [the server's]."""
    think: bool | None = None
    """Whether a thinking target thinks [the server's choice]; its thoughts are never scored."""
    max_unscored: Share = 0.5
    """The run stops, saved, once more than this share of recent steps could not be scored."""
    save_interval: Count = 10
    """Updates between checkpoints."""
    log_interval: Count = 1
    """Updates between log entries; each tells of the last rollout."""
    run_dir: Path | None = None
    """The run's folder, new or empty [runs/train-TIME-SEED]."""
    json: Path | None = None
    """Write the summary here too."""
    query_set: QueryConfig = field(default_factory=QueryConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    @property
    def driven_by(self) -> Literal["sequential", "phased"]:
        """The schedule that the flags amount to."""
        return self.schedule or ("phased" if self.use_batching else "sequential")


def train(config: TrainConfig = TrainConfig()) -> None:
    """Train a policy with PPO: it learns which mutation of a query gets it answered.

    Every flag can stand in a TOML file: --config FILE; flags override it.
    """
    _check(config)
    queries = load_query_set(config.query_set)
    with interruptible() as interrupt, connect(config.server) as connection:
        env = _environment(config, queries, connection)
        interrupt.allow(allowed=False)  # the folder is to be whole, whenever the run ends
        folder = RunFolder("train", config.seed, config.run_dir)
        try:
            _run(config, folder, queries, connection, env, interrupt)
        finally:
            folder.close()


def _check(config: TrainConfig) -> None:
    """What can be told from the flags alone."""
    if not config.use_batching and config.schedule not in {None, "sequential"}:
        raise UserError(
            f"--no-batching makes one call after another; it cannot stand beside --schedule {config.schedule}"
        )
    try:
        load_mutators(config.mutators)
        check_num_mini_batch(config.num_steps, config.num_processes, config.num_mini_batch)
    except ValueError as error:
        raise UserError(str(error)) from error
    if config.run_dir:
        check_new_or_empty(config.run_dir)
    check_writable(config.json)


def _environment(config: TrainConfig, queries: QuerySet, connection: Connection) -> BatchedQueryMutationEnv:
    """The vector environment, with every part of it checked."""
    from envs.batched import BatchedQueryMutationEnv
    from envs.parts import make_parts
    from ollama_utils.errors import OllamaError

    try:
        env_config, parts = make_parts(
            connection.dispatcher,
            [query.text for query in queries.train],
            target_model=connection.roles.target,
            mutator_model=connection.roles.mutator,
            judge_model=connection.roles.judge,
            target_system=config.target_system,
            target_temperature=config.target_temperature,
            think=config.think,
            num_predict=config.num_predict,
            num_ctx=config.num_ctx,
            encoder=config.encoder,
            reward=config.reward,
            mutators=config.mutators,
            max_steps=config.max_steps,
            intent_threshold=config.intent_threshold,
            step_cost=config.step_cost,
            model_seed=config.seed,
        )
    except (OllamaError, ValueError) as error:
        raise UserError(str(error)) from error
    return BatchedQueryMutationEnv(
        env_config,
        config.num_processes,
        schedule=config.driven_by,
        max_workers=config.max_workers,
        **parts,
    )


def _run(
    config: TrainConfig,
    folder: RunFolder,
    queries: QuerySet,
    connection: Connection,
    env: BatchedQueryMutationEnv,
    interrupt: Interrupt,
) -> None:
    """Learn; save whatever the end is; say what came of it."""
    from train.learner import make_learner
    from train.progress import ProgressLine
    from train.recorder import Recorder
    from train.summary import print_summary, summarise

    folder.write_toml("config.toml", resolved(replace(config, server=connection.resolve(config.server))))
    folder.write_json("queries.json", queries.record())
    print(f"run folder {folder.path}: {config.driven_by}, {len(queries.train)} queries", file=sys.stderr)
    learner = make_learner(config, env, folder)
    recorder = Recorder(folder, connection.dispatcher, interrupt, config.max_unscored)
    progress = ProgressLine(learner.total_steps, recorder)
    ended: BaseException | None = None
    try:
        interrupt.allow(allowed=True)
        learner.learn(recorder, progress)
    except (Interrupted, Exception) as error:  # noqa: BLE001 - whatever it was, what was done is kept
        ended = error
    finally:
        interrupt.allow(allowed=False)
        progress.stop()
    learner.save("policy.zip")
    if ended:
        connection.dispatcher.cancel()
        ended = folder.reported(ended)
    summary = summarise(config, connection, learner, recorder, ended)
    folder.write_json("summary.json", summary)
    print_summary(summary, folder)
    if config.json:
        config.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    if ended:
        raise ended


if __name__ == "__main__":
    from functools import partial

    from train.cli import execute_one, launch

    launch(partial(execute_one, train, sys.argv[1:]))
