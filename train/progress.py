"""The live progress line of a training run, on stderr: steps, steps a second, time left, success so far."""

from __future__ import annotations

import sys

from rich.progress import TextColumn
from stable_baselines3.common.callbacks import BaseCallback

from train.findings import Findings
from train.live_bar import LiveBar
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
        self._bar = LiveBar(TextColumn("{task.fields[rate]}"), TextColumn("{task.fields[success]}"))
        self._task = self._bar.progress.add_task("training", total=total_steps, rate="", success="")

    def _on_training_start(self) -> None:
        self._bar.progress.start()

    def _on_rollout_start(self) -> None:
        self._complained = False

    def _on_step(self) -> bool:
        self._complain([info["error"] for info in self.locals["infos"] if info["unscored"]])
        for line in self.findings.news(self.recorder.dispatcher.capacities()):
            self._bar.say(line)
        speed = self._bar.progress.tasks[0].speed
        rate = f"{speed:.1f} steps/s" if speed else ""
        self._bar.progress.update(self._task, completed=self.num_timesteps, rate=rate)
        return True

    def _on_rollout_end(self) -> None:
        tally = self.recorder.tally
        success = f"success {tally.successes}/{tally.episodes} episodes, {tally.unscored} steps unscored"
        self._bar.progress.update(self._task, success=success)
        if not self._bar.is_shown:
            print(f"step {self.num_timesteps}/{self.total_steps}: {success}", file=sys.stderr)

    def _complain(self, errors: list[str]) -> None:
        """Say why a step could not be scored, once a rollout."""
        if errors and not self._complained:
            self._bar.say(f"not scored: {errors[0]}")
            self._complained = True

    def _on_training_end(self) -> None:
        self.stop()

    def stop(self) -> None:
        """Leave the terminal as it was; calling it twice is fine."""
        self._bar.progress.stop()
