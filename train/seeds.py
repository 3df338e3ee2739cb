"""Trainings of several seeds side by side: one connection, and for each a thread, lanes and a run folder.

Each comes out as it does alone. What they share is what no result depends on: the servers and their limits,
replies to equal questions, the encoder. Where one ends a rollout, its last lanes leave slots to the others;
so they begin one after another, each when the one before is its share of a rollout ahead, for else they would
all end their rollouts together. What ends one of them before its time ends them all, saved.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.mission import QuerySet, open_encoder
from ollama_utils.connect import Connection
from ollama_utils.monitor import CallMonitor
from ollama_utils.plans import POLL_S
from records.errors import RunStoppedError, describe
from records.interrupt import Interrupt, Interrupted, interruptible_thread
from records.progress import ProgressDisplay
from records.resume import check_options
from records.run_folder import CONFIG, SUMMARY, RunFolder, seed_folder
from records.terminal import printable, write_stderr
from scorers.statistics import student_intervals
from train.config import TrainConfig
from train.ends import ENDS
from train.resume import MAY_CHANGE
from train.run import Outcome, TrainingRun, begin, how_to_go_on, prepare

if TYPE_CHECKING:
    from scorers.correction import LabelAccuracy
    from train.recorder import ProgressLine, Recorder

Summary = dict[str, Any]
_RATES = ("success", "refusal")
_TRIALS = {"success": "episodes", "refusal": "scored_steps"}


def train_seeds(
    config: TrainConfig,
    queries: QuerySet,
    connection: Connection,
    interrupt: Interrupt,
    accuracy: LabelAccuracy | None,
    stack: ExitStack,
) -> tuple[RunFolder, Outcome]:
    """Train them, or go on with them; returns the folder of all, and what came of them together.

    Raises:
        UserError: a part cannot be made, or a folder cannot be used.
    """
    opened = RunFolder.of("train", resume=config.resume, run_dir=config.run_dir, seed="seeds")
    folder = stack.enter_context(opened)
    runs = _prepare_all(config, folder, queries, connection, interrupt, stack)
    outcomes, stopped = SeedThreads(runs, connection, accuracy).learn(interrupt)
    summary = summarise_seeds(config, connection, outcomes, stopped)
    folder.write_json(SUMMARY, summary)
    gains = [(run["seed"], outcome.gain) for run, outcome in zip(summary["runs"], outcomes, strict=True)]
    gain = "".join(f"seed {seed}: {text}" for seed, text in gains if text)
    return folder, Outcome(summary=summary, stopped=stopped, gain=gain)


def _prepare_all(
    config: TrainConfig,
    folder: RunFolder,
    queries: QuerySet,
    connection: Connection,
    interrupt: Interrupt,
    stack: ExitStack,
) -> list[TrainingRun]:
    """The runs of all seeds, ready to learn."""
    mission = config.mission
    # A server's embeddings are calls, which belong to the run that is to find them in its log.
    is_shared = not mission.encoder.startswith("ollama:")
    encoder = open_encoder(mission.encoder, connection.dispatcher, config.cache) if is_shared else None
    runs = []
    for seed in config.seeds_trained:
        interrupt.allow(allowed=True)
        alone = _alone(config, folder, seed)
        path = seed_folder(folder.path, seed)
        opener = partial(RunFolder, path, resume=alone.resume is not None)
        own = replace(connection, dispatcher=connection.dispatcher.beside())
        runs.append(prepare(alone, opener, queries, own, interrupt, stack, encoder))
        if seed == config.seed:
            begin(config, folder, queries, connection)
            folder.go_on = how_to_go_on(config, folder, connection)
    return [replace(run, interrupt=Interrupt(), name=f"seed {run.config.seed}") for run in runs]


def _alone(config: TrainConfig, folder: RunFolder, seed: int) -> TrainConfig:
    """The config of one seed's run, which is that of a run of this seed alone."""
    path = seed_folder(folder.path, seed)
    resume = path if (path / CONFIG).is_file() else None
    alone = replace(config, seed=seed, seeds=None, run_dir=path, resume=resume, json=None)
    if resume:
        check_options(alone, resume, MAY_CHANGE, run_dir=None)
    return alone


class SeedThreads:
    """Has each run learn on a thread of its own; what ends one before its time ends the others.

    Args:
        runs: those that are ready to learn.
        connection: that of all, whose dispatcher the runs' own stand beside.
        accuracy: how often the labels are right, where that is known.
    """

    def __init__(
        self, runs: Sequence[TrainingRun], connection: Connection, accuracy: LabelAccuracy | None
    ) -> None:
        self._runs = runs
        self._dispatcher = connection.dispatcher
        self._accuracy = accuracy
        self._monitor = CallMonitor(
            *(run.connection.dispatcher for run in runs),
            lanes=sum(run.config.num_processes for run in runs),
            slots_setting=connection.slots_setting,
        )
        self._came: dict[int, Outcome | BaseException] = {}
        """What came of each seed's run that is over, the first one first."""
        self._first: int | None = None
        """The seed whose run was the first to end before its time."""
        self._bell = threading.Semaphore(0)

    def learn(self, interrupt: Interrupt) -> tuple[list[Outcome], BaseException | None]:
        """Have all learn; returns what came of them, in their order, and what ended them early.

        Raises:
            BaseException: what ended them, if none of them could be summed up.
        """
        interrupted: Interrupted | None = None
        with ProgressDisplay() as display:
            for place, run in enumerate(self._runs):
                name = f"seed-{run.config.seed}"
                threading.Thread(target=self._work, args=(place, display), name=name, daemon=True).start()
            while len(self._came) < len(self._runs):
                try:
                    interrupt.allow(allowed=True)
                    self._bell.acquire(timeout=POLL_S)
                    interrupt.allow(allowed=False)
                except Interrupted as error:
                    interrupted = error
                    self._stop({run.config.seed: Interrupted(error.signum) for run in self._runs})
        return self._summed_up(interrupted)

    def _summed_up(self, interrupted: Interrupted | None) -> tuple[list[Outcome], BaseException | None]:
        """What came of all runs, and what ended the first; of a failure that followed it is told."""
        stopped: BaseException | None = interrupted
        if self._first is not None and stopped is None:
            first = self._came[self._first]
            stopped = first.stopped if isinstance(first, Outcome) else first
        outcomes = []
        for run in self._runs:
            came = self._came[run.config.seed]
            if isinstance(came, Outcome):
                outcomes.append(came)
            elif came not in {stopped, run.interrupt.reason}:
                write_stderr(f"{run.name} was not summed up: {describe(came)}")
        if stopped and not outcomes:
            raise stopped
        return outcomes, stopped

    def _work(self, place: int, display: ProgressDisplay) -> None:
        """Have the run at this place learn, on this thread."""
        run = self._runs[place]
        seed = run.config.seed

        def cancel(why: BaseException) -> None:
            self._first = seed if self._first is None else self._first
            others = (other.config.seed for other in self._runs if other is not run)
            self._stop({other: RunStoppedError(f"stopped with seed {seed}: {why}") for other in others})

        show = partial(_line, run, self._monitor, display)
        try:
            if place:
                self._wait_for_turn(run, self._runs[place - 1])
            with interruptible_thread(run.interrupt):
                self._came[seed] = run.learn(show, self._accuracy, cancel)
        except BaseException as error:  # noqa: BLE001 - raised to the caller of `learn`
            cancel(error)
            self._came[seed] = error
        self._bell.release()

    def _wait_for_turn(self, run: TrainingRun, before: TrainingRun) -> None:
        """Wait until the run before this one is its share of a rollout ahead, or one of them is over."""
        config = run.config
        num_steps = config.bandit_steps if config.steps_by_bandit else config.num_steps
        ahead = num_steps * config.num_processes // len(self._runs)
        while before.folder.transitions.count < ahead and before.config.seed not in self._came:
            if run.interrupt.reason:
                return
            time.sleep(POLL_S)

    def _stop(self, reasons: Mapping[int, BaseException]) -> None:
        """Have runs stop, each for a reason of its own; no call goes out any more."""
        for run in self._runs:
            if run.config.seed in reasons:
                run.interrupt.stop(reasons[run.config.seed])
        self._dispatcher.cancel()


def _line(
    run: TrainingRun, monitor: CallMonitor, display: ProgressDisplay, recorder: Recorder
) -> ProgressLine:
    """What shows how far one of the runs is."""
    from train.recorder import ProgressLine

    beside = ProgressDisplay(beside=display)
    return ProgressLine(run.config.total_steps, recorder, monitor, beside, run.name)


def summarise_seeds(
    config: TrainConfig, connection: Connection, outcomes: Sequence[Outcome], stopped: BaseException | None
) -> Summary:
    """The runs in numbers: sums, rates as means over the seeds, and each seed's own.

    The intervals hold the seeds' part alone: all seeds met the same training queries.
    """
    runs = [outcome.summary for outcome in outcomes]
    summed = ("env_steps", "unscored_steps", "llm_calls", "retries", "completion_tokens")
    return {
        "simulated": connection.simulated,
        "stopped": str(stopped) if stopped else None,
        "seeds": [run["seed"] for run in runs],
        **{name: sum(run[name] for run in runs) for name in summed},
        "wall_s": max(run["wall_s"] for run in runs),
        **{
            key: value
            for name in _RATES
            for end in ENDS
            for key, value in _over_seeds(runs, name, end).items()
        },
        "algorithm": config.algorithm,
        "schedule": config.driven_by,
        "num_processes": config.num_processes,
        "target_model": connection.roles.target,
        "mutator_model": connection.roles.mutator,
        "runs": runs,
    }


def _over_seeds(runs: Sequence[Summary], name: str, end: str) -> Summary:
    """A rate's mean over the seeds that have one, and Student's interval of it; None without any."""
    known = [run for run in runs if run[f"{name}_rate_{end}"] is not None]
    rates = np.array([run[f"{name}_rate_{end}"] for run in known])
    low, high = 0.0, 1.0
    if len(known) > 1:
        # Where all are the same, it is as wide as if one of them had one trial that came out otherwise.
        trial = 1 / min(run[f"{_TRIALS[name]}_{end}"] for run in known)
        ends = student_intervals(rates, np.float64(trial))
        low, high = max(0.0, float(ends[0])), min(1.0, float(ends[1]))
    return {
        f"{name}_rate_{end}": round(float(rates.mean()), 4) if known else None,
        f"{name}_interval_{end}": [round(low, 4), round(high, 4)],
    }


def print_seeds(summary: Summary, folder: RunFolder, gain: str) -> None:
    """Print it for a person, on stdout, with what is known of each seed's gain."""
    from train.summary import SIMULATED, notes_on_ends, rates_line

    lines = [
        SIMULATED if summary["simulated"] else "",
        f"{'':14}{'first rollouts':>24}{'last rollouts':>24}\n",
    ]
    for name in ("success", "refusal"):
        lines += [rates_line(f"{name} {run['seed']}", run, name) + "\n" for run in summary["runs"]]
        lines.append(rates_line("  all seeds", summary, name) + "\n")
    lines += [
        "(95 % intervals: of a seed over its queries, of all over the seeds on these queries)\n",
        notes_on_ends(summary["runs"]),
        gain,
        f"unscored steps: {summary['unscored_steps']} of {summary['env_steps']} · ",
        f"model calls: {summary['llm_calls']} · {summary['wall_s']:.0f} s\n",
        folder.closing_message,
    ]
    print(printable("".join(lines)))
