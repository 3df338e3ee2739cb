"""Train a policy (PPO) that chooses how a query is reworded.

Run it with `mutagym train --ollama-host http://127.0.0.1:11434 --target-model llama3.2 --queries my.csv`, or
with the same flags as `python -m train.train_query_mutator --num-processes 16 --no-batching`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from mutators.registry import load_mutators
from train.config import TrainConfig
from train.errors import UserError
from train.interrupt import Interrupt, Interrupted, interruptible
from train.query_set import QuerySet, load_query_set
from train.run_folder import RunFolder, check_new_or_empty, check_writable
from train.server import Connection, connect
from train.settings import check_num_mini_batch, resolved

if TYPE_CHECKING:
    from envs.batched import BatchedQueryMutationEnv


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
