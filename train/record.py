"""The record of a training: a line a step, numbers a rollout, progress; failures stop it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger

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
from train.summary import Rows, begun_in_time, ends_of, episode_metrics, step_metrics

SAMPLES = 4
"""Transitions shown as text in TensorBoard, per rollout."""


class LoggerOutput(KVWriter):
    """Writes every dump of SB3's logger to metrics.jsonl and TensorBoard."""

    def __init__(self, metrics: MetricsWriter) -> None:
        self._metrics = metrics

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """Write one dump; what is excluded from "jsonl" is a text."""
        for tag, value in key_values.items():
            if isinstance(value, str):
                self._metrics.write_text(step, f"{tag}/text_summary", value)
        numbers = {k: v for k, v in key_values.items() if "jsonl" not in key_excluded.get(k, ())}
        self._metrics.write(step, {tag: float(value) for tag, value in numbers.items()})
        self._metrics.flush()

    def close(self) -> None:
        """Close both files."""
        self._metrics.close()


def make_logger(folder: RunFolder, done_steps: int) -> Logger:
    """SB3's logger, which appends to a run's metrics.jsonl and TensorBoard after `done_steps`."""
    metrics = MetricsWriter(folder.metrics, folder.tensorboard, first_step=done_steps + 1)
    return Logger(str(folder.path), [LoggerOutput(metrics)])


class Recorder(BaseCallback):
    """Writes each row of a rollout in lane order, sums up each rollout, and shows the progress.

    That is a bar on a terminal, and elsewhere a plain line a minute. Failing calls and news of the
    servers are written at once. `display` shows this training among others [it is shown alone].
    """

    def __init__(
        self,
        folder: RunFolder,
        dispatcher: Dispatcher,
        config: TrainConfig,
        monitor: CallMonitor,
        display: ProgressDisplay | None = None,
        name: str = "",
    ) -> None:
        super().__init__()
        self.folder, self.dispatcher, self.config = folder, dispatcher, config
        self.display = display or ProgressDisplay()
        self.rows = 0
        """How many rows are complete."""
        self.lines: list[dict[str, Any]] = []
        """The lines of the last row, as they are in transitions.jsonl."""
        self._monitor, self._name = monitor, name
        self._rows = Rows()
        self._first = 0
        """The row in which the rollout began."""
        self._began_s = time.monotonic()
        self._limit = FailureLimit(config.max_unscored)
        self._samples: list[str] = []
        self._rates = CallRates(dispatcher.totals())
        self._returns: deque[float] = deque(maxlen=TREND_WIDTH)
        """The mean return of each rollout."""
        self.display.begin(f"{name or 'training'} steps", config.total_steps, self._status)

    @property
    def wall_s(self) -> float:
        """Seconds of work on the run; what came after a checkpoint and was lost is left out."""
        return time.monotonic() - self._began_s

    def state(self) -> dict[str, Any]:
        """Its state between two rollouts, except the lines, as plain data for `restore`."""
        return {"rows": self.rows, "wall_s": self.wall_s}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another process stopped."""
        self.rows = state["rows"]
        self._began_s = time.monotonic() - state["wall_s"]
        for line in self.folder.transitions.read():
            self._rows.add(line)

    def _on_training_start(self) -> None:
        self.display.show()

    def _on_rollout_start(self) -> None:
        self.display.forget_complaint()
        self._samples, self._first = [], self.rows
        self._rates.restart(self.dispatcher.totals())

    def _on_step(self) -> bool:
        infos, dones = self.locals["infos"], self.locals["dones"]
        raise_if_cancelled(info["error"] for info in infos)
        is_new = not self.folder.transitions.ahead  # failures before a resume are of another time
        self.lines = []
        for lane, (info, done) in enumerate(zip(infos, dones, strict=True)):
            truncated = info["TimeLimit.truncated"]
            terminated = bool(done) and not truncated
            line = transition_record(
                self.rows, lane, info, terminated=terminated, truncated=truncated
            )
            self.lines.append(line)
            self.folder.transitions.write(line)
            if self._rows.add(line) is not None and len(self._samples) < SAMPLES:
                self._samples.append(_sample_text(info))
        self.folder.transitions.flush()
        self.rows += 1
        if is_new:
            self._limit.add(info["error"] if info["unscored"] else "" for info in infos)
        for line in self.lines:
            if line["unscored"]:
                self.display.complain(line["not_hashed"]["error_message"])
        for news in self._monitor.news():
            write_stderr(news)
        self.display.update(self.num_timesteps)
        return True

    def _on_rollout_end(self) -> None:
        steps = self._rows.together(range(self._first, self.rows))
        episodes = self._rows.together(
            begun_in_time(range(self._first, self.rows), self.config.mission.max_steps)
        )
        if episodes["episodes"]:
            self._returns.append(episodes["returns"] / episodes["episodes"])
        speed = self._speed(steps["scored"] + steps["unscored"])
        for tag, value in (step_metrics(steps) | episode_metrics(episodes) | speed).items():
            self.logger.record(tag, value)
        samples = "\n\n---\n\n".join(self._samples)
        self.logger.record("samples/transitions", samples, exclude="jsonl")

    def _on_training_end(self) -> None:
        self._limit.check()

    def _speed(self, steps: int) -> dict[str, float]:
        """Calls and steps per second of this rollout, and the servers' slots by model."""
        sums: Counter[str] = Counter()
        for (_, model), found in self.dispatcher.servers.capacities().items():
            sums[f"calls/limit_{model}"] += found.value
            if slots := found.slots:
                sums[f"calls/slots_{model}"] += slots
        pace = {"time/env_steps_per_s": steps / self._rates.wall_s}
        return {**self._rates.metrics(self.dispatcher.totals()), **pace, **sums}

    def _status(self) -> Status:
        """The steps of the last rollouts and their episodes, counted as in summary.json."""
        if not self.rows:
            return Status(calls=self._monitor.line())
        end = ends_of(self.rows, self.config.rows_of_rollout, self.config.mission.max_steps)["end"]
        steps, begun = self._rows.together(end.steps), self._rows.together(end.episodes)
        per_s = self.display.per_s
        scored, episodes = steps["scored"], begun["episodes"]
        refused, filtered = steps["outcome/refusal_rate"], steps["outcome/filtered_rate"]
        parts = [
            f"{digits(per_s)} steps/s" if per_s else "",
            f"success {percent(begun['successes'], episodes)} of {episodes} episodes",
            f"refused {percent(refused, scored)}",
            f"filtered {percent(filtered, scored)}" if filtered else "",
            f"unscored {percent(steps['unscored'], scored + steps['unscored'])}",
        ]
        return Status(
            outcome=f"{self._name}: " * bool(self._name) + " · ".join(filter(None, parts)),
            score=f"return {begun['returns'] / episodes:.2f}" if episodes else "",
            trend=list(self._returns),
            calls=self._monitor.line(),
        )


def raise_if_cancelled(errors: Iterable[str]) -> None:
    """Raise if one of these errors is that a call was cancelled, for the run is to stop.

    The step itself did not fail: it is played when the run goes on.
    """
    for error in errors:
        if error.startswith(CallCancelledError.__name__):
            raise CallCancelledError(error)


def _sample_text(info: Mapping[str, Any]) -> str:
    """One transition for TensorBoard's text page."""
    return (
        f"{info['mutator']} → {info['outcome']}, reward {info['reward']:.2f}\n\n"
        f"original: {info['original_query']}\n\nmutated: {info['mutated_query']}\n\n"
        f"reply: {info['reply']}"
    )
