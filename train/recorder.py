"""Writes a training run down as it goes, and stops it when calls keep failing.

Counts of what a rollout brought; unscored steps stand apart.

The live progress line of a training run, on stderr: steps, steps a second, time left, success so far.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from rich.progress import TextColumn
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

from envs.episode import transition_record
from ollama_utils.dispatcher import Dispatcher, account_totals
from ollama_utils.findings import Findings
from records.errors import RunStoppedError
from records.interrupt import Interrupt
from records.json_lines import JsonLines
from records.live_bar import LiveBar
from records.run_folder import RunFolder
from train.audit import Audit


@dataclass(kw_only=True)
class Tally:
    """Sums over the steps of a rollout."""

    scored: int = 0
    unscored: int = 0
    answered: int = 0
    refused: int = 0
    """Partly refused included."""
    partial: int = 0
    adopted: int = 0
    drifted_rewrites: int = 0
    """Not adopted, as they lost the intent by similarity."""
    drifted: int = 0
    """Steps whose query, adopted though it was, did not keep the intent: they earn nothing."""
    episodes: int = 0
    successes: int = 0
    returns: float = 0.0
    lengths: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    mutators: Counter[str] = field(default_factory=Counter)

    def count_step(self, info: Mapping[str, Any]) -> None:
        """Count one step by its info, or by its line of transitions.jsonl."""
        if info["unscored"]:
            self.unscored += 1
            return
        self.scored += 1
        self.answered += info["outcome"] == "answered"
        self.refused += info["outcome"] == "refused"
        self.partial += bool(info["partial"])
        self.adopted += bool(info["adopted"])
        self.drifted_rewrites += info["rejected"] == "drifted"
        self.drifted += not info["reward_parts"].get("intent_kept", 1.0)
        self.mutators[info["mutator"]] += 1
        self.parts.update(info["reward_parts"])

    def count_episode(self, *, success: bool, total_reward: float, length: int) -> None:
        """Count one episode that ended."""
        self.episodes += 1
        self.successes += success
        self.returns += total_reward
        self.lengths += length

    def metrics(self) -> dict[str, float]:
        """Rates and means under TensorBoard's names; a rate without a denominator is left out."""
        rows = self.scored + self.unscored
        per_episode = {
            "rollout/return": self.returns,
            "rollout/episode_length": self.lengths,
            "outcome/success_rate": self.successes,
        }
        per_step = {
            "outcome/answered_rate": self.answered,
            "outcome/refusal_rate": self.refused,
            "outcome/partial_refusal_rate": self.partial,
            "outcome/drifted_rate": self.drifted,
            "mutators/adopted_rate": self.adopted,
            "mutators/drifted_rate": self.drifted_rewrites,
            **{f"reward/{name}": value for name, value in self.parts.items()},
            **{f"mutators/{name}": value for name, value in self.mutators.items()},
        }
        groups = ((self.episodes, per_episode), (self.scored, per_step))
        rates = {k: v / n for n, sums in groups if n for k, v in sums.items()}
        counts = {"rollout/episodes": self.episodes, "outcome/unscored_steps": self.unscored}
        return rates | counts | ({"outcome/unscored_rate": self.unscored / rows} if rows else {})


SAMPLES = 4
"""Transitions shown as text in TensorBoard, per rollout."""
UNSCORED_WINDOW = 128
"""Steps over which the share of unscored ones is judged."""


class TensorBoard(TensorBoardOutputFormat):
    """SB3's writer for TensorBoard; what earlier processes wrote of steps from `first_step` on is hidden."""

    def __init__(self, folder: RunFolder, first_step: int) -> None:
        self.writer = SummaryWriter(str(folder.tensorboard), purge_step=first_step)
        self._is_closed = False


class JsonLinesWriter(KVWriter):
    """Every dump of the SB3 logger as one line of metrics.jsonl; text is left to TensorBoard."""

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """Append the numbers of one dump, with the step."""
        shown = {k: float(v) for k, v in key_values.items() if "jsonl" not in key_excluded.get(k, ())}
        # JSON knows no NaN, which SB3 gives as the explained variance of returns that are all equal.
        self._lines.write({"step": step, **{k: v if isfinite(v) else None for k, v in shown.items()}})
        self._lines.flush()

    def close(self) -> None:
        """The run folder closes the file."""


def make_logger(folder: RunFolder, done_steps: int) -> Logger:
    """An SB3 logger that writes to TensorBoard and to metrics.jsonl, behind the steps that are done."""
    return Logger(str(folder.path), [TensorBoard(folder, done_steps + 1), JsonLinesWriter(folder.metrics)])


class Recorder(BaseCallback):
    """Records each complete row of a rollout in lane order, sums up each rollout and has it audited."""

    def __init__(
        self,
        folder: RunFolder,
        dispatcher: Dispatcher,
        interrupt: Interrupt,
        max_unscored: float,
        audit: Audit | None = None,
    ) -> None:
        super().__init__()
        self.folder = folder
        self.dispatcher = dispatcher
        self.interrupt = interrupt
        self.max_unscored = max_unscored
        self.audit = audit
        self.tally = Tally()
        """Of the rollout under way, or the last one."""
        self.rows = 0
        self._began_run_s = time.monotonic()
        self._running: dict[int, tuple[float, int]] = {}
        self._recent: deque[str] = deque(maxlen=UNSCORED_WINDOW)
        self._samples: list[str] = []
        self._began_s = time.monotonic()
        self._account: dict[str, float] = {}

    @property
    def wall_s(self) -> float:
        """Seconds that were worked on the run; those between a checkpoint and a kill are left out."""
        return time.monotonic() - self._began_run_s

    def state(self) -> dict[str, Any]:
        """All that the recorder is between two rollouts, as plain data for `restore`."""
        return {
            "rows": self.rows,
            "wall_s": self.wall_s,
            "running": [list(self._running.get(lane, (0.0, 0))) for lane in range(len(self._running))],
            **({"audit": self.audit.state()} if self.audit else {}),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another process stopped."""
        self.rows = state["rows"]
        self._began_run_s = time.monotonic() - state["wall_s"]
        self._running = {lane: (total, length) for lane, (total, length) in enumerate(state["running"])}
        if self.audit:
            self.audit.restore(state["audit"])

    def _on_rollout_start(self) -> None:
        self.tally = Tally()
        self._samples = []
        if self.audit:
            self.audit.begin()
        self._began_s = time.monotonic()
        self._account = account_totals(self.dispatcher)
        self._allow_interrupts()

    def _on_step(self) -> bool:
        self.interrupt.allow(allowed=False)  # a row is written whole
        infos, rewards, dones = (self.locals[name] for name in ("infos", "rewards", "dones"))
        if (
            not self.folder.transitions.ahead
        ):  # calls that failed before a resume say nothing of those to come
            self._recent.extend(info["error"] if info["unscored"] else "" for info in infos)
        for lane, (info, reward, done) in enumerate(zip(infos, rewards, dones, strict=True)):
            self.folder.transitions.write(transition_record(self.rows, lane, info, bool(done)))
            self._count(lane, info, float(reward), bool(done))
        self.folder.transitions.flush()
        self.rows += 1
        if len(self._recent) == UNSCORED_WINDOW:
            self._stop_when_calls_fail()
        self._allow_interrupts()
        return True

    def _on_rollout_end(self) -> None:
        self.interrupt.allow(allowed=False)
        metrics = self.tally.metrics() | self._speed()
        if self.audit:
            metrics |= self._audited(self.audit)
        for key, value in metrics.items():
            self.logger.record(key, value)
        self.logger.record("samples/transitions", "\n\n---\n\n".join(self._samples), exclude="jsonl")

    def _audited(self, audit: Audit) -> dict[str, float]:
        """What the audit of the rollout found. It may be interrupted: its verdicts are in the log of replies.

        An alarm is told on stderr as it rises, and from then on in TensorBoard after each rollout.
        """
        raised = audit.raised_at
        self._allow_interrupts()
        metrics = audit.close(self.num_timesteps)
        self.interrupt.allow(allowed=False)
        if audit.failed:
            failed = f"{len(audit.failed)} verdicts of the audit could not be had"
            print(f"{failed}; the first: {audit.failed[0]}", file=sys.stderr)
        if audit.text:
            self.logger.record("audit/warning", audit.text, exclude="jsonl")
        if audit.raised_at != raised:
            print(audit.text, file=sys.stderr)
        return metrics

    def _on_training_end(self) -> None:
        self._stop_when_calls_fail()

    def _allow_interrupts(self) -> None:
        """Rows that are played again are played to their end: the files agree before and behind them."""
        self.interrupt.allow(allowed=not self.folder.transitions.ahead)

    def _count(self, lane: int, info: Mapping[str, Any], reward: float, done: bool) -> None:  # noqa: FBT001 - SB3's flag
        self.tally.count_step(info)
        if self.audit:
            self.audit.see(info)
        total, length = self._running.get(lane, (0.0, 0))
        total, length = total + reward, length + (not info["unscored"])
        if done:
            self.tally.count_episode(success=info["success"], total_reward=total, length=length)
        self._running[lane] = (0.0, 0) if done else (total, length)
        if len(self._samples) < SAMPLES and done:
            self._samples.append(sample_text(info, reward))

    def _stop_when_calls_fail(self) -> None:
        errors = [error for error in self._recent if error]
        share = len(errors) / max(len(self._recent), 1)
        if share > self.max_unscored:
            raise RunStoppedError(
                f"{share:.0%} of the last {len(self._recent)} steps could not be scored "
                f"(--max-unscored {self.max_unscored:g}); last error: {errors[-1]}"
            )

    def _speed(self) -> dict[str, float]:
        """Calls and steps per second of this rollout, the servers' slots and slot wait, the cache's hits."""
        wall_s = max(time.monotonic() - self._began_s, 1e-9)
        now = account_totals(self.dispatcher)
        spent = {key: now[key] - self._account[key] for key in now}
        asked = spent["calls"] + spent["cache_hits"]
        steps = self.tally.scored + self.tally.unscored
        return {
            "calls/per_s": spent["calls"] / wall_s,
            "calls/slot_wait_s": spent["queue_s"] / max(spent["calls"], 1),
            "calls/busy_slots": spent["busy_s"] / wall_s,
            "calls/cache_hit_rate": spent["cache_hits"] / max(asked, 1),
            "calls/retries": spent["retries"],
            "calls/failures": spent["failures"],
            "time/env_steps_per_s": steps / wall_s,
            **self._capacity(),
        }

    def _capacity(self) -> dict[str, float]:
        """The slots found and the calls let in at once, by model, over all servers."""
        sums: Counter[str] = Counter()
        for (_, model), found in self.dispatcher.capacities().items():
            sums[f"calls/limit_{model}"] += found.limit
            if found.slots:
                sums[f"calls/slots_{model}"] += found.slots
        return dict(sums)


def sample_text(info: Mapping[str, Any], reward: float) -> str:
    """One transition as Markdown for TensorBoard's text page."""
    return (
        f"**{info['mutator']}** → {info['outcome']}, reward {reward:.2f}\n\n"
        f"original: {info['original_query']}\n\nmutated: {info['mutated_query']}\n\nreply: {info['reply']}"
    )


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
