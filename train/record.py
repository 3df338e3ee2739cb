"""The record of a training: a line a step, numbers a rollout, progress; failures stop it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HParam, KVWriter, Logger
from torch.utils.tensorboard.summary import hparams

from envs.transitions import transition_record
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError
from ollama_utils.monitor import CallMonitor
from records.failures import FailureLimit
from records.metrics import CallRates, MetricsWriter
from records.progress import TREND_WIDTH, ProgressDisplay, Status, digits, percent
from records.run_folder import RunFolder
from records.terminal import write_stderr
from train.config import TrainConfig
from train.summary import Row, Rows, Tally, begun_in_time, ends_of

SAMPLES = 4
"""Transitions shown as text in TensorBoard, per rollout."""


class LoggerOutput(KVWriter):
    """Writes every dump of SB3's logger to metrics.jsonl and TensorBoard."""

    def __init__(self, metrics: MetricsWriter) -> None:
        self._metrics = metrics

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """Write one dump; what is excluded from "jsonl" is a text, or the hyperparameters."""
        for tag, value in key_values.items():
            if isinstance(value, str):
                self._metrics.write_text(step, f"{tag}/text_summary", value)
            elif isinstance(value, HParam):
                found: Any = hparams(value.hparam_dict, value.metric_dict)  # type: ignore[no-untyped-call]  # torch's
                for summary in found:
                    self._metrics.add(step, summary)
        numbers = {k: v for k, v in key_values.items() if "jsonl" not in key_excluded.get(k, ())}
        self._metrics.write(step, {tag: float(value) for tag, value in numbers.items()})
        self._metrics.flush()

    def close(self) -> None:
        """Close both files."""
        self._metrics.close()


def make_logger(folder: RunFolder, done_steps: int) -> Logger:
    """SB3's logger on a run's metrics.jsonl and TensorBoard, behind the steps that are done."""
    metrics = MetricsWriter(folder.metrics, folder.tensorboard, first_step=done_steps + 1)
    return Logger(str(folder.path), [LoggerOutput(metrics)])


class Recorder(BaseCallback):
    """Writes each row of a rollout in lane order, and sums up each rollout.

    Args:
        folder: the run's.
        dispatcher: whose calls are counted.
        config: the run's settings.
    """

    def __init__(self, folder: RunFolder, dispatcher: Dispatcher, config: TrainConfig) -> None:
        super().__init__()
        self.folder, self.dispatcher, self.config = folder, dispatcher, config
        self.tally = Tally()
        """The steps of the rollout under way, or of the last one."""
        self.rows = 0
        """Those that are complete."""
        self._rows = Rows()
        self._first = 0
        """The row in which the rollout began."""
        self._began_s = time.monotonic()
        self._limit = FailureLimit(config.max_unscored)
        self._samples: list[str] = []
        self._rates = CallRates(dispatcher.totals())

    @property
    def wall_s(self) -> float:
        """Seconds of work on the run; those between a checkpoint and a kill are left out."""
        return time.monotonic() - self._began_s

    def state(self) -> dict[str, Any]:
        """What it is between two rollouts, beside the lines, as plain data for `restore`."""
        return {"rows": self.rows, "wall_s": self.wall_s}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another process stopped."""
        self.rows = state["rows"]
        self._began_s = time.monotonic() - state["wall_s"]
        for line in self.folder.transitions.read():
            self._rows.add(line)

    def last_rollouts(self) -> tuple[Row, Row]:
        """The steps of the last rollouts so far and their episodes, counted as in summary.json."""
        end = ends_of(self.rows, self.config.rows_of_rollout, self.config.mission.max_steps)["end"]
        return self._rows.together(end.steps), self._rows.together(end.episodes)

    def episodes(self) -> Row:
        """The episodes of the rollout: those that began in its rows, shifted by `begun_in_time`."""
        rows = range(self._first, self.rows)
        return self._rows.together(begun_in_time(rows, self.config.mission.max_steps))

    def _on_rollout_start(self) -> None:
        self.tally, self._samples, self._first = Tally(), [], self.rows
        self._rates.restart(self.dispatcher.totals())

    def _on_step(self) -> bool:
        infos, rewards, dones = (self.locals[name] for name in ("infos", "rewards", "dones"))
        raise_if_cancelled(info["error"] for info in infos)
        is_new = not self.folder.transitions.ahead  # failures before a resume are of another time
        for lane, (info, reward, done) in enumerate(zip(infos, rewards, dones, strict=True)):
            truncated = info["TimeLimit.truncated"]
            terminated = bool(done) and not truncated
            line = transition_record(
                self.rows, lane, info, terminated=terminated, truncated=truncated
            )
            self.folder.transitions.write(line)
            self.tally.count_step(line)
            has_ended = self._rows.add(line) is not None
            if has_ended and len(self._samples) < SAMPLES:
                self._samples.append(_sample_text(info, float(reward)))
        self.folder.transitions.flush()
        self.rows += 1
        if is_new:
            self._limit.add(info["error"] if info["unscored"] else "" for info in infos)
        return True

    def _on_rollout_end(self) -> None:
        metrics = self.tally.metrics() | self.episodes().metrics() | self._speed()
        for tag, value in metrics.items():
            self.logger.record(tag, value)
        samples = "\n\n---\n\n".join(self._samples)
        self.logger.record("samples/transitions", samples, exclude="jsonl")

    def _on_training_end(self) -> None:
        self._limit.check()

    def _speed(self) -> dict[str, float]:
        """Calls and steps per second of this rollout, and the servers' slots by model."""
        sums: Counter[str] = Counter()
        for (_, model), found in self.dispatcher.servers.capacities().items():
            sums[f"calls/limit_{model}"] += found.limit
            if found.slots:
                sums[f"calls/slots_{model}"] += found.slots
        steps = {"time/env_steps_per_s": self.tally.steps / self._rates.wall_s}
        return {**self._rates.metrics(self.dispatcher.totals()), **steps, **sums}


class ProgressLine(BaseCallback):
    """A bar and how the training stands on a terminal; elsewhere a plain line a minute.

    Failing calls and what is found out about the servers are written at once.

    Args:
        total_steps: of the training.
        recorder: counts what is shown.
        monitor: watches the calls.
        display: one beside those of other trainings; None: one of its own.
        name: of the training, where there are several.
    """

    def __init__(
        self,
        total_steps: int,
        recorder: Recorder,
        monitor: CallMonitor,
        display: ProgressDisplay | None = None,
        name: str = "",
    ) -> None:
        super().__init__()
        self.recorder = recorder
        self._monitor, self._name = monitor, name
        self._display = display or ProgressDisplay()
        self._returns: deque[float] = deque(maxlen=TREND_WIDTH)
        """By rollout."""
        self._display.begin(f"{name or 'training'} steps", total_steps, self._status)

    def stop(self) -> None:
        """Leave the terminal as it was; calling it twice is fine."""
        self._display.stop()

    def _on_training_start(self) -> None:
        self._display.show()

    def _on_rollout_start(self) -> None:
        self._display.forget_complaint()

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if info["unscored"]:
                self._display.complain(info["error"])
        for line in self._monitor.news():
            write_stderr(line)
        self._display.update(self.num_timesteps)
        return True

    def _on_rollout_end(self) -> None:
        episodes = self.recorder.episodes()
        if episodes.episodes:
            self._returns.append(episodes.returns / episodes.episodes)

    def _status(self) -> Status:
        """Of the last rollouts, as in summary.json."""
        if not self.recorder.rows:
            return Status(calls=self._monitor.line())
        (steps, begun), per_s = self.recorder.last_rollouts(), self._display.per_s
        parts = [
            f"{digits(per_s)} steps/s" if per_s else "",
            f"success {percent(begun.successes, begun.episodes)} of {begun.episodes} episodes",
            f"refused {percent(steps.refused, steps.scored)}",
            f"filtered {percent(steps.filtered, steps.scored)}" if steps.filtered else "",
            f"unscored {percent(steps.unscored, steps.scored + steps.unscored)}",
        ]
        return Status(
            outcome=f"{self._name}: " * bool(self._name) + " · ".join(filter(None, parts)),
            score=f"return {begun.returns / begun.episodes:.2f}" if begun.episodes else "",
            trend=list(self._returns),
            calls=self._monitor.line(),
        )


def raise_if_cancelled(errors: Iterable[str]) -> None:
    """Raise that a call was cancelled, as others' are where one of several trainings ends.

    Nothing is wrong with such a step: it is played when the run goes on.

    Args:
        errors: why each of some steps failed; "" where it did not.
    """
    for error in errors:
        if error.startswith(CallCancelledError.__name__):
            raise CallCancelledError(error)


def _sample_text(info: Mapping[str, Any], reward: float) -> str:
    """One transition for TensorBoard's text page."""
    return (
        f"{info['mutator']} → {info['outcome']}, reward {reward:.2f}\n\n"
        f"original: {info['original_query']}\n\nmutated: {info['mutated_query']}\n\n"
        f"reply: {info['reply']}"
    )
