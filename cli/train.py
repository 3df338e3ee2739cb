"""Train a policy (PPO) that chooses how a query is reworded.

Run it with `mutagym train --ollama-host http://127.0.0.1:11434 --target-model llama3.2 --queries my.csv`, or
with the same flags as `python -m train.train_query_mutator --num-processes 16`.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from envs.mission import load_query_set
from ollama_utils.connect import connect
from records.errors import UserError, as_user_error
from records.interrupt import interruptible
from records.resume import check_options
from records.run_folder import RunFolder, check_places
from scorers.correction import read_accuracy
from train.config import TrainConfig, check_num_mini_batch
from train.resume import MAY_CHANGE
from train.run import prepare

if TYPE_CHECKING:
    from train.recorder import ProgressLine, Recorder


def train(config: TrainConfig = TrainConfig()) -> None:
    """Train a policy with PPO: it learns which mutation of a query gets it answered.

    Every flag can stand in a TOML file: --config FILE; flags override it.
    """
    config = config.located()
    _check(config)
    queries = load_query_set(config.mission.query_set)
    accuracy = read_accuracy(config.judge_accuracy)
    with interruptible() as interrupt, connect(config.server) as connection, ExitStack() as stack:
        opener = partial(
            RunFolder.of, "train", resume=config.resume, run_dir=config.run_dir, seed=config.seed
        )
        run = prepare(config, opener, queries, connection, interrupt, stack)

        def show(recorder: Recorder) -> ProgressLine:
            from train.recorder import ProgressLine

            return ProgressLine(config.total_steps, recorder, connection.findings(config.num_processes))

        outcome = run.learn(show, accuracy, lambda _error: connection.dispatcher.cancel())
        _write(config, outcome.summary)

        from train.summary import print_summary

        print_summary(outcome.summary, run.folder)
        if outcome.stopped:
            raise outcome.stopped


def _check(config: TrainConfig) -> None:
    """Check what can be checked from the flags alone."""
    if not config.use_batching and config.schedule not in {None, "sequential"}:
        raise UserError(
            f"--no-batching makes one call after another; it cannot stand beside --schedule {config.schedule}"
        )
    config.mission.check()
    with as_user_error(ValueError):
        check_num_mini_batch(config.num_steps, config.num_processes, config.num_mini_batch)
    check_places(resume=config.resume, run_dir=config.run_dir, json=config.json, cache=config.cache)
    if config.resume:
        check_options(config, config.resume, MAY_CHANGE, run_dir=config.run_dir)


def _write(config: TrainConfig, summary: dict[str, Any]) -> None:
    """Write the summary where it is wanted, beside the run's folder."""
    if config.json:
        config.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
