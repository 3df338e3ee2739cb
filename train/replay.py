"""A training run played again, its record the only server, and compared with what it wrote.

The run's `replies.sqlite` is copied into a new folder and answers every call; nothing is sent. A
step that a failed call left unscored is so again, from its line of transitions.jsonl. All else is
made anew (rewordings, embeddings, scores, actions, updates) and must come to the same lines and
weights. A run that was stopped is played up to where it was.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from envs.query_sets import QuerySet, recorded_queries
from envs.transitions import check_transition, transition_record
from ollama_utils.connect import Connection, Roles, ServerConfig
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import NotInLogError
from ollama_utils.model_client import ModelClient
from ollama_utils.monitor import CallMonitor
from ollama_utils.types import Call, Completion, Embeddings
from records.errors import RunStoppedError, UserError
from records.json_lines import LinesHash, differing
from records.resume import check_fingerprints
from records.run_folder import QUERIES, REPLIES, SUMMARY, RecordedRun, RunFolder, seed_folder
from train.config import TrainConfig
from train.learner import load_checkpoint
from train.policy import WEIGHTS, load_weights
from train.ppo import weights_sha256
from train.record import ProgressLine, Recorder
from train.run import Stop, TrainingRun, prepare

_MODEL = "model "
"""Begins the names of models in parts.json."""


class RecordOverError(RunStoppedError):
    """The replay is where the recorded run was stopped."""


class DifferenceError(RunStoppedError):
    """The replay comes out otherwise than the recorded run: where."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a run wrote that its replay is compared with."""

    run: RecordedRun
    lanes: int
    steps: int
    """The lines of transitions.jsonl in whole rows."""
    unscored: int
    """How many of them are unscored."""
    saved_steps: int
    """The lines before the checkpoint."""
    hashes: Mapping[str, str]
    """By what they are of: the lines; the weights, as each file has them."""

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines of transitions.jsonl in whole rows."""
        return islice(self.run.read_transitions(check_transition), self.steps)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What came of playing a run again."""

    run: str
    seed: int
    steps: int
    unscored: int
    """Steps that were taken from the record."""
    compared: list[dict[str, str]]
    """Of each hash `what` it is of, the `recorded` one and the `replayed` one."""
    difference: str | None
    """Where the replay first came out otherwise; None: nowhere."""


def replay(config: TrainConfig, run: Path, folder: Path) -> list[Replay]:
    """Play a run again into a folder, one of several seeds one seed after another, and compare.

    Args:
        config: its settings.
        run: its folder.
        folder: new or empty; it comes to be a run folder like any other.

    Raises:
        UserError: a part of the run is not there, or not what it was.
        RunStoppedError: what ended the replay before its time, if it was no difference.
    """
    config.mission.check()
    queries = recorded_queries(run / QUERIES)
    if config.seeds is None:
        return [_replay_one(config, run, folder, queries)]
    return [
        _replay_one(
            replace(config, seed=seed, seeds=None),
            seed_folder(run, seed),
            seed_folder(folder, seed),
            queries,
        )
        for seed in config.seeds_trained
    ]


def _replay_one(config: TrainConfig, path: Path, folder: Path, queries: QuerySet) -> Replay:
    """Play the run of one seed again."""
    recorded = _read_recorded(RecordedRun(path), config.num_processes)
    run = recorded.run
    # A limit that stopped the run stands in its record.
    config = replace(config, run_dir=folder, resume=None, max_unscored=1.0)
    with _connect_to_log(config.server, run) as connection, ExitStack() as stack:
        played = _prepare(config, run, queries, connection, stack)
        check_fingerprints(played.folder.read_json("parts.json"), run)
        for lane, env in enumerate(played.envs):
            lines = islice(recorded.lines(), lane, None, recorded.lanes)
            env.replay_unscored([line if line["unscored"] else None for line in lines])

        def show(recorder: Recorder) -> ProgressLine:
            monitor = CallMonitor(connection.dispatcher)
            return RowCheck(config.total_steps, recorder, monitor, recorded)

        outcome = played.learn(show, Stop(connection))
    stopped = outcome.stopped
    if stopped and not isinstance(stopped, RecordOverError | DifferenceError):
        raise stopped
    compared = []
    differences = [str(stopped)] if isinstance(stopped, DifferenceError) else []
    for what, sha256 in recorded.hashes.items():
        kind = "transitions_sha256" if "transitions" in what else "weights_sha256"
        now = outcome.summary[kind]
        compared.append({"what": what, "recorded": sha256, "replayed": now})
        if now != sha256:
            differences.append(f"{what}: the run has {sha256}, the replay {now}")
    return Replay(
        run=str(run.path),
        seed=config.seed,
        steps=recorded.steps,
        unscored=recorded.unscored,
        compared=compared,
        difference=differences[0] if differences else None,
    )


def _read_recorded(run: RecordedRun, lanes: int) -> Recorded:
    """What a run of so many lanes wrote.

    Raises:
        UserError: a file is missing or damaged, lines are missing, or there is no whole row.
    """
    lines = list(run.read_transitions(check_transition))
    steps = len(lines) // lanes * lanes
    saved = load_checkpoint(run)
    if not steps:
        raise UserError(
            f"the run {str(run.path)!r} has no whole row of transitions: nothing can be replayed"
        )
    if missing := run.missing_lines(steps):
        raise UserError(f"{missing}; put back what was there")
    sha256, summary = LinesHash(), run.summary()
    for line in lines[:steps]:
        sha256.update(line)
    hashes = {"transitions_sha256": sha256.hexdigest()}
    if saved:
        hashes["weights in last.pt"] = weights_sha256(saved["policy"])
    if summary.get("env_steps") == steps:
        hashes["transitions_sha256"] = str(summary.get("transitions_sha256"))
        hashes[f"weights_sha256 of {SUMMARY}"] = str(summary.get("weights_sha256"))
        hashes[f"weights in {WEIGHTS}"] = weights_sha256(load_weights(run.path / WEIGHTS))
    return Recorded(
        run=run,
        lanes=lanes,
        steps=steps,
        unscored=sum(line["unscored"] for line in lines[:steps]),
        saved_steps=saved["lines"]["transitions"] if saved else 0,
        hashes=hashes,
    )


class RowCheck(ProgressLine):
    """Compares each row of a replay with the recorded one; ends the replay where the record does.

    Args:
        total_steps: see `ProgressLine`.
        recorder: likewise.
        monitor: likewise.
        recorded: what the rows are compared with.
    """

    def __init__(
        self, total_steps: int, recorder: Recorder, monitor: CallMonitor, recorded: Recorded
    ) -> None:
        super().__init__(total_steps, recorder, monitor, name="replay")
        self._recorded, self._lines = recorded, recorded.lines()

    def _on_rollout_start(self) -> None:
        super()._on_rollout_start()
        self._end_here(is_updated=True)

    def _on_step(self) -> bool:
        for lane, (info, done) in enumerate(
            zip(self.locals["infos"], self.locals["dones"], strict=True)
        ):
            truncated = info["TimeLimit.truncated"]
            terminated = bool(done) and not truncated
            now = transition_record(
                self.recorder.rows - 1, lane, info, terminated=terminated, truncated=truncated
            )
            self._compare(now, next(self._lines, None))
        goes_on = super()._on_step()
        self._end_here(is_updated=False)
        return goes_on

    def _compare(self, now: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
        where = f"line {now['row'] * self._recorded.lanes + now['lane'] + 1} of transitions.jsonl"
        if before is None:
            raise DifferenceError(f"{where} is behind the end of the run, which went no further")
        if not (names := differing(before, now)):
            return
        if now["error"] == NotInLogError.__name__:
            raise DifferenceError(
                f"{where} cannot be played: {now['not_hashed']['error_message']} "
                "(another version of mutagym may ask otherwise)"
            )
        raise DifferenceError(f"{where} does not come out as it did: {', '.join(names)} changed")

    def _end_here(self, *, is_updated: bool) -> None:
        """End the replay where the run ended: behind its last row, or the update on it."""
        recorded = self._recorded
        if self.recorder.folder.transitions.count == recorded.steps and is_updated == (
            recorded.saved_steps == recorded.steps
        ):
            raise RecordOverError(f"replayed to step {recorded.steps}, where the run was stopped")


def _prepare(
    config: TrainConfig,
    run: RecordedRun,
    queries: QuerySet,
    connection: Connection,
    stack: ExitStack,
) -> TrainingRun:
    """The run, ready to learn in a folder that begins with its log of replies."""
    if not (run.path / REPLIES).is_file():
        raise UserError(
            f"{str(run.path / REPLIES)!r} is not there: without its replies no run can be replayed"
        )

    def open_folder() -> RunFolder:
        folder = RunFolder.of("replay", resume=None, run_dir=config.run_dir, seed=config.seed)
        for name in (REPLIES, f"{REPLIES}-wal"):  # what a process that was killed left beside it
            if (run.path / name).is_file():
                shutil.copyfile(run.path / name, folder.path / name)
        return folder

    return prepare(config, open_folder, queries, connection, stack, preflight=False)


@contextmanager
def _connect_to_log(config: ServerConfig, run: RecordedRun) -> Iterator[Connection]:
    """A connection that sends nothing: a call whose reply is in no log fails with NotInLogError.

    Raises:
        UserError: no target or no mutator is named.
    """
    target, mutator, judge = config.target_model, config.mutator_model, config.judge_model
    if not target or not mutator:
        raise UserError("the run's config.toml names no target-model or no mutator-model")
    parts = run.read_json("parts.json")
    available = {
        name.removeprefix(_MODEL): (str(digest),)
        for name, digest in parts.items()
        if name.startswith(_MODEL)
    }
    with Dispatcher(["the log of replies"], opener=_LogClient) as dispatcher:
        yield Connection(
            dispatcher=dispatcher,
            hosts=(),
            roles=Roles(target=target, mutator=mutator, judge=judge),
            available=available,
            simulated=run.simulated,
        )


class _LogClient(ModelClient):
    """Stands where a server's client would: what reaches it has no reply in the log."""

    def __init__(self, host: str, **_given: object) -> None:
        self.host = host

    def generate(self, call: Call, **_: object) -> Completion:
        """Raises NotInLogError, which names the call."""
        raise _not_in_log(call.model, call.prompt)

    def embed(self, model: str, texts: Sequence[str], **_: object) -> Embeddings:
        """Raises NotInLogError, which names the first text."""
        raise _not_in_log(model, texts[0])

    def models(self) -> dict[str, str]:
        """None: it is known which the run had."""
        return {}

    def abort(self) -> None:
        """There is no call under way."""

    def close(self) -> None:
        """There is nothing to close."""


def _not_in_log(model: str, text: str) -> NotInLogError:
    start = textwrap.shorten(text, 60, placeholder=" …")
    return NotInLogError(f"replies.sqlite has no reply to this call to model {model!r}: {start!r}")
