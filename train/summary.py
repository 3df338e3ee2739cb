"""What came of a training run: one dictionary for machines, a few lines for people.

The rates are counted from the run's transitions.jsonl, so that whoever has the file can count them again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from records.terminal import printable
from scorers.correction import LabelAccuracy, corrected_rate
from scorers.statistics import clustered_interval
from train.ends import ENDS, ends_of, ends_overlap
from train.recorder import Tally

if TYPE_CHECKING:
    from ollama_utils.connect import Connection
    from ollama_utils.reply_log import ReplyLog
    from records.run_folder import RunFolder
    from train.config import TrainConfig
    from train.learner import Learner
    from train.recorder import Recorder

SIMULATED = "SIMULATED: these figures are of the simulator, not of a model\n"
TOO_SHORT = (
    "(no episode is counted: one counts that began --max-steps steps of its lane before the end, or earlier; "
    "a longer run, --num-env-steps, tells its success, and so does mutagym eval)\n"
)
OVERLAP = "(the run is too short to have two ends: both columns have steps in common)\n"


class Rate:
    """A share of trials, kept apart by query: those of one query are alike."""

    def __init__(self) -> None:
        self.by_query: dict[str, tuple[int, int]] = {}
        """For each original query how often it happened, and how often it could have."""

    def count(self, query: str, *, happened: bool) -> None:
        """Count one trial."""
        before, n = self.by_query.get(query, (0, 0))
        self.by_query[query] = before + happened, n + 1

    def table(self, name: str, unit: str, end: str) -> dict[str, Any]:
        """The share (None without trials), its 95 % interval, and of how many trials and queries it is."""
        happened, n = (sum(counts[k] for counts in self.by_query.values()) for k in (0, 1))
        return {
            f"{name}_rate_{end}": _share(happened, n),
            f"{name}_interval_{end}": [round(x, 4) for x in clustered_interval(self.by_query.values())],
            f"{unit}_{end}": n,
            f"{name}_queries_{end}": len(self.by_query),
        }


def rates(
    transitions: Iterable[Mapping[str, Any]],
    *,
    rows: int,
    rollout: int,
    max_steps: int,
    accuracy: LabelAccuracy | None = None,
) -> dict[str, Any]:
    """Success and refusal rates in the first and the last rollouts, and counts over the whole run's steps.

    Args:
        transitions: the lines of transitions.jsonl.
        rows: how many rows of all lanes there are.
        rollout: rows of a rollout.
        max_steps: the step limit of an episode.
        accuracy: how often the labels are right; where it is known, refusal rates are also given corrected.
    """
    spans = ends_of(rows, rollout, max_steps)
    success, refusal = ({end: Rate() for end in spans} for _ in range(2))
    tally = Tally()
    began: dict[int, int] = {}
    for t in transitions:
        tally.count_step(t)
        first = began.setdefault(t["lane"], t["row"])
        if t["unscored"]:
            continue
        is_over = t["terminated"] or t["truncated"]
        if is_over:
            del began[t["lane"]]
        for end, span in spans.items():
            if t["row"] in span.steps:
                refusal[end].count(t["original_query"], happened=t["outcome"] == "refused")
            if is_over and first in span.episodes:
                success[end].count(t["original_query"], happened=t["success"])
    return {
        **{k: v for end in success for k, v in success[end].table("success", "episodes", end).items()},
        **{k: v for end in refusal for k, v in refusal[end].table("refusal", "scored_steps", end).items()},
        **{k: v for end in refusal for k, v in _corrected(refusal[end], end, accuracy).items()},
        "drifted_steps": tally.drifted,
        "drifted_rewrites": tally.drifted_rewrites,
        "judge_repairs": int(tally.parts["judge_repaired"]),
        **({"filtered_steps": tally.filtered} if tally.filtered else {}),
        "unscored_steps": tally.unscored,
        "unscored_rate": _share(tally.unscored, tally.scored + tally.unscored),
        "ends_overlap": ends_overlap(rows, rollout, max_steps),
    }


def summarise(
    config: TrainConfig,
    connection: Connection,
    learner: Learner,
    recorder: Recorder,
    accuracy: LabelAccuracy | None,
    ended: BaseException | None,
    replies: ReplyLog,
) -> dict[str, Any]:
    """The run in numbers. Rates are of episodes (success) or of scored steps (refusal); times in seconds."""
    transitions = recorder.folder.transitions
    spent = replies.totals()
    capacities = connection.dispatcher.servers.capacities().items()
    audit = recorder.audit
    return {
        "simulated": connection.simulated,
        "stopped": str(ended) if ended else None,
        "env_steps": transitions.count,
        "wall_s": round(recorder.wall_s, 3),
        **rates(
            transitions.read(),
            rows=recorder.rows,
            rollout=config.bandit_steps if config.steps_by_bandit else config.num_steps,
            max_steps=config.mission.max_steps,
            accuracy=accuracy,
        ),
        **(learner.looks.record.summary() if learner.looks else {}),
        **({"audit_alarm": audit.raised_at, "audit_warning": audit.text} if audit else {}),
        "algorithm": config.algorithm,
        "schedule": config.driven_by,
        "num_processes": config.num_processes,
        "seed": config.seed,
        "target_model": connection.roles.target,
        "mutator_model": connection.roles.mutator,
        "llm_calls": spent["calls"],
        "cache_hits": None if config.resume else int(connection.dispatcher.totals()["cache_hits"]),
        "retries": spent["retries"],
        **{name: count for name, count in spent.items() if name.endswith("_tokens")},
        "slots": {f"{model} at {host}": found.slots for (host, model), found in capacities if found.slots},
        "transitions_sha256": transitions.sha256,
        "weights_sha256": learner.weights_sha256(),
    }


def _corrected(refusal: Rate, end: str, accuracy: LabelAccuracy | None) -> dict[str, Any]:
    """The true refusal rate behind the labels' (Rogan-Gladen), None without trials, and its interval."""
    if accuracy is None:
        return {}
    mean, low, high = corrected_rate(refusal.by_query.values(), accuracy)
    return {
        f"refusal_corrected_rate_{end}": None if math.isnan(mean) else round(mean, 4),
        f"refusal_corrected_interval_{end}": [round(low, 4), round(high, 4)],
    }


def _share(part: int, whole: int) -> float | None:
    """None where there is nothing to take a share of."""
    return round(part / whole, 4) if whole else None


def print_summary(summary: dict[str, Any], folder: RunFolder, gain: str = "") -> None:
    """Print it for a person, on stdout, with what was found of the gain."""
    hits = summary["cache_hits"]
    corrected = "refusal_corrected_rate_end" in summary
    alarm, filtered = summary.get("audit_warning"), summary.get("filtered_steps")
    cached = "" if hits is None else f" (+ {hits} from the cache)"
    estimated = summary["estimated_thought_tokens"]
    thoughts = summary["thought_tokens"] + estimated
    lines = [
        SIMULATED if summary["simulated"] else "",
        f"{'':14}{'first rollouts':>24}{'last rollouts':>24}\n",
        _line("success", summary, "success", "episodes"),
        _line("refusals", summary, "refusal", "scored_steps"),
        _line("  corrected", summary, "refusal_corrected", "scored_steps") if corrected else "",
        "(95 % intervals, Wilson's on the effective n: trials of one query are not independent)\n",
        notes_on_ends([summary]),
        f"drifted: {summary['drifted_steps']} steps asked for something else and earned nothing · ",
        f"{summary['drifted_rewrites']} rewrites were not adopted for it\n",
        f"{filtered} replies were ended by a content filter of the server\n" if filtered else "",
        f"{alarm}\n" if alarm else "",
        gain,
        f"unscored steps: {summary['unscored_steps']} of {summary['env_steps']} · ",
        f"model calls: {summary['llm_calls']}{cached} · ",
        f"{summary['wall_s']:.0f} s\n",
        f"thoughts: {'about ' if estimated else ''}{thoughts} of {summary['completion_tokens']} tokens\n"
        if thoughts
        else "",
        folder.closing_message,
    ]
    print(printable("".join(lines)))


def notes_on_ends(runs: Sequence[Mapping[str, Any]]) -> str:
    """Why the table has no success rate, or the same in both columns; empty where it has two of some run."""
    if not any(run["episodes_start"] + run["episodes_end"] for run in runs):
        return TOO_SHORT
    return OVERLAP if all(run.get("ends_overlap") for run in runs) else ""


def _line(title: str, summary: dict[str, Any], key: str, unit: str) -> str:
    counts = f"{summary[f'{unit}_start']}, {summary[f'{unit}_end']}"
    return f"{rates_line(title, summary, key)}   of {counts} {unit.replace('_', ' ')}\n"


def rates_line(title: str, summary: Mapping[str, Any], key: str) -> str:
    """A rate in the first and the last rollouts, as a line of a table."""
    cells = []
    for end in ENDS:
        rate, (low, high) = summary[f"{key}_rate_{end}"], summary[f"{key}_interval_{end}"]
        cell = "-" if rate is None else f"{rate:.1%} [{low:.1%}, {high:.1%}]"
        cells.append(f"{cell:>24}")
    return f"{title:14}{''.join(cells)}"
