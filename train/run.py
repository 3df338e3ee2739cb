"""One training run, from an open connection to its summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from envs.episode import check_transition
from envs.mission import QuerySet, open_encoder
from ollama_utils.connect import Connection, keep_replies
from ollama_utils.encoders import Encoder
from ollama_utils.errors import EncodingError, OllamaError
from ollama_utils.monitor import CallMonitor
from ollama_utils.reply_log import ReplyLog
from records.interrupt import Interrupt, Interrupted
from records.resume import check_fingerprints, resume_line
from records.run_folder import QUERIES, REPLIES, SUMMARY, RunFolder
from records.settings import resolved
from records.terminal import one_line, write_stderr
from train.audit import Audit, open_audit
from train.config import TrainConfig
from train.resume import check_total, fingerprints, go_on

if TYPE_CHECKING:
    from envs.batched import BatchedQueryMutationEnv
    from scorers.correction import LabelAccuracy
    from train.learner import Learner
    from train.recorder import ProgressLine, Recorder


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a run."""

    summary: dict[str, Any]
    stopped: BaseException | None
    """What ended it before its time."""
    gain: str = ""
    """What was found of the gain, for people; empty where no queries are kept."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A run that is ready to learn; its config.toml is written. See `prepare`."""

    config: TrainConfig
    queries: QuerySet
    folder: RunFolder
    connection: Connection
    interrupt: Interrupt
    env: BatchedQueryMutationEnv
    audit: Audit | None
    replies: ReplyLog
    saved: Mapping[str, Any] | None
    """The checkpoint of a run that is gone on with."""
    name: str = ""
    """What it is called where there are several."""

    def learn(
        self,
        show: Callable[[Recorder], ProgressLine],
        accuracy: LabelAccuracy | None,
        cancel: Callable[[BaseException], None],
    ) -> Outcome:
        """Learn, save the policy and sum up, whatever ends it.

        Args:
            show: makes what shows how far it is.
            accuracy: how often the labels are right, where that is known.
            cancel: is given what ended the run early: no call is to go out any more.

        Raises:
            UserError: the state that was saved is not of this run, or the folder cannot be written.
        """
        from train.recorder import Recorder  # torch takes long to import: not before all is checked

        dispatcher, limit = self.connection.dispatcher, self.config.max_unscored
        recorder = Recorder(self.folder, dispatcher, self.interrupt, limit, self.audit)
        learner, ended = self._learn(recorder, show, cancel)
        return self._finish(learner, recorder, accuracy, ended)

    def _learn(
        self,
        recorder: Recorder,
        show: Callable[[Recorder], ProgressLine],
        cancel: Callable[[BaseException], None],
    ) -> tuple[Learner, BaseException | None]:
        """Learn; returns the learner, whatever ended it, and what that was."""
        from train.kept import open_looks
        from train.learner import make_learner

        interrupt, saved = self.interrupt, self.saved
        interrupt.allow(allowed=True)  # nothing is written yet, and embeddings may be long in coming
        learner = make_learner(self.config, self.env, self.folder, saved)
        learner.looks = open_looks(self.config, self.queries.kept, self.env, interrupt, self.name)
        if saved:
            go_on(saved, learner, recorder)
        interrupt.allow(allowed=False)
        progress = show(recorder)
        ended: BaseException | None = None
        try:
            interrupt.allow(allowed=True)
            learner.learn(recorder, progress)
        except (Interrupted, Exception) as error:  # noqa: BLE001 - whatever it was, what was done is kept
            ended = interrupt.reason or error  # a call that was cancelled is no reason
            cancel(ended)
        finally:
            interrupt.allow(allowed=False)
            progress.stop()
        return learner, ended

    def _show_queries(self) -> None:
        """Write what TensorBoard's projector shows; it is no loss where an embedding is not to be had now."""
        from train.board import write_projector

        try:
            write_projector(self.folder, self.env.envs[0].answerer.encoder)
        except (EncodingError, OllamaError) as error:
            write_stderr(f"note: TensorBoard's projector shows no queries: {one_line(str(error))}")

    def _finish(
        self,
        learner: Learner,
        recorder: Recorder,
        accuracy: LabelAccuracy | None,
        ended: BaseException | None,
    ) -> Outcome:
        """Save the policy, and sum up the run."""
        from train.summary import summarise

        folder = self.folder
        try:
            learner.save("policy")
            stopped = ended and folder.reported(ended)
            summary = summarise(
                self.config, self.connection, learner, recorder, accuracy, stopped, self.replies
            )
            folder.write_json(SUMMARY, summary)
            self._show_queries()
        except OSError as error:
            raise folder.reported(error) from ended or error
        gain = learner.looks.record.text() if learner.looks else ""
        return Outcome(summary=summary, stopped=stopped, gain=gain)


def train_one(
    config: TrainConfig,
    queries: QuerySet,
    connection: Connection,
    interrupt: Interrupt,
    accuracy: LabelAccuracy | None,
    stack: ExitStack,
) -> tuple[RunFolder, Outcome]:
    """Train one, or go on with it; returns its folder, and what came of it.

    Raises:
        UserError: a part cannot be made, or the folder cannot be used.
    """
    opener = partial(RunFolder.of, "train", resume=config.resume, run_dir=config.run_dir, seed=config.seed)
    run = prepare(config, opener, queries, connection, interrupt, stack)
    run.folder.go_on = how_to_go_on(config, run.folder, connection)

    def show(recorder: Recorder) -> ProgressLine:
        from train.recorder import ProgressLine

        monitor = CallMonitor(
            connection.dispatcher, lanes=config.num_processes, slots_setting=connection.slots_setting
        )
        return ProgressLine(config.total_steps, recorder, monitor)

    return run.folder, run.learn(show, accuracy, lambda _why: connection.dispatcher.cancel())


def prepare(
    config: TrainConfig,
    open_folder: Callable[[], RunFolder],
    queries: QuerySet,
    connection: Connection,
    interrupt: Interrupt,
    stack: ExitStack,
    encoder: Encoder | None = None,
    *,
    preflight: bool = True,
) -> TrainingRun:
    """Make and check all that a run needs, then write down what it is, config.toml first.

    From the first file on it is not to be interrupted.

    Args:
        config: its settings.
        open_folder: opens its folder, once the models are known to be there.
        queries: its queries.
        connection: to its models.
        interrupt: how it is stopped.
        stack: closes what was opened.
        encoder: one that is open already; None: the one that the config names.
        preflight: whether the queries' lengths are checked, and each model is asked its first question.

    Raises:
        UserError: a part cannot be made, or is not what the run that is gone on with began with.
    """
    audit = open_audit(config, connection)
    digests = connection.digests(config.mission.encoder, *filter(None, [config.audit.audit_judge]))
    folder = stack.enter_context(open_folder())
    replies = stack.enter_context(ReplyLog(folder.path / REPLIES, digests=digests))
    keep_replies(replies, config.cache, connection, digests, stack)
    env = _environment(config, queries, connection, encoder)
    stack.callback(env.close, terminate=True)
    if preflight:
        from envs.preflight import ask_first, check_lengths

        answerer = env.envs[0].answerer
        texts = [query.text for query in (*queries.train, *queries.held_out, *queries.kept)]
        check_lengths(answerer.encoder, texts, config.mission.query_set)
        ask_first(answerer, env.envs[0].rules.mutators, texts)
    interrupt.allow(allowed=False)  # the folder is to be whole, whenever the run ends
    found = fingerprints(config, queries, env, digests)
    saved = _begin(config, folder, queries, connection, found)
    return TrainingRun(
        config=config,
        queries=queries,
        folder=folder,
        connection=connection,
        interrupt=interrupt,
        env=env,
        audit=audit,
        replies=replies,
        saved=saved,
    )


def begin(config: TrainConfig, folder: RunFolder, queries: QuerySet, connection: Connection) -> None:
    """Write down what a run is: its queries, then its settings, with which it has begun."""
    folder.write_json(QUERIES, queries.record())
    settings = replace(config, server=connection.resolve(config.server))
    folder.begin(resolved(settings), simulated=connection.simulated)


def how_to_go_on(config: TrainConfig, folder: RunFolder, connection: Connection) -> str:
    """The line that says how; the run's queries are in its folder."""
    settings = replace(config, server=connection.resolve(config.server))
    return resume_line("train", folder.path, settings, copied=["queries"])


def _environment(
    config: TrainConfig, queries: QuerySet, connection: Connection, encoder: Encoder | None
) -> BatchedQueryMutationEnv:
    """The vector environment, with every part of it checked."""
    from envs.batched import BatchedQueryMutationEnv
    from envs.parts import mission_parts

    dispatcher = connection.dispatcher
    texts = [query.text for query in queries.train]
    encoder = encoder or open_encoder(config.mission.encoder, dispatcher, config.cache)
    env_config, parts = mission_parts(
        config.mission, dispatcher, connection.roles, texts, seed=config.seed, encoder=encoder
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
    """Write down what the run is; returns what was saved of a resumed one."""
    from train.learner import load_checkpoint

    saved = load_checkpoint(folder)
    again = saved["lines"] | {"lanes": config.num_processes, "check": check_transition} if saved else {}
    folder.open_lines(**again)
    if saved:
        check_total(config, saved, folder)
        check_fingerprints(found, folder)
    begin(config, folder, queries, connection)
    folder.write_json("parts.json", found)
    kept = f", {len(queries.kept)} kept from learning" if queries.kept else ""
    cost = f"{config.total_steps:,} steps of at most {config.mission.most_calls_a_step} calls"
    write_stderr(f"run folder {folder.path}: {config.driven_by}, {len(queries.train)} queries{kept}, {cost}")
    return saved
