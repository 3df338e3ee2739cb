"""Records a training run row by row, sums up rollouts, shows progress, stops when calls keep failing."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HParam, KVWriter, Logger
from torch.utils.tensorboard.summary import custom_scalars, hparams

from envs.episode import transition_record
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.monitor import CallMonitor
from records.failures import FailureLimit
from records.interrupt import Interrupt
from records.metrics import CallRates, MetricsWriter
from records.progress import TREND_WIDTH, ProgressDisplay, Status, digits, percent
from records.run_folder import RunFolder
from records.terminal import write_stderr
from train.audit import Audit
from train.board import Layout


@dataclass(kw_only=True)
class Tally:
    """Sums over the steps of a rollout."""

    scored: int = 0
    unscored: int = 0
    answered: int = 0
    """Undetermined ones left out."""
    refused: int = 0
    """Partly refused included."""
    partial: int = 0
    undetermined: int = 0
    """Neither answered nor refused."""
    filtered: int = 0
    """Their reply was ended by a content filter."""
    adopted: int = 0
    drifted_rewrites: int = 0
    """Not adopted, as they lost the intent by similarity."""
    drifted: int = 0
    """Steps whose query, adopted though it was, did not keep the intent: they earn nothing."""
    episodes: int = 0
    successes: int = 0
    returns: float = 0.0
    lengths: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    """Rewrites that were not adopted, by reason."""
    parts: Counter[str] = field(default_factory=Counter)
    mutators: Counter[str] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        """All steps."""
        return self.scored + self.unscored

    def count_step(self, info: Mapping[str, Any]) -> None:
        """Count one step by its info, or by its line of transitions.jsonl."""
        if info["unscored"]:
            self.unscored += 1
            return
        self.scored += 1
        undetermined = info.get("undetermined", False)
        self.answered += info["outcome"] == "answered" and not undetermined
        self.refused += info["outcome"] == "refused"
        self.partial += bool(info["partial"])
        self.undetermined += undetermined
        self.filtered += info["outcome"] == "filtered"
        self.adopted += bool(info["adopted"])
        self.drifted_rewrites += info["rejected"] == "drifted"
        if info["rejected"]:
            self.rejected[info["rejected"]] += 1
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
        """Rates and means under TensorBoard's names, SB3's where it has them; without a denominator none."""
        per_episode = {
            "rollout/ep_rew_mean": self.returns,
            "rollout/ep_len_mean": self.lengths,
            "rollout/success_rate": self.successes,
        }
        per_step = {
            "outcome/answered_rate": self.answered,
            "outcome/refusal_rate": self.refused,
            "outcome/partial_refusal_rate": self.partial,
            "outcome/undetermined_rate": self.undetermined,
            **({"outcome/filtered_rate": self.filtered} if self.filtered else {}),
            "outcome/drifted_rate": self.drifted,
            "mutators/adopted_rate": self.adopted,
            "mutators/drifted_rate": self.drifted_rewrites,
            **{f"reward/{name}": value for name, value in self.parts.items()},
            **{f"mutators/{name}": value for name, value in self.mutators.items()},
            **{f"rejected/{why}": value for why, value in self.rejected.items()},
        }
        groups = ((self.episodes, per_episode), (self.scored, per_step))
        rates = {k: v / n for n, sums in groups if n for k, v in sums.items()}
        counts = {"rollout/episodes": self.episodes, "outcome/unscored_steps": self.unscored}
        return rates | counts | ({"outcome/unscored_rate": self.unscored / self.rows} if self.rows else {})


SAMPLES = 4
"""Transitions shown as text in TensorBoard, per rollout."""


class LoggerOutput(KVWriter):
    """Writes every dump of SB3's logger to metrics.jsonl and TensorBoard; texts go to TensorBoard alone."""

    def __init__(self, metrics: MetricsWriter) -> None:
        self._metrics = metrics

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """Write one dump; what is excluded from "jsonl" is a text, or the run's hyperparameters."""
        for tag, value in key_values.items():
            if isinstance(value, str):
                self._metrics.write_text(step, f"{tag}/text_summary", value)
            elif isinstance(value, HParam):
                for summary in hparams(value.hparam_dict, value.metric_dict):  # type: ignore[no-untyped-call] # torch's
                    self._metrics.add(step, summary)
        numbers = {k: float(v) for k, v in key_values.items() if "jsonl" not in key_excluded.get(k, ())}
        self._metrics.write(step, numbers)
        self._metrics.flush()

    def close(self) -> None:
        """Close both files."""
        self._metrics.close()


def make_logger(folder: RunFolder, done_steps: int, charts: Layout) -> Logger:
    """An SB3 logger that writes to TensorBoard and to metrics.jsonl, behind the steps that are done.

    Args:
        folder: the run's.
        done_steps: those of a run that is gone on with.
        charts: TensorBoard's, in their order.
    """
    metrics = MetricsWriter(folder.metrics, folder.tensorboard, first_step=done_steps + 1)
    metrics.add(done_steps + 1, custom_scalars(charts))  # type: ignore[no-untyped-call] # torch's
    return Logger(str(folder.path), [LoggerOutput(metrics)])


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
        self.audit = audit
        self.tally = Tally()
        """Of the rollout under way, or the last one."""
        self.rows = 0
        self._began_run_s = time.monotonic()
        self._running: dict[int, tuple[float, int]] = {}
        self._limit = FailureLimit(max_unscored)
        self._samples: list[str] = []
        self._rates = CallRates(dispatcher.totals())

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
        self._rates.restart(self.dispatcher.totals())
        self._allow_interrupts()

    def _on_step(self) -> bool:
        self.interrupt.raise_if_due()  # its calls may have been cancelled
        self.interrupt.allow(allowed=False)  # a row is written whole
        infos, rewards, dones = (self.locals[name] for name in ("infos", "rewards", "dones"))
        is_new = not self.folder.transitions.ahead  # failures before a resume say nothing of those to come
        for lane, (info, reward, done) in enumerate(zip(infos, rewards, dones, strict=True)):
            self.folder.transitions.write(transition_record(self.rows, lane, info, bool(done)))
            self._count(lane, info, float(reward), bool(done))
        self.folder.transitions.flush()
        self.rows += 1
        if is_new:
            self._limit.add(info["error"] if info["unscored"] else "" for info in infos)
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
        self.interrupt.raise_if_due()
        self.interrupt.allow(allowed=False)
        if audit.failed:
            failed = f"{len(audit.failed)} verdicts of the audit could not be had"
            write_stderr(f"{failed}; the first: {audit.failed[0]}")
        if audit.text:
            self.logger.record("audit/warning", audit.text, exclude="jsonl")
        if audit.raised_at != raised:
            write_stderr(audit.text)
        return metrics

    def _on_training_end(self) -> None:
        self._limit.check()

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

    def _speed(self) -> dict[str, float]:
        """Calls and steps per second of this rollout, and the servers' slots."""
        return {
            **self._rates.metrics(self.dispatcher.totals()),
            "time/env_steps_per_s": self.tally.rows / self._rates.wall_s,
            **self._capacity(),
        }

    def _capacity(self) -> dict[str, float]:
        """The slots found and the calls let in at once, by model, over all servers."""
        sums: Counter[str] = Counter()
        for (_, model), found in self.dispatcher.servers.capacities().items():
            sums[f"calls/limit_{model}"] += found.limit
            if found.slots:
                sums[f"calls/slots_{model}"] += found.slots
        return dict(sums)


def sample_text(info: Mapping[str, Any], reward: float) -> str:
    """One transition for TensorBoard's text page."""
    return (
        f"{info['mutator']} → {info['outcome']}, reward {reward:.2f}\n\n"
        f"original: {info['original_query']}\n\nmutated: {info['mutated_query']}\n\nreply: {info['reply']}"
    )


class ProgressLine(BaseCallback):
    """A bar and how the training stands on a terminal; elsewhere a plain line a minute.

    Failing calls and what is found out about the servers are said at once.

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
        self._monitor = monitor
        self._display = display or ProgressDisplay()
        self._name = name
        self._returns: deque[float] = deque(maxlen=TREND_WIDTH)
        self._last = Tally()
        """Of the last rollout that is complete."""
        self._display.begin(f"{name or 'training'} steps", total_steps, self._status)

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
        self._last = self.recorder.tally
        if self._last.episodes:
            self._returns.append(self._last.returns / self._last.episodes)

    def _status(self) -> Status:
        """Of the last rollout; in the first one, of what there is of it."""
        tally = self._last if self._last.rows else self.recorder.tally
        if not tally.rows:
            return Status(calls=self._monitor.line())
        per_s = self._display.per_s
        filtered = f"filtered {percent(tally.filtered, tally.scored)} · " if tally.filtered else ""
        came = (
            f"{f'{self._name}: ' if self._name else ''}{f'{digits(per_s)} steps/s · ' if per_s else ''}"
            f"success {percent(tally.successes, tally.episodes)} of {tally.episodes} episodes · "
            f"refused {percent(tally.refused, tally.scored)} · {filtered}"
            f"unscored {percent(tally.unscored, tally.rows)}"
        )
        mean = f"return {tally.returns / tally.episodes:.2f}" if tally.episodes else ""
        calls = self._monitor.line()
        return Status(outcome=came, score=mean, trend=list(self._returns), calls=calls)

    def stop(self) -> None:
        """Leave the terminal as it was; calling it twice is fine."""
        self._display.stop()
