"""Train a policy (PPO, or a contextual bandit) that chooses how a query is reworded.

Run it with `mutagym train --ollama-host http://127.0.0.1:11434 --target-model llama3.2 --queries
my.csv`, or with the same flags as `python -m train.train_query_mutator --num-processes 16`.
"""

from __future__ import annotations

from contextlib import ExitStack

from cli.output import write_json
from envs.queries import guards_of
from envs.query_sets import (
    QuerySet,
    keep_queries,
    load_query_set,
    read_guard,
    recorded_queries,
)
from mutators.lexical import noop
from mutators.registry import load_mutators
from ollama_utils.connect import connect
from records.errors import UserError, as_user_error
from records.interrupt import interruptible
from records.resume import check_options
from records.run_folder import QUERIES, check_places
from records.settings import MOST_SEED
from records.terminal import prints_on_stderr, write_stderr
from scorers.correction import read_accuracy
from train.config import MAY_CHANGE, MOST_BANDIT_MUTATORS, TrainConfig, check_num_mini_batch
from train.prior import check_sides
from train.run import train_one, train_seeds
from train.summary import summary_text


def train(config: TrainConfig = TrainConfig()) -> None:
    """Train a policy: it learns which mutation of a query gets it answered.

    Every flag can stand in a TOML file: --config FILE; flags override it.
    """
    config = config.located()
    _check(config)
    queries = _queries(config)
    if config.total_steps != config.num_env_steps:
        rounded = f"rounded up to {config.total_steps}, in whole rollouts"
        write_stderr(f"note: --num-env-steps {config.num_env_steps} is {rounded}")
    train_all = train_seeds if config.seeds else train_one
    with interruptible(), connect(config.server) as connection, ExitStack() as stack:
        with prints_on_stderr():
            folder, outcome = train_all(config, queries, connection, stack)
        if not write_json(outcome.summary, config.json):
            print(summary_text(outcome.summary, folder.closing_message))
        if outcome.stopped:
            raise outcome.stopped


def _queries(config: TrainConfig) -> QuerySet:
    """The queries of the file that is named; of a run that is gone on with, those that it has."""
    if config.resume:
        return recorded_queries(config.resume / QUERIES)
    query_set = config.mission.query_set
    guard = read_guard(config.guard, query_set.group_column)
    queries = load_query_set(query_set, config.mission.reward, guard)
    _check_guard(config, queries)
    share = config.gain.share(len(queries.train), config.total_steps)
    try:
        return _checked(keep_queries(queries, query_set, share))
    except UserError:
        if config.gain.kept is not None:
            raise
    queries = _checked(queries)
    if share:
        write_stderr("note: too few training queries to keep any; what is learned will be saved")
    return queries


def _checked(queries: QuerySet) -> QuerySet:
    """The same, if there is enough of both sides to learn from; raises UserError."""
    if guards_of(queries.train):
        check_sides(queries.train)
    return queries


def _check(config: TrainConfig) -> None:
    """Check what can be checked from the flags alone."""
    if not config.use_batching and config.schedule not in {None, "sequential"}:
        raise UserError(
            "--no-batching makes one call after another; it cannot stand beside "
            f"--schedule {config.schedule}"
        )
    if config.seeds and config.driven_by != "lanes":
        raise UserError(
            f"--seeds {config.seeds} plays lanes of all seeds side by side; it cannot stand beside "
            f"--schedule {config.driven_by}: train the seeds one after another"
        )
    if config.engine.engine == "ray" and not config.seeds:
        raise UserError(
            "--engine ray trains each of several seeds as a task, and one run is not spread: add "
            "--seeds, or leave --engine out"
        )
    if config.seeds_trained[-1] > MOST_SEED:
        raise UserError(
            f"--seed {config.seed} with --seeds {config.seeds} goes beyond {MOST_SEED}: lower it"
        )
    _check_kept(config)
    if config.steps_by_bandit and len(config.mission.mutators) > MOST_BANDIT_MUTATORS:
        raise UserError(
            f"--algorithm {config.algorithm} takes at most {MOST_BANDIT_MUTATORS} --mutators, "
            f"got {len(config.mission.mutators)}: name fewer, or use --algorithm ppo"
        )
    config.mission.check()
    with as_user_error(ValueError):
        check_num_mini_batch(config.num_steps, config.num_processes, config.num_mini_batch)
    read_accuracy(config.judge_accuracy)
    check_places(config)
    if config.resume:
        check_options(config, config.resume, MAY_CHANGE, run_dir=config.run_dir)


def _check_kept(config: TrainConfig) -> None:
    """Check what is set of kept queries."""
    if config.gain.until_sure and config.gain.kept == 0:
        raise UserError("--until-sure needs kept queries: raise --kept, or leave it out")
    if config.gain.least_gain is not None and not config.gain.until_sure:
        raise UserError(
            "--least-gain says when --until-sure may give up: add --until-sure, or leave it out"
        )


def _check_guard(config: TrainConfig, queries: QuerySet) -> None:
    """Check that guard queries, where there are any, can be learned from as is asked for."""
    if not guards_of(queries.train):
        return
    if not config.mission.asks_first:
        raise UserError(
            "of guard queries every one is asked as it stands, for what the target answers so is "
            "no merit of a policy: leave --always-reword out, and use a --reward that needs no "
            "right answers"
        )
    if noop not in load_mutators(config.mission.mutators):
        raise UserError(
            "with guard queries a policy must be able to leave a reply as it is: add noop to "
            "--mutators"
        )
    if config.gain.until_sure:
        raise UserError(
            "--until-sure looks at success alone, which is not what guard queries ask for: leave "
            "one of them out"
        )
