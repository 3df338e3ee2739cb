"""Training runs, from an open connection to their summaries: one, or several seeds side by side.

A run can be killed at any moment: each reply is on disk before it is used, and the checkpoint is
that of the last update. To be stopped is to be killed politely, and to be resumed is to be played
on from the checkpoint, the log of replies answering what was paid for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
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
from ollama_utils.connect import Connection, keep_replies
from ollama_utils.encoders import Encoder
from ollama_utils.errors import EncodingError, OllamaError
from ollama_utils.monitor import CallMonitor
from ollama_utils.on_ray import EngineConfig
from ollama_utils.reply_log import ReplyLog
from records.errors import RunStoppedError, UserError, describe
from records.interrupt import Interrupted
from records.json_lines import LinesHash
from records.progress import ProgressDisplay
from records.resume import check_fingerprints, check_options, file_fingerprints, resume_line
from records.run_folder import CONFIG, QUERIES, REPLIES, SUMMARY, RunFolder, seed_folder
from records.settings import resolved
from records.terminal import write_stderr
from scorers.correction import LabelAccuracy
from scorers.statistics import FEWEST_SEEDS, mean_interval
from train.config import MAY_CHANGE, TrainConfig
from train.summary import ENDS, rates

if TYPE_CHECKING:
    from train.learner import Learner
    from train.record import ProgressLine, Recorder

LAST_CALLS_S = 5.0
"""How long calls under way are waited for when a run is stopped."""
_POLL_S = 0.1
Summary = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a run."""

    summary: Summary
    stopped: BaseException | None
    """What ended it before its time."""
    gain: str = ""
    """What was found of the gain, for people; empty where no queries are kept."""


class Stop:
    """Ends trainings that share servers: what ends one before its time ends them all.

    Args:
        connections: each training's to these servers; each counts calls under way of its own.
    """

    def __init__(self, *connections: Connection) -> None:
        self._dispatchers = [connection.dispatcher for connection in connections]
        self._lock = threading.Lock()
        self._name = ""
        self.reason: BaseException | None = None
        """What ended the first; None: nothing has."""

    def __call__(self, reason: BaseException, name: str = "") -> BaseException:
        """End all calls: no new ones, and those under way within LAST_CALLS_S.

        Args:
            reason: what ended a training; a call that was cancelled is none where there is another.
            name: the training's, where there are several.

        Returns:
            Why that training ended.
        """
        with self._lock:
            is_first = self.reason is None
            self.reason = self.reason or reason
            self._name = name if is_first else self._name
        if is_first:
            end_s = time.monotonic() + LAST_CALLS_S
            for dispatcher in self._dispatchers:
                dispatcher.cancel()
                dispatcher.drain(end_s - time.monotonic())
            for dispatcher in self._dispatchers:
                dispatcher.close()
            return reason
        if isinstance(self.reason, Interrupted):
            return self.reason
        return RunStoppedError(f"stopped with {self._name}: {self.reason}")


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
    """The checkpoint of a run that is gone on with."""
    name: str = ""
    """What it is called where there are several."""

    def learn(
        self,
        show: Callable[[Recorder], ProgressLine],
        stop: Stop,
        accuracy: LabelAccuracy | None = None,
    ) -> Outcome:
        """Learn, write the policy and sum up, whatever ends it.

        Args:
            show: makes what shows how far it is.
            stop: is called with what ends it before its time.
            accuracy: how often the labels are right, where that is known.

        Raises:
            UserError: the state that was saved is not of this run, or the folder cannot be written.
        """
        from train.gain import Looks  # torch takes long to import: not before all is checked
        from train.learner import Learner
        from train.record import Recorder

        config, folder = self.config, self.folder
        recorder = Recorder(folder, self.connection.dispatcher, config)
        learner = Learner(config, self.envs, folder, self.saved)
        if self.queries.kept:
            alone = config.driven_by == "sequential"
            workers = 1 if alone else config.max_workers or config.num_processes
            kept = self.queries.kept
            learner.looks = Looks(config, kept, self.envs[0], max_workers=workers, name=self.name)
        if self.saved:
            self._go_on(self.saved, learner, recorder)
        progress = show(recorder)
        ended: BaseException | None = None
        try:
            learner.learn(recorder, progress)
        except (Interrupted, Exception) as error:  # noqa: BLE001 - what was done is kept
            ended = folder.reported(stop(error, self.name))
        finally:
            progress.stop()
        try:
            learner.save_policy("policy")
            summary = self._summary(learner, recorder, ended, accuracy)
            folder.write_json(SUMMARY, summary)
        except OSError as error:
            raise folder.reported(error) from ended or error
        gain = learner.looks.record.text() if learner.looks else ""
        return Outcome(summary=summary, stopped=ended, gain=gain)

    def _go_on(self, saved: Mapping[str, Any], learner: Learner, recorder: Recorder) -> None:
        """Put the state back."""
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
        write_stderr(f"resumed at step {_done(self.folder)} of {self.config.total_steps}")

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
        lines = LinesHash()  # of whole rows: it may have been stopped within one
        for line in islice(self.folder.transitions.read(), count):
            lines.update(line)
        spent = self.replies.totals()
        slots = {
            f"{model} at {host}": found.slots
            for (host, model), found in dispatcher.servers.capacities().items()
            if found.slots
        }
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
            "algorithm": config.algorithm,
            "schedule": config.driven_by,
            "num_processes": config.num_processes,
            "seed": config.seed,
            "target_model": self.connection.roles.target,
            "mutator_model": self.connection.roles.mutator,
            "llm_calls": spent["calls"],
            "cache_hits": None if config.resume else int(dispatcher.totals()["cache_hits"]),
            "retries": spent["retries"],
            **{name: count for name, count in spent.items() if name.endswith("_tokens")},
            "slots": slots,
            "transitions_sha256": lines.hexdigest(),
            "weights_sha256": weights_sha256(learner.weights),
        }


def train_one(
    config: TrainConfig,
    queries: QuerySet,
    connection: Connection,
    accuracy: LabelAccuracy | None,
    stack: ExitStack,
) -> tuple[RunFolder, Outcome]:
    """Train one, or go on with it; returns its folder, and what came of it.

    Raises:
        UserError: a part cannot be made, or the folder cannot be used.
    """
    places = {"resume": config.resume, "run_dir": config.run_dir}
    run = prepare(
        config,
        partial(RunFolder.of, "train", **places, seed=config.seed),
        queries,
        connection,
        stack,
    )

    def show(recorder: Recorder) -> ProgressLine:
        from train.record import ProgressLine

        lanes, slots = config.num_processes, connection.slots_setting
        monitor = CallMonitor(connection.dispatcher, lanes=lanes, slots_setting=slots)
        return ProgressLine(config.total_steps, recorder, monitor)

    return run.folder, run.learn(show, Stop(connection), accuracy)


def train_seeds(
    config: TrainConfig,
    queries: QuerySet,
    connection: Connection,
    accuracy: LabelAccuracy | None,
    stack: ExitStack,
) -> tuple[RunFolder, Outcome]:
    """Train several seeds, a thread each on the same servers, or go on with them.

    Each comes out as it does alone. Returns the folder of all, and what came of them together.

    Raises:
        UserError: a part cannot be made, or a folder cannot be used.
    """
    places = {"resume": config.resume, "run_dir": config.run_dir}
    folder = stack.enter_context(RunFolder.of("train", **places, seed="seeds"))
    mission = config.mission
    # A server's embeddings are calls, which belong to the run that is to find them in its log.
    is_shared = not mission.encoder.startswith("ollama:")
    encoder = None
    if is_shared:
        encoder = open_encoder(mission.encoder, connection.dispatcher, config.cache)
    runs = []
    for seed in config.seeds_trained:
        alone = seed_config(config, folder.path, seed)
        resumes = alone.resume is not None
        opener = partial(RunFolder, seed_folder(folder.path, seed), resume=resumes)
        own = replace(connection, dispatcher=connection.dispatcher.beside())
        run = prepare(alone, opener, queries, own, stack, encoder)
        run.folder.go_on = ""  # that of all says how
        runs.append(replace(run, name=f"seed {seed}"))
        if seed == config.seed:
            begin(config, folder, queries, connection)
    outcomes, stopped = _learn_together(runs, connection, accuracy)
    summary = summary_of_seeds(config, connection, outcomes, stopped)
    folder.write_json(SUMMARY, summary)
    gain = "".join(f"seed {each.summary['seed']}: {each.gain}" for each in outcomes if each.gain)
    return folder, Outcome(summary=summary, stopped=stopped, gain=gain)


def seed_config(config: TrainConfig, folder: Path, seed: int) -> TrainConfig:
    """The settings of one seed's run, which begins, or goes on where it has begun.

    Args:
        config: of all seeds.
        folder: of all seeds.
        seed: its seed.

    Raises:
        UserError: it has begun with other settings.
    """
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


def _learn_together(
    runs: Sequence[TrainingRun], connection: Connection, accuracy: LabelAccuracy | None
) -> tuple[list[Outcome], BaseException | None]:
    """Have the runs learn, a thread each; returns what came of them, and what ended them early.

    Where one ends a rollout, its last lanes leave slots to the others. So they begin one after
    another, each when the one before is its share of a rollout ahead: else all would end at once.

    Raises:
        BaseException: what ended them, if none of them could be summed up.
    """
    from train.record import ProgressLine

    stop = Stop(*(run.connection for run in runs))
    results: dict[str, Outcome | BaseException] = {}
    monitor = CallMonitor(
        *(run.connection.dispatcher for run in runs),
        lanes=sum(run.config.num_processes for run in runs),
        slots_setting=connection.slots_setting,
    )
    config = runs[0].config
    ahead = config.rows_of_rollout * config.num_processes // len(runs)

    def learn(run: TrainingRun, display: ProgressDisplay) -> None:
        def show(recorder: Recorder) -> ProgressLine:
            beside = ProgressDisplay(beside=display)
            return ProgressLine(config.total_steps, recorder, monitor, beside, run.name)

        try:
            results[run.name] = run.learn(show, stop, accuracy)
        except BaseException as error:  # noqa: BLE001 - raised below
            stop(error, run.name)
            results[run.name] = error

    with ProgressDisplay() as display:
        threads = [threading.Thread(target=learn, args=(run, display)) for run in runs]
        try:
            for place, thread in enumerate(threads):
                while place and _is_behind(runs[place - 1], ahead, results):
                    time.sleep(_POLL_S)
                thread.start()
            _wait_for(runs, threads, results)
        except Interrupted as error:
            stop(error)
            _wait_for(runs, threads, results)
    return _outcomes(runs, results, stop.reason)


def _wait_for(
    runs: Sequence[TrainingRun], threads: Sequence[threading.Thread], results: Mapping[str, object]
) -> None:
    """Wait for the runs whose threads were started.

    Not by `join`: Python 3.11 takes a thread for ended once a signal has interrupted its `join`.
    """
    begun = [run for run, thread in zip(runs, threads, strict=True) if thread.ident is not None]
    while any(run.name not in results for run in begun):
        time.sleep(_POLL_S)


def _is_behind(run: TrainingRun, ahead: int, results: Mapping[str, object]) -> bool:
    """Whether a run is under way and has not come so many steps far."""
    return run.name not in results and run.folder.transitions.count < ahead


def _outcomes(
    runs: Sequence[TrainingRun],
    results: Mapping[str, Outcome | BaseException],
    reason: BaseException | None,
) -> tuple[list[Outcome], BaseException | None]:
    """Those of the runs that could be summed up, and what ended the first."""
    outcomes = [each for run in runs if isinstance(each := results.get(run.name), Outcome)]
    for name, each in results.items():
        if isinstance(each, BaseException) and each is not reason:
            write_stderr(f"{name} was not summed up: {describe(each)}")
    if reason and not outcomes:
        raise reason
    reported = {str(each.stopped): each.stopped for each in outcomes if each.stopped}
    return outcomes, reported.get(str(reason), reason)


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

    Args:
        config: its settings.
        open_folder: opens its folder, once the models are known to be there.
        queries: its queries.
        connection: to its models.
        stack: closes what was opened.
        encoder: one that is open already; None: the one that the config names.
        preflight: whether the queries' lengths are checked, and each model is asked first.

    Raises:
        UserError: a part cannot be made, or is not what the run that is gone on with began with.
    """
    mission, dispatcher = config.mission, connection.dispatcher
    digests = connection.digests(mission.encoder)
    folder = stack.enter_context(open_folder())
    replies = stack.enter_context(ReplyLog(folder.path / REPLIES, digests=digests))
    keep_replies(replies, config.cache, connection, digests, stack)
    env_config, parts = mission_parts(
        mission,
        dispatcher,
        connection.roles,
        queries.train,
        seed=config.seed,
        encoder=encoder or open_encoder(mission.encoder, dispatcher, config.cache),
        answers=queries.answers,
    )
    envs = [QueryMutationEnv(env_config, **parts) for _ in range(config.num_processes)]
    every = (*queries.train, *queries.held_out, *queries.kept)
    if preflight:
        texts = [query.text for query in every]
        check_lengths(parts["encoder"], texts, mission.query_set)
        ask_first(envs[0].models, envs[0].rules.mutators, texts)
    found = {
        **{f"model {name}": digest for name, digest in digests.items()},
        **file_fingerprints(
            "mutators", {name.rpartition(":")[0] for name in mission.mutators if ":" in name}
        ),
        **file_fingerprints("rubric", filter(None, [mission.judge_rubric])),
        **encoder_fingerprint(mission.encoder, parts["encoder"]),
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


def begin(
    config: TrainConfig, folder: RunFolder, queries: QuerySet, connection: Connection
) -> None:
    """Write down what a run is: its queries, then its settings, with which it has begun.

    From then on the folder says how to go on with it.
    """
    folder.write_json(QUERIES, queries.record())
    settings = replace(config, server=connection.resolve(config.server))
    folder.begin(resolved(settings), simulated=connection.simulated)
    folder.go_on = resume_line("train", folder.path, settings, copied=["queries"])


def _open_lines(config: TrainConfig, folder: RunFolder) -> dict[str, Any] | None:
    """Open the files that grow, and return what was saved of a run that is gone on with.

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


def summary_of_seeds(
    config: TrainConfig,
    connection: Connection,
    outcomes: Sequence[Outcome],
    stopped: BaseException | None,
) -> Summary:
    """The runs in numbers: sums, rates as means over the seeds, and each seed's own.

    The intervals hold the seeds' part alone: all seeds met the same training queries.
    """
    runs = [outcome.summary for outcome in outcomes]
    summed = ("env_steps", "unscored_steps", "llm_calls", "retries", "completion_tokens")
    found: Summary = {}
    for end in ENDS:
        found |= _over_seeds(runs, "success", end)
        found |= _over_seeds(runs, "refusal", end)
    return {
        "simulated": connection.simulated,
        "stopped": str(stopped) if stopped else None,
        "seeds": [run["seed"] for run in runs],
        **{name: sum(run[name] for run in runs) for name in summed},
        "wall_s": max(run["wall_s"] for run in runs),
        **found,
        "algorithm": config.algorithm,
        "schedule": config.driven_by,
        "num_processes": config.num_processes,
        "target_model": connection.roles.target,
        "mutator_model": connection.roles.mutator,
        "runs": runs,
    }


def _over_seeds(runs: Sequence[Summary], name: str, end: str) -> Summary:
    """A rate's mean over the seeds that have one, and from five on its interval; else None."""
    found = [rate for run in runs if (rate := run[f"{name}_rate_{end}"]) is not None]
    mean, low, high = mean_interval([[rate] for rate in found], least=0.0, most=1.0)
    return {
        f"{name}_rate_{end}": round(mean, 4) if found else None,
        f"{name}_interval_{end}": [round(low, 4), round(high, 4)]
        if len(found) >= FEWEST_SEEDS
        else None,
    }
