"""Training runs, from an open connection to their summaries: one, or several seeds side by side.

A run can be killed at any moment: each reply is on disk before it is used, and a checkpoint is
written after each update. A run that is stopped also writes its policy and summary. One that is
resumed goes on from the checkpoint, and the log answers the calls that were made since.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.make import mission_parts
from envs.mission import encoder_fingerprint, open_encoder
from envs.preflight import ask_first, check_lengths
from envs.queries import queries_sha256
from envs.query_mutation import QueryMutationEnv
from envs.query_sets import QuerySet
from envs.transitions import check_transition
from ollama_utils.connect import Connection, connect, keep_replies
from ollama_utils.encoders import Encoder
from ollama_utils.errors import EncodingError, OllamaError
from ollama_utils.monitor import CallMonitor
from ollama_utils.on_ray import EngineConfig, join_ray, run_on_ray
from ollama_utils.reply_log import ReplyLog
from records.errors import UserError, describe
from records.interrupt import Interrupted, interruptible
from records.json_lines import LinesHash
from records.progress import ProgressDisplay
from records.resume import check_fingerprints, check_options, file_fingerprints, resume_line
from records.run_folder import (
    CONFIG,
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
from scorers.correction import LabelAccuracy
from scorers.own import is_own
from scorers.statistics import FEWEST_SEEDS, mean_interval
from train.config import MAY_CHANGE, TrainConfig
from train.summary import ENDS, rates

if TYPE_CHECKING:
    from stable_baselines3.common.callbacks import BaseCallback

    from train.learner import Learner
    from train.record import Recorder

LAST_CALLS_S = 5.0
"""How long calls under way are waited for when a run is stopped."""
_POLL_S = 0.1
Summary = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of a run."""

    summary: Summary
    stopped: BaseException | None
    """What ended it before its time."""
    gain: str = ""
    """The gain in lines for people; empty where no queries are kept."""


TrainedSeeds = tuple[list[Trained], BaseException | None]
"""What came of several seeds, and what ended them before their time."""


class Stop:
    """Ends trainings that share servers: what ends one before its time ends them all.

    Args:
        connections: each training's to these servers; each counts calls under way of its own.
    """

    def __init__(self, *connections: Connection) -> None:
        self._dispatchers = [connection.dispatcher for connection in connections]
        self._lock = threading.Lock()
        self.reason: BaseException | None = None
        """What ended the first; None: nothing has."""

    def __call__(self, reason: BaseException) -> BaseException:
        """End all calls: no new ones, and those under way within LAST_CALLS_S; returns why."""
        with self._lock:
            if self.reason is not None:
                return self.reason
            self.reason = reason
        end_s = time.monotonic() + LAST_CALLS_S
        for dispatcher in self._dispatchers:
            dispatcher.cancel()
            dispatcher.drain(end_s - time.monotonic())
        for dispatcher in self._dispatchers:
            dispatcher.close()
        return reason


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A run that is ready to learn; its config.toml is written. See `prepare`."""

    config: TrainConfig
    queries: QuerySet
    folder: RunFolder
    connection: Connection
    envs: Sequence[QueryMutationEnv]
    replies: ReplyLog
    saved: Mapping[str, Any] | None
    """The checkpoint of a run that is resumed."""
    name: str = ""
    """What it is called where there are several."""

    def learn(
        self,
        stop: Stop,
        accuracy: LabelAccuracy | None = None,
        *,
        monitor: CallMonitor | None = None,
        display: ProgressDisplay | None = None,
        check: Callable[[Recorder], BaseCallback] | None = None,
    ) -> Trained:
        """Learn, write the policy and sum up, whatever ends it.

        Args:
            stop: is called with what ends it before its time.
            accuracy: how often the labels are right, where that is known.
            monitor: watches the calls [those of this run].
            display: shows the progress [on lines of its own].
            check: makes a callback that looks at each row once it is recorded.

        Raises:
            UserError: the state that was saved is not of this run, or the folder cannot be written.
        """
        from train.gain import Looks  # torch takes long to import: not before all is checked
        from train.learner import Learner
        from train.record import Recorder

        config, folder, connection = self.config, self.folder, self.connection
        monitor = monitor or CallMonitor(
            connection.dispatcher,
            lanes=config.num_processes,
            slots_setting=connection.slots_setting,
        )
        recorder = Recorder(folder, connection.dispatcher, config, monitor, display, self.name)
        learner = Learner(config, self.envs, folder, self.saved)
        if kept := self.queries.kept:
            learner.looks = Looks(config, kept, self.envs[0], self.name)
        if self.saved:
            self._restore(self.saved, learner, recorder)
        ended: BaseException | None = None
        try:
            learner.learn(recorder, *([check(recorder)] if check else []))
        except (Interrupted, Exception) as error:  # noqa: BLE001 - what was done is kept
            ended = folder.reported(stop(error))
        finally:
            recorder.display.stop()
        try:
            learner.logger.close()
            learner.save_policy("policy")
            summary = self._summary(learner, recorder, ended, accuracy)
            folder.write_json(SUMMARY, summary)
        except OSError as error:
            raise folder.reported(error) from ended or error
        gain = learner.looks.record.text() if learner.looks else ""
        return Trained(summary=summary, stopped=ended, gain=gain)

    def _restore(self, saved: Mapping[str, Any], learner: Learner, recorder: Recorder) -> None:
        try:
            learner.restore(saved)
            recorder.restore(saved["recorder"])
        except (OllamaError, EncodingError):
            raise
        except Exception as error:
            raise UserError(
                f"{str(self.folder.checkpoint)!r} is not of this run, or damaged "
                f"({describe(error):.200}): the run cannot go on; begin a new one"
            ) from error
        prefix = f"{self.name}: " if self.name else ""
        steps = f"{_done(self.folder)} of {self.config.total_steps}"
        write_stderr(f"{prefix}resumed at step {steps}")
        if learner.looks and (end := learner.looks.record.end):
            write_stderr(f"{prefix}no step is added: --until-sure has ended this run ({end})")

    def _summary(
        self,
        learner: Learner,
        recorder: Recorder,
        ended: BaseException | None,
        accuracy: LabelAccuracy | None,
    ) -> Summary:
        """The run in numbers: rates of episodes (success) or scored steps (refusal), seconds."""
        from train.ppo import weights_sha256

        config, dispatcher = self.config, self.connection.dispatcher
        count = recorder.rows * config.num_processes
        # Of whole rows: it may have been stopped within one.
        lines = LinesHash(islice(self.folder.transitions.read(), count))
        spent = self.replies.totals()
        return {
            "simulated": self.connection.simulated,
            "stopped": str(ended) if ended else None,
            "env_steps": count,
            "wall_s": round(recorder.wall_s, 3),
            **rates(
                islice(self.folder.transitions.read(), count),
                rows=recorder.rows,
                rollout=config.rows_of_rollout,
                max_steps=config.mission.max_steps,
                accuracy=accuracy,
            ),
            **(learner.looks.record.summary() if learner.looks else {}),
            **_played_by(config, self.connection),
            "seed": config.seed,
            "llm_calls": spent["calls"],
            "cache_hits": None if config.resume else int(dispatcher.totals()["cache_hits"]),
            "retries": spent["retries"],
            **{name: count for name, count in spent.items() if name.endswith("_tokens")},
            "slots": {
                f"{model} at {host}": slots
                for (host, model), found in dispatcher.servers.capacities().items()
                if (slots := found.slots)
            },
            "transitions_sha256": lines.hexdigest(),
            "weights_sha256": weights_sha256(learner.weights),
        }


def train_one(
    config: TrainConfig,
    queries: QuerySet,
    connection: Connection,
    accuracy: LabelAccuracy | None,
    stack: ExitStack,
) -> tuple[RunFolder, Trained]:
    """Train one, or resume it; returns its folder and its outcome.

    Raises:
        UserError: a part cannot be made, or the folder cannot be used.
    """
    opener = partial(RunFolder.of, "train", config)
    run = prepare(config, opener, queries, connection, stack)
    return run.folder, run.learn(Stop(connection), accuracy)


def train_seeds(
    config: TrainConfig,
    queries: QuerySet,
    connection: Connection,
    accuracy: LabelAccuracy | None,
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
    outcomes, stopped = train_all(config, queries, connection, accuracy, folder, stack)
    summary = summary_of_seeds(config, connection, outcomes, stopped)
    folder.write_json(SUMMARY, summary)
    gain = "".join(f"seed {each.summary['seed']}: {each.gain}" for each in outcomes if each.gain)
    return folder, Trained(summary=summary, stopped=stopped, gain=gain)


def _train_on_threads(
    config: TrainConfig,
    queries: QuerySet,
    connection: Connection,
    accuracy: LabelAccuracy | None,
    folder: RunFolder,
    stack: ExitStack,
) -> TrainedSeeds:
    name, encoder = config.mission.encoder, None
    # An encoder on the server makes calls, which each seed has to find in its own log.
    if not name.startswith("ollama:"):
        encoder = open_encoder(name, connection.dispatcher, config.cache)
    runs = []
    for seed in config.seeds_trained:
        alone = seed_config(config, folder.path, seed)
        opener = partial(RunFolder, seed_folder(folder.path, seed), resume=bool(alone.resume))
        own = replace(connection, dispatcher=connection.dispatcher.for_another_run())
        run = prepare(alone, opener, queries, own, stack, encoder)
        run.folder.go_on = ""  # that of all says how
        runs.append(replace(run, name=f"seed {seed}"))
        if seed == config.seed:
            begin(config, folder, queries, connection)
    return _learn_together(runs, connection, accuracy)


def _train_on_ray(
    config: TrainConfig,
    queries: QuerySet,
    connection: Connection,
    accuracy: LabelAccuracy | None,
    folder: RunFolder,
    stack: ExitStack,
) -> TrainedSeeds:
    stack.enter_context(join_ray(config.engine.ray_address))
    connection.digests(config.mission.encoder)  # the same at all hosts, before they are dealt out
    seeds = config.seeds_trained
    for seed in seeds:
        seed_config(config, folder.path, seed)  # those that are resumed are checked
    begin(config, folder, queries, connection)
    job = partial(
        train_seed,
        config=replace(config, server=connection.for_jobs(config.server)),
        folder=folder.path.absolute(),
        queries=queries,
        accuracy=accuracy,
    )
    gains, stopped = dict.fromkeys(seeds, ""), None
    with ProgressDisplay() as display:
        display.begin("seeds trained", len(seeds))
        try:
            with closing(run_on_ray(job, seeds, connection.dispatcher.hosts)) as found:
                for done, (seed, gain) in enumerate(zip(seeds, found, strict=True), start=1):
                    gains[seed] = gain
                    display.update(done)
        except ResumableError:
            raise
        except (Interrupted, Exception) as error:  # noqa: BLE001 - what was done is kept
            stopped = folder.reported(error)
    outcomes = [
        Trained(summary=summary, stopped=None, gain=gain)
        for seed, gain in gains.items()
        if (summary := RecordedRun(seed_folder(folder.path, seed)).summary())
    ]
    if stopped and not outcomes:
        raise stopped
    return outcomes, stopped


def train_seed(
    hosts: tuple[str, ...],
    seed: int,
    *,
    config: TrainConfig,
    folder: Path,
    queries: QuerySet,
    accuracy: LabelAccuracy | None,
) -> str:
    """A job: train one seed at the hosts dealt to it, or resume it; returns its gain, for people.

    Raises:
        UserError: a part cannot be made, or the folder cannot be used.
        RunStoppedError, Interrupted: what stopped it before its time; it is saved.
    """
    alone = seed_config(config, folder, seed)
    with interruptible(), connect(config.server, at=hosts) as connection, ExitStack() as stack:
        _, outcome = train_one(alone, queries, connection, accuracy, stack)
    if outcome.stopped:
        raise outcome.stopped
    return outcome.gain


def seed_config(config: TrainConfig, folder: Path, seed: int) -> TrainConfig:
    """The settings of one seed's run, which begins, or is resumed where it has begun.

    Raises:
        UserError: it has begun with other settings.
    """
    path = seed_folder(folder, seed)
    resume = path if (path / CONFIG).is_file() else None
    own = {"seed": seed, "seeds": None, "run_dir": path, "resume": resume, "json": None}
    alone: TrainConfig = replace(config, engine=EngineConfig(), **own)  # type: ignore[arg-type]
    if resume:
        check_options(alone, resume, MAY_CHANGE, run_dir=None)
    return alone


def _learn_together(
    runs: Sequence[TrainingRun], connection: Connection, accuracy: LabelAccuracy | None
) -> TrainedSeeds:
    """Have the runs learn, a thread each; returns their outcomes, and what ended them early.

    Where one ends a rollout, its last lanes leave slots to the others. So they begin one after
    another, each when the one before is its share of a rollout ahead: else all would end at once.

    Raises:
        BaseException: what ended them, if none of them could be summed up.
    """
    stop = Stop(*(run.connection for run in runs))
    monitor = CallMonitor(
        *(run.connection.dispatcher for run in runs),
        lanes=sum(run.config.num_processes for run in runs),
        slots_setting=connection.slots_setting,
    )
    config = runs[0].config
    ahead = config.rows_of_rollout * config.num_processes // len(runs)
    futures: list[Future[Trained]] = []

    def learn(run: TrainingRun, display: ProgressDisplay) -> Trained:
        try:
            beside = ProgressDisplay(beside=display)
            return run.learn(stop, accuracy, monitor=monitor, display=beside)
        except BaseException as error:
            stop(error)
            raise

    with ThreadPoolExecutor(len(runs)) as pool, ProgressDisplay() as display:
        try:
            for before, run in zip([None, *runs], runs, strict=False):
                while before and not futures[-1].done() and before.folder.transitions.count < ahead:
                    time.sleep(_POLL_S)
                futures.append(pool.submit(learn, run, display))
            while wait(futures, _POLL_S).not_done:  # a signal interrupts it
                pass
        except Interrupted as error:
            stop(error)
            wait(futures)
    return _outcomes(runs, futures, stop.reason)


def _outcomes(
    runs: Sequence[TrainingRun], futures: Sequence[Future[Trained]], reason: BaseException | None
) -> TrainedSeeds:
    """Those of the runs that could be summed up, and what ended the first."""
    outcomes = []
    for run, future in zip(runs, futures, strict=False):
        if (failure := future.exception()) is None:
            outcomes.append(future.result())
        elif failure is not reason:
            write_stderr(f"{run.name} was not summed up: {describe(failure)}")
    if reason and not outcomes:
        raise reason
    return outcomes, next((each.stopped for each in outcomes if each.stopped), reason)


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
    rules, models = mission_parts(
        mission,
        dispatcher,
        connection.roles,
        queries.train,
        seed=config.seed,
        encoder=encoder or open_encoder(mission.encoder, dispatcher, config.cache),
        answers=queries.answers,
    )
    envs = [QueryMutationEnv(rules, models, queries.train) for _ in range(config.num_processes)]
    every = (*queries.train, *queries.held_out, *queries.kept)
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
    saved = _open_lines(config, folder)
    if saved:
        check_fingerprints(found, folder)
    begin(config, folder, queries, connection)
    folder.write_json("parts.json", found)
    kept = f", {len(queries.kept)} kept from learning" if queries.kept else ""
    write_stderr(
        f"run folder {folder.path}: {config.driven_by}, {len(queries.train)} queries{kept}, "
        f"{config.total_steps:,} steps of at most {mission.most_calls_a_step} calls"
    )
    return TrainingRun(
        config=config,
        queries=queries,
        folder=folder,
        connection=connection,
        envs=envs,
        replies=replies,
        saved=saved,
    )


def _reward_files(reward: str) -> list[Path]:
    """The files of a reward of the user's own: that of a function, or those of a classifier."""
    if not is_own(reward):
        return []
    if ".py" in reward:
        return [Path(reward.rpartition(":")[0])]
    return [path for path in Path(reward).iterdir() if path.is_file() and path.name[0] != "."]


def begin(
    config: TrainConfig, folder: RunFolder, queries: QuerySet, connection: Connection
) -> None:
    """Write down what a run is: its queries, then its settings, with which it has begun.

    From then on the folder says how to resume it.
    """
    folder.write_json(QUERIES, queries.record())
    settings = replace(config, server=connection.resolve(config.server))
    folder.begin(resolved(settings), simulated=connection.simulated)
    folder.go_on = resume_line("train", folder.path, settings, copied=["queries"])


def _open_lines(config: TrainConfig, folder: RunFolder) -> dict[str, Any] | None:
    """Open the files that grow, and return what was saved of a run that is resumed.

    Raises:
        UserError: they are damaged, or the run is to end before where it is.
    """
    from train.learner import load_checkpoint

    saved = load_checkpoint(folder)
    if saved is None:
        folder.open_lines()
        return None
    folder.open_lines(**saved["lines"], lanes=config.num_processes, check=check_transition)
    if config.total_steps < (done := _done(folder)):
        raise UserError(
            f"--num-env-steps is {config.num_env_steps}, but {done} steps are done: raise it"
        )
    return saved


def _done(folder: RunFolder) -> int:
    """The steps that are recorded."""
    return folder.transitions.count + len(folder.transitions.ahead)


def _played_by(config: TrainConfig, connection: Connection) -> Summary:
    return {
        "algorithm": config.algorithm,
        "schedule": config.driven_by,
        "num_processes": config.num_processes,
        "target_model": connection.roles.target,
        "mutator_model": connection.roles.mutator,
    }


def summary_of_seeds(
    config: TrainConfig,
    connection: Connection,
    outcomes: Sequence[Trained],
    stopped: BaseException | None,
) -> Summary:
    """The runs in numbers: sums, rates as means over the seeds, and each seed's own.

    The intervals hold the seeds' part alone: all seeds met the same training queries.
    """
    runs = [outcome.summary for outcome in outcomes]
    summed = ("env_steps", "unscored_steps", "llm_calls", "retries", "completion_tokens")
    summary: Summary = {
        "simulated": connection.simulated,
        "stopped": str(stopped) if stopped else None,
        "seeds": [run["seed"] for run in runs],
        **{name: sum(run[name] for run in runs) for name in summed},
        "wall_s": max(run["wall_s"] for run in runs),
        **_played_by(config, connection),
        "runs": runs,
    }
    for name in (f"{kind}_{{}}_{end}" for kind in ("success", "refusal") for end in ENDS):
        rate = name.format("rate")
        found = [run[rate] for run in runs if run[rate] is not None]
        mean, low, high = mean_interval([[each] for each in found], least=0.0, most=1.0)
        enough = len(found) >= FEWEST_SEEDS
        summary[rate] = round(mean, 4) if found else None
        summary[name.format("interval")] = [round(low, 4), round(high, 4)] if enough else None
    return summary
