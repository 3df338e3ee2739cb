"""A training run played again from its own log of replies, and held against what it wrote.

The run's `replies.sqlite` is copied into a new folder and answers every call: nothing is sent. So it does not
matter whether its server would answer the same again. A step that a failed call made unscored is played from
its line of transitions.jsonl: in the log an equal call of another moment may have its reply. Everything else
is made anew (rewordings, embeddings, scores, actions, updates) and must come to the same lines and weights.

A run that was stopped is played up to where it was.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from envs.episode import check_transition, transition_record
from envs.mission import QuerySet
from ollama_utils.connect import Connection, Roles, ServerConfig
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import NotInLogError
from ollama_utils.model_client import ModelClient
from ollama_utils.monitor import CallMonitor
from ollama_utils.types import Call, Completion, Embeddings
from records.errors import RunStoppedError, UserError
from records.interrupt import Interrupt
from records.json_lines import LinesHash, differing
from records.resume import check_fingerprints
from records.run_folder import REPLIES, SUMMARY, RecordedRun, RunFolder
from train.config import TrainConfig
from train.learner import load_checkpoint
from train.policy_file import WEIGHTS, load_weights
from train.ppo import weights_sha256
from train.recorder import ProgressLine, Recorder
from train.run import TrainingRun, prepare

Record = Mapping[str, Any]
_HASHES = ("transitions_sha256", "weights_sha256")
"""What summary.json has of the last line and the last policy."""
_MODEL = "model "
"""Begins the names of models in parts.json."""


class RecordOverError(RunStoppedError):
    """The replay is where the recorded run was stopped."""


class DifferenceError(RunStoppedError):
    """The replay comes out otherwise than the recorded run: where."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a run wrote that its replay is held against."""

    run: RecordedRun
    steps: int
    """The lines of transitions.jsonl in whole rows."""
    lanes: int
    transitions_sha256: str
    """Of these lines, as summary.json has it, or counted where that is of another moment."""
    weights_sha256: str | None
    """Of the last policy; None where no summary.json is of the last line."""
    saved_steps: int | None
    """The lines before the checkpoint; None where there is none."""
    saved_sha256: str | None
    """Of the weights in the checkpoint."""
    file_sha256: str | None
    """Of the weights in policy.safetensors, the file that is used; None where it is of another moment, or
    there is none."""
    unscored: int
    """How many of the lines are unscored: these are played from the record."""
    simulated: bool

    def lines(self) -> Iterator[Record]:
        """The lines of transitions.jsonl in whole rows."""
        return islice(self.run.read_transitions(check_transition), self.steps)

    def rows_unscored(self) -> Iterator[list[Record | None]]:
        """For each row the lines of its unscored steps, and None for the others."""
        lines = self.lines()
        while row := list(islice(lines, self.lanes)):
            yield [line if line["unscored"] else None for line in row]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One thing of a run and of its replay."""

    what: str
    recorded: str
    replayed: str | None
    """None where the replay did not come so far."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What came of playing a run again."""

    run: str
    seed: int
    steps: int
    unscored: int
    """Steps that were taken from the record."""
    compared: list[Compared]
    difference: str | None
    """Where the replay first came out otherwise; None: nowhere."""

    @property
    def equal(self) -> bool:
        """Whether all that was compared is equal."""
        return self.difference is None

    def as_data(self) -> dict[str, Any]:
        """As plain data."""
        return {"equal": self.equal} | asdict(self)


def read_recorded(run: RecordedRun, lanes: int) -> Recorded:
    """What a run of so many lanes wrote.

    Raises:
        UserError: a file is missing or damaged, lines are missing, or there is no whole row.
    """
    count, sha256, unscored = _count(run, lanes)
    if not count:
        raise UserError(f"the run {str(run.path)!r} has no whole row of transitions: nothing can be replayed")
    if missing := run.missing_lines(count):
        raise UserError(f"{missing}; put back what was there")
    summary = run.summary()
    is_of_last = summary.get("env_steps") == count
    for name in _HASHES if is_of_last else ():
        if not isinstance(summary.get(name), str):
            raise UserError(f"{str(run.path / SUMMARY)!r} has no {name}: nothing can be held against it")
    saved = load_checkpoint(run)
    return Recorded(
        run=run,
        steps=count,
        lanes=lanes,
        transitions_sha256=summary["transitions_sha256"] if is_of_last else sha256,
        weights_sha256=summary["weights_sha256"] if is_of_last else None,
        saved_steps=saved["lines"]["transitions"] if saved else None,
        saved_sha256=_saved_sha256(run, saved) if saved else None,
        file_sha256=_file_sha256(run) if is_of_last else None,
        unscored=unscored,
        simulated=run.simulated,
    )


def replay(
    config: TrainConfig, recorded: Recorded, folder: Path, queries: QuerySet, interrupt: Interrupt
) -> Replay:
    """Play a run again into a folder, and compare.

    Args:
        config: its settings.
        recorded: what it wrote.
        folder: new or empty; it comes to be a run folder like any other.
        queries: its queries.
        interrupt: how the replay is stopped.

    Raises:
        UserError: a part of the run is not there, or not what it was.
        RunStoppedError: what ended the replay before its time, if it was no difference.
    """
    path, server = recorded.run.path, config.server
    with (
        _connect_to_log(server, _digests(recorded.run), simulated=recorded.simulated) as connection,
        ExitStack() as stack,
    ):
        run = _prepare(replace(config, run_dir=folder), path, queries, connection, interrupt, stack)
        check_fingerprints(run.folder.read_json("parts.json"), recorded.run)
        run.env.replay(recorded.rows_unscored())
        checks: list[RowCheck] = []

        def show(recorder: Recorder) -> ProgressLine:
            monitor = CallMonitor(connection.dispatcher)
            checks.append(RowCheck(config.total_steps, recorder, monitor, name="replay"))
            checks[0].hold_against(recorded)
            return checks[0]

        outcome = run.learn(show, None, lambda _why: connection.dispatcher.cancel())
    if outcome.stopped and not isinstance(outcome.stopped, RecordOverError | DifferenceError):
        raise outcome.stopped
    difference = str(outcome.stopped) if isinstance(outcome.stopped, DifferenceError) else None
    compared = _compare(recorded, outcome.summary, checks[0].saved_sha256)
    return Replay(
        run=str(path),
        seed=config.seed,
        steps=recorded.steps,
        unscored=recorded.unscored,
        compared=compared,
        difference=difference or _first_difference(compared),
    )


class RowCheck(ProgressLine):
    """Holds each row of a replay against the recorded one, and ends the replay where the record does."""

    def hold_against(self, recorded: Recorded) -> None:
        """Say what the rows are held against; before the first one."""
        self._recorded = recorded
        self._lines = recorded.lines()
        self._rollout_rows = 0
        self.saved_sha256: str | None = None
        """Of the weights where the checkpoint of the recorded run was made."""

    def _on_rollout_start(self) -> None:
        super()._on_rollout_start()
        self._rollout_rows = 0
        done = self.recorder.folder.transitions.count
        if done == self._recorded.saved_steps:
            self.saved_sha256 = weights_sha256(self.model.policy)
        if done == self._recorded.steps:
            raise self._over()

    def _on_step(self) -> bool:
        infos, dones = self.locals["infos"], self.locals["dones"]
        for lane, (info, done) in enumerate(zip(infos, dones, strict=True)):
            record = transition_record(self.recorder.rows - 1, lane, info, bool(done))
            self._check(record, next(self._lines, None))
        self._rollout_rows += 1
        if self.recorder.folder.transitions.count == self._recorded.steps and self._ends_here():
            raise self._over()
        return super()._on_step()

    def _check(self, record: Record, before: Record | None) -> None:
        number = record["row"] * self._recorded.lanes + record["lane"] + 1
        where = f"line {number} of transitions.jsonl"
        if before is None:
            raise DifferenceError(f"{where} is behind the end of the run, which went no further")
        if names := differing(before, record):
            why = f"does not come out as it did: {', '.join(names)} changed"
            if record["error"] == NotInLogError.__name__:
                said = record["not_hashed"]["error_message"]
                why = f"cannot be played: {said} (another version of mutagym may ask otherwise)"
            raise DifferenceError(f"{where} {why}")

    def _ends_here(self) -> bool:
        """Whether the run was stopped right behind its last row, and not behind an update on that."""
        recorded = self._recorded
        if self._rollout_rows < self.model.n_steps:  # type: ignore[attr-defined] # of MaskedRollouts
            return True
        if recorded.weights_sha256 is None:
            return recorded.saved_steps != recorded.steps
        return recorded.weights_sha256 == weights_sha256(self.model.policy)

    def _over(self) -> RecordOverError:
        return RecordOverError(f"replayed to step {self._recorded.steps}, where the run was stopped")


def _prepare(
    config: TrainConfig,
    path: Path,
    queries: QuerySet,
    connection: Connection,
    interrupt: Interrupt,
    stack: ExitStack,
) -> TrainingRun:
    """The run, ready to learn in a folder that begins with its log of replies."""

    def open_folder() -> RunFolder:
        folder = RunFolder.of("replay", resume=None, run_dir=config.run_dir, seed=config.seed)
        _copy_log(path, folder.path)
        return folder

    run = prepare(config, open_folder, queries, connection, interrupt, stack, preflight=False)
    # A limit that stopped the run stands in its record; and where it was resumed, failures counted anew.
    return replace(run, config=replace(run.config, max_unscored=1.0))


def _copy_log(path: Path, folder: Path) -> None:
    """Copy the log of replies, with what a process that was killed left beside it."""
    if not (path / REPLIES).is_file():
        raise UserError(f"{str(path / REPLIES)!r} is not there: without its replies no run can be replayed")
    for name in (REPLIES, f"{REPLIES}-wal"):
        if (path / name).is_file():
            shutil.copyfile(path / name, folder / name)


def _count(run: RecordedRun, lanes: int) -> tuple[int, str, int]:
    """The lines in whole rows, their hash, and how many of them are unscored."""
    sha256 = LinesHash()
    done, unscored = (0, "", 0), 0
    for count, line in enumerate(run.read_transitions(check_transition), start=1):
        sha256.update(line)
        unscored += line["unscored"]
        if count % lanes == 0:
            done = count, sha256.hexdigest(), unscored
    return done


def _digests(run: RecordedRun) -> dict[str, str]:
    """What stands for the weights of each model that the run called, by its short name."""
    parts = run.read_json("parts.json")
    return {name.removeprefix(_MODEL): str(of) for name, of in parts.items() if name.startswith(_MODEL)}


def _file_sha256(run: RecordedRun) -> str | None:
    path = run.path / WEIGHTS
    return weights_sha256(load_weights(path)) if path.exists() else None


def _saved_sha256(run: RecordedRun, saved: Mapping[str, Any]) -> str:
    try:
        return weights_sha256(dict(saved["learner"]["policy"]))
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{str(run.checkpoint)!r} is damaged: it holds no policy") from error


def _compare(recorded: Recorded, summary: Mapping[str, Any], saved_sha256: str | None) -> list[Compared]:
    """The hashes of the run beside those of its replay, whose summary is given."""
    is_whole = summary["env_steps"] == recorded.steps
    compared = [
        Compared(
            what="transitions_sha256",
            recorded=recorded.transitions_sha256,
            replayed=summary["transitions_sha256"] if is_whole else None,
        )
    ]
    last = summary["weights_sha256"] if is_whole else None
    for what, of_run in (
        ("weights_sha256", recorded.weights_sha256),
        (f"weights in {WEIGHTS}", recorded.file_sha256),
    ):
        if of_run is not None:
            compared.append(Compared(what=what, recorded=of_run, replayed=last))
    if recorded.saved_sha256 is not None:
        if saved_sha256 is None and is_whole and recorded.saved_steps == recorded.steps:
            saved_sha256 = summary["weights_sha256"]  # it was made when the run was over
        what = f"weights of the checkpoint at step {recorded.saved_steps}"
        compared.append(Compared(what=what, recorded=recorded.saved_sha256, replayed=saved_sha256))
    return compared


def _first_difference(compared: list[Compared]) -> str | None:
    for each in compared:
        if each.replayed != each.recorded:
            said = each.replayed or "not reached"
            return f"{each.what}: the run has {each.recorded}, the replay {said}"
    return None


@contextmanager
def _connect_to_log(
    config: ServerConfig, digests: Mapping[str, str], *, simulated: bool
) -> Iterator[Connection]:
    """A connection that sends nothing: a call whose reply no log holds fails with NotInLogError.

    Args:
        config: names the models, as the config.toml of a run does; its hosts do not count.
        digests: what stands for the weights of each model that the run called, by its short name.
        simulated: whether the replies are the simulator's.

    Raises:
        UserError: no target or no mutator is named.
    """
    target, mutator, judge = config.target_model, config.mutator_model, config.judge_model
    if not target or not mutator:
        raise UserError("the run's config.toml names no target-model or no mutator-model: no run wrote it")
    with Dispatcher(["the log of replies"], opener=_LogClient) as dispatcher:
        yield Connection(
            dispatcher=dispatcher,
            hosts=(),
            roles=Roles(target=target, mutator=mutator, judge=judge),
            available={name: (digest,) for name, digest in digests.items()},
            simulated=simulated,
        )


class _LogClient(ModelClient):
    """Stands where a server's client would: whatever reaches it has no reply in the log."""

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
