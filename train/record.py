"""The record of a training: a line a step, numbers a rollout, progress; failures stop it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stable_baselines3.common.callbacks import BaseCallback

from envs.transitions import transition_record
from ollama_utils.errors import CallCancelledError
from ollama_utils.monitor import CallMonitor
from records.failures import FailureLimit
from records.metrics import CallRates
from records.progress import TREND_WIDTH, ProgressDisplay, Status, digits, percent
from records.terminal import write_stderr
from train.summary import Rows, begun_in_time, ends_of, metrics_of

if TYPE_CHECKING:
    from train.run import TrainingRun


class Recorder(BaseCallback):
    """Writes each row of a rollout in lane order, sums up each rollout, and shows the progress.

    That is a bar on a terminal, and elsewhere a plain line a minute. Failing calls and news of the
    servers are written at once. `display` shows this training among others [it is shown alone].
    """

    def __init__(
        self, run: TrainingRun, monitor: CallMonitor, display: ProgressDisplay | None = None
    ) -> None:
        super().__init__()
        self.config, self.folder = run.config, run.folder
        self.dispatcher = run.connection.dispatcher
        self.display = display or ProgressDisplay()
        self.lines: list[dict[str, Any]] = []
        """The lines of the last row, as they are in transitions.jsonl."""
        self.numbers: dict[str, float] = {}
        """The metrics of the last rollout."""
        self._prefix, self._monitor = run.prefix, monitor
        self._rows = Rows()
        self._began_s = time.monotonic()
        self._limit = FailureLimit(self.config.max_unscored)
        self._rates = CallRates(self.dispatcher.totals())
        self._returns: deque[float] = deque(maxlen=TREND_WIDTH)
        """The mean return of each rollout."""
        self.display.begin(f"{run.name or 'training'} steps", self.config.total_steps, self._status)

    @property
    def rows(self) -> int:
        """How many rows are complete."""
        return self.folder.transitions.count // self.config.num_processes

    @property
    def wall_s(self) -> float:
        """Seconds of work on the run; what came after a checkpoint and was lost is left out."""
        return time.monotonic() - self._began_s

    def restore(self, wall_s: float) -> None:
        """Go on where another process stopped, after so many seconds of work."""
        self._began_s = time.monotonic() - wall_s
        for line in self.folder.transitions.read():
            self._rows.add(line)

    def check_failures(self) -> None:
        """Judge the latest steps, however few there are; raises RunStoppedError."""
        self._limit.check()

    def _on_training_start(self) -> None:
        self.display.show()

    def _on_rollout_start(self) -> None:
        self.display.forget_complaint()
        self._first = self.rows
        self._rates.restart(self.dispatcher.totals())

    def _on_step(self) -> bool:
        infos, dones = self.locals["infos"], self.locals["dones"]
        raise_if_cancelled(info["error"] for info in infos)
        row, is_new = self.rows, not self.folder.transitions.ahead
        self.lines = []
        for lane, (info, done) in enumerate(zip(infos, dones, strict=True)):
            truncated = info["TimeLimit.truncated"]
            terminated = bool(done) and not truncated
            line = transition_record(row, lane, info, terminated=terminated, truncated=truncated)
            self.lines.append(line)
            self._rows.add(line)  # first: the progress shows rows whose lines are all written
            self.folder.transitions.write(line)
            if line["unscored"]:
                self.display.complain(info["error"])
        self.folder.transitions.flush()
        if is_new:  # failures before a resume are of another time
            asked = [info for info in infos if info["outcome"] != "stopped"]
            self._limit.add(info["error"] if info["unscored"] else "" for info in asked)
        for news in self._monitor.news():
            write_stderr(news)
        self.display.update(self.num_timesteps)
        return True

    def _on_rollout_end(self) -> None:
        rollout = range(self._first, self.rows)
        steps = self._rows.together(rollout)
        episodes = self._rows.together(begun_in_time(rollout, self.config.mission.max_steps))
        if episodes["episodes"]:
            self._returns.append(episodes["returns"] / episodes["episodes"])
        self.numbers = {
            **metrics_of(steps, episodes),
            **self._rates.metrics(self.dispatcher.totals()),
            "time/fps": (steps["scored"] + steps["unscored"]) / self._rates.wall_s,
            "time/time_elapsed": self.wall_s,
            "time/total_timesteps": self.num_timesteps,
        }

    def _status(self) -> Status:
        """The steps of the last rollouts and their episodes, counted as in summary.json."""
        calls = self._monitor.line()
        if not self.rows:
            return Status(calls=calls)
        end = ends_of(self.rows, self.config.rows_of_rollout, self.config.mission.max_steps)["end"]
        steps, begun = self._rows.together(end.steps), self._rows.together(end.episodes)
        per_s = self.display.per_s
        scored, episodes = steps["scored"], begun["episodes"]
        replies, guards = scored - steps["not_counted"], begun["guard_episodes"]
        refused, filtered = steps["outcome/refusal_rate"], steps["outcome/filtered_rate"]
        parts = [
            f"{digits(per_s)} steps/s" if per_s else "",
            f"success {percent(begun['successes'], begun['others'])} of {begun['others']} episodes",
            f"unlocked {percent(begun['unlocked'], guards)} of {guards}" if guards else "",
            f"refused {percent(refused, replies)}",
            f"filtered {percent(filtered, replies)}" if filtered else "",
            f"unscored {percent(steps['unscored'], scored + steps['unscored'])}",
        ]
        return Status(
            outcome=self._prefix + " · ".join(filter(None, parts)),
            score=f"return {begun['returns'] / episodes:.2f}" if episodes else "",
            trend=list(self._returns),
            calls=calls,
        )


def raise_if_cancelled(errors: Iterable[str]) -> None:
    """Raise if one of these errors is that a call was cancelled, for the run is to stop.

    The step itself did not fail: it is played when the run goes on.
    """
    for error in errors:
        if error.startswith(CallCancelledError.__name__):
            raise CallCancelledError(error)
