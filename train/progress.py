"""The live progress line of a training run, on stderr: steps, steps a second, time left, success so far."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from stable_baselines3.common.callbacks import BaseCallback

from train.findings import Findings
from train.recorder import Recorder


class ProgressLine(BaseCallback):
    """A bar on a terminal; elsewhere one plain line per rollout.

    Failing calls and what is found out about the servers are told at once.
    """

    def __init__(self, total_steps: int, recorder: Recorder, findings: Findings) -> None:
        super().__init__()
        self.recorder = recorder
        self.findings = findings
        self.total_steps = total_steps
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[success]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("training", total=total_steps, rate="", success="")

    def _on_training_start(self) -> None:
        self._progress.start()

    def _on_rollout_start(self) -> None:
        self._complained = False

    def _on_step(self) -> bool:
        self._complain([info["error"] for info in self.locals["infos"] if info["unscored"]])
        for line in self.findings.news(self.recorder.dispatcher.capacities()):
            self._say(line)
        speed = self._progress.tasks[0].speed
        rate = f"{speed:.1f} steps/s" if speed else ""
        self._progress.update(self._task, completed=self.num_timesteps, rate=rate)
        return True

    def _on_rollout_end(self) -> None:
        tally = self.recorder.tally
        success = f"success {tally.successes}/{tally.episodes} episodes, {tally.unscored} steps unscored"
        self._progress.update(self._task, success=success)
        if self._progress.disable:
            print(f"step {self.num_timesteps}/{self.total_steps}: {success}", file=sys.stderr)

    def _complain(self, errors: list[str]) -> None:
        """Say why a step could not be scored, once a rollout."""
        if errors and not self._complained:
            self._say(f"not scored: {errors[0]}")
            self._complained = True

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _on_training_end(self) -> None:
        self.stop()

    def stop(self) -> None:
        """Leave the terminal as it was; calling it twice is fine."""
        self._progress.stop()
