"""Train a policy (PPO) that chooses how a query is reworded.

Run it with `mutagym train --ollama-host http://127.0.0.1:11434 --target-model llama3.2 --queries my.csv`, or
with the same flags as `python -m train.train_query_mutator --num-processes 16`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envs.episode import check_transition
from envs.mission import QuerySet, keep_queries, load_query_set, open_encoder
from ollama_utils.connect import Connection, connect, keep_replies
from ollama_utils.reply_log import ReplyLog
from records.errors import UserError, as_user_error
from records.interrupt import Interrupted, interruptible
from records.resume import check_fingerprints, check_options
from records.run_folder import REPLIES, RunFolder, check_places
from records.settings import resolved
from records.terminal import tell
from scorers.correction import read_accuracy
from train.audit import open_audit
from train.config import TrainConfig, check_num_mini_batch
from train.resume import MAY_CHANGE, check_queries, check_total, fingerprints, go_on

if TYPE_CHECKING:
    from envs.batched import BatchedQueryMutationEnv
    from scorers.correction import LabelAccuracy
    from train.learner import Learner
    from train.recorder import Recorder


def train(config: TrainConfig = TrainConfig()) -> None:
    """Train a policy with PPO: it learns which mutation of a query gets it answered.

    Every flag can stand in a TOML file: --config FILE; flags override it.
    """
    config = config.located()
    _check(config)
    queries = load_query_set(config.mission.query_set)
    queries = keep_queries(queries, config.mission.query_set, config.gain.share(len(queries.train)))
    accuracy = read_accuracy(config.judge_accuracy)
    with interruptible() as interrupt, connect(config.server) as connection:
        audit = open_audit(config, connection)
        digests = connection.digests(config.mission.encoder, *filter(None, [config.audit.audit_judge]))
        opened = RunFolder.of("train", resume=config.resume, run_dir=config.run_dir, seed=config.seed)
        with opened as folder, ExitStack() as logs:
            replies = logs.enter_context(ReplyLog(folder.path / REPLIES, digests=digests))
            keep_replies(replies, config.cache, connection, digests, logs)
            env = _environment(config, queries, connection)
            logs.callback(env.close, terminate=True)
            interrupt.allow(allowed=False)  # the folder is to be whole, whenever the run ends
            saved = _begin(config, folder, queries, connection, fingerprints(config, env, digests))
            from train.recorder import Recorder  # torch takes long to import: not before all is checked

            recorder = Recorder(folder, connection.dispatcher, interrupt, config.max_unscored, audit)
            learner, ended = _learn(config, connection, env, recorder, queries, saved)
            _finish(config, connection, learner, recorder, accuracy, ended, replies)


def _check(config: TrainConfig) -> None:
    """Check what can be checked from the flags alone."""
    if not config.use_batching and config.schedule not in {None, "sequential"}:
        raise UserError(
            f"--no-batching makes one call after another; it cannot stand beside --schedule {config.schedule}"
        )
    if config.gain.until_sure and config.gain.kept == 0:
        raise UserError("--until-sure needs kept queries: raise --kept, or leave it out")
    config.mission.check()
    with as_user_error(ValueError):
        check_num_mini_batch(config.num_steps, config.num_processes, config.num_mini_batch)
    check_places(resume=config.resume, run_dir=config.run_dir, json=config.json, cache=config.cache)
    if config.resume:
        check_options(config, config.resume, MAY_CHANGE, run_dir=config.run_dir)


def _environment(config: TrainConfig, queries: QuerySet, connection: Connection) -> BatchedQueryMutationEnv:
    """The vector environment, with every part of it checked."""
    from envs.batched import BatchedQueryMutationEnv
    from envs.parts import mission_parts

    texts = [query.text for query in queries.train]
    encoder = open_encoder(config.mission.encoder, connection.dispatcher, config.cache)
    env_config, parts = mission_parts(
        config.mission, connection.dispatcher, connection.roles, texts, seed=config.seed, encoder=encoder
    )
    return BatchedQueryMutationEnv(
        env_config,
        config.num_processes,
        schedule=config.driven_by,
        max_workers=config.max_workers,
        **parts,
    )


def _begin(
    config: TrainConfig,
    folder: RunFolder,
    queries: QuerySet,
    connection: Connection,
    found: Mapping[str, str],
) -> dict[str, Any] | None:
    """Write down what the run is, config.toml first; returns what was saved of a resumed one."""
    from train.learner import load_checkpoint

    saved = load_checkpoint(folder)
    again = saved["lines"] | {"lanes": config.num_processes, "check": check_transition} if saved else {}
    folder.open_lines(**again)
    if saved:
        check_total(config, saved, folder)
        check_queries(queries, folder)
        check_fingerprints(found, folder)
    folder.write_config(resolved(replace(config, server=connection.resolve(config.server))))
    folder.write_json("queries.json", queries.record())
    folder.write_json("parts.json", found)
    kept = f", {len(queries.kept)} kept from learning" if queries.kept else ""
    tell(f"run folder {folder.path}: {config.driven_by}, {len(queries.train)} queries{kept}")
    return saved


def _learn(
    config: TrainConfig,
    connection: Connection,
    env: BatchedQueryMutationEnv,
    recorder: Recorder,
    queries: QuerySet,
    saved: Mapping[str, Any] | None,
) -> tuple[Learner, BaseException | None]:
    """Learn; returns the learner, whatever ended it, and what that was."""
    from train.kept import open_looks
    from train.learner import make_learner
    from train.recorder import ProgressLine

    interrupt = recorder.interrupt
    done = saved["learner"]["counters"]["num_timesteps"] if saved else 0
    learner = make_learner(config, env, recorder.folder, done_steps=done)
    learner.looks = open_looks(config, queries.kept, env, interrupt)
    if saved:
        interrupt.allow(allowed=True)  # nothing is written yet, and embeddings may be long in coming
        go_on(saved, learner, recorder)
        interrupt.allow(allowed=False)
    findings = connection.findings(config.num_processes)
    progress = ProgressLine(config.total_steps, recorder, findings)
    ended: BaseException | None = None
    try:
        interrupt.allow(allowed=True)
        learner.learn(recorder, progress)
    except (Interrupted, Exception) as error:  # noqa: BLE001 - whatever it was, what was done is kept
        ended = error
        connection.dispatcher.cancel()
    finally:
        interrupt.allow(allowed=False)
        progress.stop()
    return learner, ended


def _finish(
    config: TrainConfig,
    connection: Connection,
    learner: Learner,
    recorder: Recorder,
    accuracy: LabelAccuracy | None,
    ended: BaseException | None,
    replies: ReplyLog,
) -> None:
    """Save the policy, sum up the run, and raise what ended it."""
    from train.summary import print_summary, summarise

    folder = learner.folder
    try:
        learner.save_policy()
        stopped = ended and folder.reported(ended)
        summary = summarise(config, connection, learner, recorder, accuracy, stopped, replies)
        folder.write_json("summary.json", summary)
        if config.json:
            config.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise folder.reported(error) from ended or error
    print_summary(summary, folder, learner.looks.record.text() if learner.looks else "")
    if stopped:
        raise stopped
