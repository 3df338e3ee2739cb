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
from functools import partial
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from envs.query_sets import QuerySet, recorded_queries
from envs.transitions import check_transition
from ollama_utils.connect import Connection, Roles, ServerConfig
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import NotInLogError
from ollama_utils.model_client import ModelClient
from ollama_utils.monitor import CallMonitor
from ollama_utils.types import Call, Completion, Embeddings, think_of
from records.errors import RunStoppedError, UserError
from records.json_lines import LinesHash, differing
from records.resume import check_fingerprints
from records.run_folder import (
    QUERIES,
    REPLIES,
    SCREEN,
    SUMMARY,
    TRANSITIONS,
    RecordedRun,
    RunFolder,
    seed_folder,
)
from records.terminal import write_stderr
from train.config import TrainConfig
from train.learner import learn, load_checkpoint
from train.policy import WEIGHTS, load_weights
from train.ppo import weights_sha256
from train.record import Recorder
from train.run import Stop, prepare

_MODEL = "model "
"""Begins the names of models in parts.json."""

_SAVED = f"weights in {WEIGHTS}"


class RecordOverError(RunStoppedError):
    """The replay is where the recorded run was stopped."""


class DifferenceError(RunStoppedError):
    """The replay comes out otherwise than the recorded run: where."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The result of playing a run again."""

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
    """Play a run again into a new folder, one of several seeds one seed after another, and compare.

    A seed that was stopped before its first row was whole is left out.

    Raises:
        UserError: a part of the run is not there, or not what it was.
        RunStoppedError: what ended the replay before its time, if it was no difference.
    """
    config.mission.check()
    queries = recorded_queries(run / QUERIES)
    replays = []
    for seed in config.seeds_trained:
        is_one = config.seeds is None
        recorded = RecordedRun(run if is_one else seed_folder(run, seed))
        into = folder if is_one else seed_folder(folder, seed)
        # A run that stopped at --max-unscored is in its record up to there: it needs no limit.
        alone = replace(config, seed=seed, seeds=None, run_dir=into, resume=None, max_unscored=1.0)
        if lines := _read_lines(recorded, config.num_processes):
            replays.append(_replay_one(alone, recorded, lines, queries))
        elif not is_one:
            write_stderr(f"seed {seed} is left out: the run {str(recorded.path)!r} has no row")
    if not replays:
        raise UserError(
            f"the run {str(run)!r} has no whole row of transitions: nothing can be replayed"
        )
    return replays


def _replay_one(
    config: TrainConfig, run: RecordedRun, lines: Sequence[Mapping[str, Any]], queries: QuerySet
) -> Replay:
    """Play the run of one seed again."""
    saved = load_checkpoint(run)
    if not (run.path / REPLIES).is_file():
        raise UserError(
            f"{str(run.path / REPLIES)!r} is not there: without its replies no run can be replayed"
        )
    recorded = _hashes(run, lines, saved)
    is_updated = saved is not None and saved["lines"]["transitions"] == len(lines)

    def open_folder() -> RunFolder:
        made = RunFolder.of("replay", config)
        for name in (
            REPLIES,
            f"{REPLIES}-wal",
            SCREEN,
        ):  # what a process that was killed left beside it
            if (run.path / name).is_file():
                shutil.copyfile(run.path / name, made.path / name)
        return made

    with _connect_to_log(config.server, run) as connection, ExitStack() as stack:
        played = prepare(config, open_folder, queries, connection, stack, preflight=False)
        check_fingerprints(played.folder.read_json("parts.json"), run)
        played.replay_unscored(lines)
        outcome = learn(
            replace(played, name="replay"),
            Stop([played]),
            CallMonitor(connection.dispatcher),
            check=partial(RowCheck, lines, is_updated=is_updated),
        )
    stopped = outcome.stopped
    if stopped and not isinstance(stopped, RecordOverError | DifferenceError):
        raise stopped
    differences = [str(stopped)] if isinstance(stopped, DifferenceError) else []
    compared = []
    for what, sha256 in recorded.items():
        name = {"transitions_sha256": "transitions", _SAVED: "policy"}.get(what, "weights")
        now = outcome.summary[f"{name}_sha256"]
        compared.append({"what": what, "recorded": sha256, "replayed": now})
        if now != sha256:
            differences.append(f"{what}: the run has {sha256}, the replay {now}")
    return Replay(
        run=str(run.path),
        seed=config.seed,
        steps=len(lines),
        unscored=sum(line["unscored"] for line in lines),
        compared=compared,
        difference=differences[0] if differences else None,
    )


def _read_lines(run: RecordedRun, lanes: int) -> list[dict[str, Any]]:
    """The lines of transitions.jsonl in whole rows."""
    is_there = (run.path / TRANSITIONS).exists()
    lines = list(run.read_transitions(check_transition)) if is_there else []
    steps = len(lines) // lanes * lanes
    if missing := run.missing_lines(steps):
        raise UserError(f"{missing}; put back what was there")
    return lines[:steps]


def _hashes(
    run: RecordedRun, lines: Sequence[Mapping[str, Any]], saved: Mapping[str, Any] | None
) -> dict[str, str]:
    """By what they are of: the hash of the lines, and of the weights as each file has them."""
    summary = run.summary()
    hashes = {"transitions_sha256": LinesHash(lines).hexdigest()}
    if saved:
        hashes["weights in last.pt"] = weights_sha256(saved["policy"])
    if summary.get("env_steps") == len(lines):
        hashes["transitions_sha256"] = str(summary.get("transitions_sha256"))
        hashes[f"weights_sha256 of {SUMMARY}"] = str(summary.get("weights_sha256"))
        if summary.get("saved") or not summary.get("stopped"):
            hashes[_SAVED] = weights_sha256(load_weights(run.path / WEIGHTS))
    return hashes


class RowCheck(BaseCallback):
    """Compares each row of a replay with the recorded one; ends the replay where the record does.

    That is after the last row, or after the update on it, if the run was updated.
    """

    def __init__(
        self, lines: Sequence[Mapping[str, Any]], recorder: Recorder, *, is_updated: bool
    ) -> None:
        super().__init__()
        self._lines, self._recorder, self._is_updated = lines, recorder, is_updated

    def _on_rollout_start(self) -> None:
        if self._is_updated:
            self._end()

    def _on_step(self) -> bool:
        now = self._recorder.lines
        first = now[0]["row"] * len(now)
        # Rows behind the last are not reached: the replay ends there, or is as long as the run.
        for number, line in enumerate(now, start=first):
            where = f"line {number + 1} of transitions.jsonl"
            if names := differing(self._lines[number], line):
                if line["error"] == NotInLogError.__name__:
                    raise DifferenceError(
                        f"{where} cannot be played: {line['not_hashed']['error_message']}"
                    )
                raise DifferenceError(
                    f"{where} does not come out as it did: {', '.join(names)} changed"
                )
        if not self._is_updated:
            self._end()
        return True

    def _end(self) -> None:
        """End the replay where the run ended."""
        if self._recorder.folder.transitions.count == len(self._lines):
            raise RecordOverError(f"replayed to step {len(self._lines)}, where the run was stopped")


@contextmanager
def _connect_to_log(config: ServerConfig, run: RecordedRun) -> Iterator[Connection]:
    """A connection that sends nothing: a call whose reply is in no log fails with NotInLogError."""
    target, mutator, judge = config.target_model, config.mutator_model, config.judge_model
    if not target or not mutator:
        raise UserError("the run's config.toml names no target-model or no mutator-model")
    available = {
        name.removeprefix(_MODEL): (str(digest),)
        for name, digest in run.read_json("parts.json").items()
        if name.startswith(_MODEL)
    }
    # What a model is asked says whether it thinks, so a reply is found under the run's settings.
    with Dispatcher(
        ["the log of replies"],
        think={"mutator": think_of(config.mutator_think), "judge": think_of(config.judge_think)},
        think_budget=config.think_budget,
        opener=_LogClient,
    ) as dispatcher:
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
        raise _not_in_log(call.model, call.prompt)

    def embed(self, model: str, texts: Sequence[str], **_: object) -> Embeddings:
        raise _not_in_log(model, texts[0])

    def models(self) -> dict[str, str]:
        return {}  # it is known which the run had

    def close(self) -> None:
        pass


def _not_in_log(model: str, text: str) -> NotInLogError:
    start = textwrap.shorten(text, 60, placeholder=" …")
    return NotInLogError(f"replies.sqlite has no reply to this call to model {model!r}: {start!r}")
