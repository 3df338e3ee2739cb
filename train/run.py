"""Training runs, from an open connection to their summaries: one, or several seeds side by side.

A run can be killed at any moment: each reply is on disk before it is used, and a checkpoint is
written after each update. A run that is stopped also writes its policy and summary. One that is
resumed goes on from the checkpoint, and the log answers the calls that were made since.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from envs.make import mission_parts
from envs.mission import encoder_fingerprint, open_encoder
from envs.preflight import ask_first, check_lengths
from envs.queries import guards_of, queries_sha256
from envs.query_mutation import QueryMutationEnv
from envs.query_sets import QuerySet
from envs.transitions import check_transition
from ollama_utils.connect import Connection, connect, keep_replies
from ollama_utils.encoders import Encoder
from ollama_utils.monitor import CallMonitor
from ollama_utils.on_ray import EngineConfig, join_ray, run_on_ray
from ollama_utils.reply_log import ReplyLog
from records.errors import UserError, describe
from records.interrupt import Interrupted, interruptible
from records.progress import ProgressDisplay
from records.resume import check_fingerprints, check_options, file_fingerprints, resume_line
from records.run_folder import (
    CONFIG,
    COPIED,
    QUERIES,
    REPLIES,
    SUMMARY,
    RecordedRun,
    ResumableError,
    RunFolder,
    seed_folder,
)
from records.settings import resolved
from records.terminal import write_stderr
from scorers.correction import LabelAccuracy, read_accuracy
from scorers.own import is_own
from train.config import MAY_CHANGE, TrainConfig
from train.summary import Trained, summary_of_seeds

LAST_CALLS_S = 5.0
"""How long calls under way are waited for when a run is stopped."""
_POLL_S = 0.1


class Stop:
    """Ends trainings that share servers: what ends one before its time ends them all.

    Args:
        runs: each counts the calls under way of its own.
    """

    def __init__(self, runs: Sequence[TrainingRun]) -> None:
        self._dispatchers = [run.connection.dispatcher for run in runs]
        self._lock = threading.Lock()
        self.reason: BaseException | None = None
        """What ended the first; None: nothing has."""

    def __call__(self, error: BaseException, folder: RunFolder) -> BaseException:
        """End all calls: no new ones, and those under way within LAST_CALLS_S; returns why."""
        with self._lock:
            if self.reason is not None:
                return self.reason
            self.reason = error if isinstance(error, UserError) else folder.reported(error)
        end_s = time.monotonic() + LAST_CALLS_S
        for dispatcher in self._dispatchers:
            dispatcher.cancel()
            dispatcher.drain(end_s - time.monotonic())
        for dispatcher in self._dispatchers:
            dispatcher.close()
        return self.reason


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A run that is ready to learn, see `train.learner.learn`; its config.toml is written."""

    config: TrainConfig
    queries: QuerySet
    folder: RunFolder
    connection: Connection
    envs: Sequence[QueryMutationEnv]
    replies: ReplyLog
    saved: Mapping[str, Any] | None
    """The checkpoint of a run that is resumed."""
    accuracy: LabelAccuracy | None
    """How often the labels are right, where that is known."""
    name: str = ""
    """What it is called where there are several."""

    @property
    def prefix(self) -> str:
        """What its messages begin with."""
        return f"{self.name}: " if self.name else ""

    @property
    def steps_done(self) -> int:
        """The steps that are recorded."""
        return self.folder.transitions.count + len(self.folder.transitions.ahead)

    def replay_unscored(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Have coming steps that these lines record as unscored be so again, without a call."""
        for lane, env in enumerate(self.envs):
            mine = islice(lines, lane, None, len(self.envs))
            env.replay_unscored([line if line["unscored"] else None for line in mine])


def train_one(
    config: TrainConfig,
    queries: QuerySet,
    connection: Connection,
    stack: ExitStack,
) -> tuple[RunFolder, Trained]:
    """Train one, or resume it; returns its folder and its outcome.

    Raises:
        UserError: a part cannot be made, or the folder cannot be used.
    """
    open_folder = partial(RunFolder.of, "train", config)
    run = prepare(config, open_folder, queries, connection, stack)
    from train.learner import learn

    return run.folder, learn(run, Stop([run]), _monitor([run]))


def train_seeds(
    config: TrainConfig,
    queries: QuerySet,
    connection: Connection,
    stack: ExitStack,
) -> tuple[RunFolder, Trained]:
    """Train several seeds, each as a thread or a Ray task, or resume them.

    Each comes out as it does alone; what ends one before its time ends all. Returns the folder of
    all, which machines of a Ray cluster have to share, and their outcome together.

    Raises:
        UserError: a part cannot be made, a folder cannot be used, or there is no cluster.
        RunStoppedError, Interrupted: what stopped the seeds before one of them was summed up.
    """
    folder = stack.enter_context(RunFolder.of("train", config, "seeds"))
    train_all = _train_on_ray if config.engine.engine == "ray" else _train_on_threads
    # A seed that ends without a summary may have one of an earlier process.
    recorded = [RecordedRun(seed_folder(folder.path, seed)) for seed in config.seeds_trained]
    before = [_summed_up(run) for run in recorded]
    stopped = train_all(config, queries, connection, folder, stack)
    both = zip(recorded, before, strict=True)
    runs = [run.summary() for run, old in both if _summed_up(run) != old]
    if stopped and not runs:
        raise stopped
    summary = summary_of_seeds(config, connection, runs, stopped)
    folder.write_json(SUMMARY, summary)
    return folder, Trained(summary=summary, stopped=stopped)


def _summed_up(run: RecordedRun) -> tuple[int, int] | None:
    """Which summary a run has: each is a file of its own; None: it has none."""
    path = run.path / SUMMARY
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None


def _train_on_threads(
    config: TrainConfig,
    queries: QuerySet,
    connection: Connection,
    folder: RunFolder,
    stack: ExitStack,
) -> BaseException | None:
    """Train the seeds, a thread each; returns what ended them before their time."""
    name, encoder = config.mission.encoder, None
    # An encoder on the server makes calls, which each seed has to find in its own log.
    if not name.startswith("ollama:"):
        encoder = open_encoder(name, connection.dispatcher, config.cache)
    runs = []
    for seed in config.seeds_trained:
        alone = _seed_config(config, folder.path, seed)
        open_folder = partial(RunFolder, seed_folder(folder.path, seed), resume=bool(alone.resume))
        own = replace(connection, dispatcher=connection.dispatcher.for_another_run())
        run = prepare(alone, open_folder, queries, own, stack, encoder)
        run.folder.go_on = ""  # that of all says how
        runs.append(replace(run, name=f"seed {seed}"))
        if seed == config.seed:
            _begin(config, folder, queries, connection)
    return _learn_together(runs, folder)


def _learn_together(runs: Sequence[TrainingRun], folder: RunFolder) -> BaseException | None:
    """Have the runs learn, a thread each; returns what ended them before their time.

    Where one ends a rollout, its last lanes leave slots to the others. So they begin one after
    another, each when the one before is its share of a rollout ahead: else all would end at once.
    """
    from train.learner import learn

    stop, monitor, config = Stop(runs), _monitor(runs), runs[0].config
    ahead = config.rows_of_rollout * config.num_processes // len(runs)

    def learn_one(run: TrainingRun) -> None:
        try:
            learn(run, stop, monitor, display=ProgressDisplay(beside=display))
        except BaseException as error:  # noqa: BLE001 - it ends all of them
            if stop(error, run.folder) is not error:
                write_stderr(f"{run.name} was not summed up: {describe(error)}")

    threads = [threading.Thread(target=learn_one, args=(run,)) for run in runs]
    with ProgressDisplay() as display:
        try:
            for thread, run in zip(threads, runs, strict=True):
                thread.start()
                while thread.is_alive() and run.folder.transitions.count < ahead:
                    time.sleep(_POLL_S)
            while any(thread.is_alive() for thread in threads):
                time.sleep(_POLL_S)  # a signal interrupts it
        except Interrupted as error:
            stop(error, folder)
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
    return stop.reason


def _train_on_ray(
    config: TrainConfig,
    queries: QuerySet,
    connection: Connection,
    folder: RunFolder,
    stack: ExitStack,
) -> BaseException | None:
    """Train the seeds, a Ray task each; returns what ended them before their time."""
    stack.enter_context(join_ray(config.engine.ray_address))
    connection.digests(config.mission.encoder)  # the same at all hosts, before they are dealt out
    seeds = config.seeds_trained
    for seed in seeds:
        _seed_config(config, folder.path, seed)  # those that are resumed are checked
    _begin(config, folder, queries, connection)
    job = partial(
        train_seed,
        config=replace(config, server=connection.for_jobs(config.server)),
        folder=folder.path.absolute(),
        queries=queries,
    )
    with ProgressDisplay() as display:
        display.begin("seeds trained", len(seeds))
        try:
            with closing(run_on_ray(job, seeds, connection.dispatcher.hosts)) as ended:
                for done, _ in enumerate(ended, start=1):
                    display.update(done)
        except ResumableError:
            raise
        except (Interrupted, Exception) as error:  # noqa: BLE001 - what was done is kept
            return folder.reported(error)
    return None


def train_seed(
    hosts: tuple[str, ...],
    seed: int,
    *,
    config: TrainConfig,
    folder: Path,
    queries: QuerySet,
) -> None:
    """A job: train one seed at the hosts dealt to it, or resume it; raises what stopped it."""
    alone = _seed_config(config, folder, seed)
    with interruptible(), connect(config.server, at=hosts) as connection, ExitStack() as stack:
        _, outcome = train_one(alone, queries, connection, stack)
    if outcome.stopped:
        raise outcome.stopped


def _seed_config(config: TrainConfig, folder: Path, seed: int) -> TrainConfig:
    """The settings of one seed's run, which begins, or is resumed where it has begun."""
    path = seed_folder(folder, seed)
    resume = path if (path / CONFIG).is_file() else None
    alone = replace(
        config,
        seed=seed,
        seeds=None,
        run_dir=path,
        resume=resume,
        json=None,
        engine=EngineConfig(),
    )
    if resume:
        check_options(alone, resume, MAY_CHANGE, run_dir=None)
    return alone


def _monitor(runs: Sequence[TrainingRun]) -> CallMonitor:
    return CallMonitor(
        *(run.connection.dispatcher for run in runs),
        lanes=sum(run.config.num_processes for run in runs),
        slots_setting=runs[0].connection.slots_setting,
    )


def prepare(
    config: TrainConfig,
    open_folder: Callable[[], RunFolder],
    queries: QuerySet,
    connection: Connection,
    stack: ExitStack,
    encoder: Encoder | None = None,
    *,
    preflight: bool = True,
) -> TrainingRun:
    """Make and check all that a run needs, then write down what it is.

    Its folder is opened once the models are known to be there; `stack` closes what was opened.
    With `preflight` the queries' lengths are checked, and each model is asked first.

    Raises:
        UserError: a part cannot be made, or is not what a run that is resumed began with.
    """
    mission, dispatcher = config.mission, connection.dispatcher
    digests = connection.digests(mission.encoder)
    folder = stack.enter_context(open_folder())
    replies = stack.enter_context(ReplyLog(folder.path / REPLIES, digests=digests))
    keep_replies(replies, config.cache, connection, digests, stack)
    every = (*queries.train, *queries.held_out, *queries.kept)
    rules, models = mission_parts(
        mission,
        dispatcher,
        connection.roles,
        queries.train,
        seed=config.seed,
        encoder=encoder or open_encoder(mission.encoder, dispatcher, config.cache),
        answers=queries.answers,
        guards=guards_of(every),
    )
    if preflight:
        texts = [query.text for query in every]
        check_lengths(models.encoder, texts, mission.query_set)
        ask_first(models, rules.mutators, texts)
    files = {name.rpartition(":")[0] for name in mission.mutators if ":" in name}
    found = {
        **{f"model {name}": digest for name, digest in digests.items()},
        **file_fingerprints("mutators", files),
        **file_fingerprints("reward", _reward_files(mission.reward)),
        **file_fingerprints("rubric", filter(None, [mission.judge_rubric])),
        **encoder_fingerprint(mission.encoder, models.encoder),
        "queries": queries_sha256(every),
    }
    from train.learner import load_checkpoint  # torch takes long to import

    if saved := load_checkpoint(folder):
        folder.open_lines(**saved["lines"], lanes=config.num_processes, check=check_transition)
    else:
        folder.open_lines()
    run = TrainingRun(
        config=config,
        queries=queries,
        folder=folder,
        connection=connection,
        envs=[QueryMutationEnv(rules, models, queries.train) for _ in range(config.num_processes)],
        replies=replies,
        saved=saved,
        accuracy=read_accuracy(config.judge_accuracy),
    )
    if config.total_steps < run.steps_done:
        raise UserError(
            f"--num-env-steps is {config.num_env_steps}, but {run.steps_done} steps are done: "
            "raise it"
        )
    if run.saved:
        check_fingerprints(found, folder)
    _begin(config, folder, queries, connection)
    folder.write_json("parts.json", found)
    kept = f", {len(queries.kept)} kept from learning" if queries.kept else ""
    looks = " after a question for each query" if mission.asks_first else ""
    write_stderr(
        f"run folder {folder.path}: {config.driven_by}, {len(queries.train)} queries{kept}, "
        f"{config.total_steps:,} steps of at most {mission.most_calls_a_step} calls{looks}"
    )
    return run


def _begin(
    config: TrainConfig, folder: RunFolder, queries: QuerySet, connection: Connection
) -> None:
    """Write down what a run is: its queries, then its settings, with which it has begun.

    From then on the folder says how to resume it.
    """
    folder.write_json(QUERIES, queries.record())
    settings = replace(config, server=connection.resolve(config.server))
    folder.begin(resolved(settings), simulated=connection.simulated)
    folder.go_on = resume_line("train", folder.path, settings, copied=COPIED)


def _reward_files(reward: str) -> Iterable[Path]:
    """The files of a reward of the user's own: that of a function, or those of a classifier."""
    if not is_own(reward):
        return []
    if ".py" in reward:
        return [Path(reward.rpartition(":")[0])]
    return [path for path in Path(reward).iterdir() if path.is_file() and path.name[0] != "."]
