"""The summary of a training run: one dictionary for machines, a few lines for people.

Its rates are counted from the lines of transitions.jsonl: those of the first and of the last
rollouts, an eighth of all each, or one at least.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from ollama_utils.connect import Connection
from records.terminal import printable
from scorers.correction import LabelAccuracy, corrected_rate
from scorers.statistics import FEWEST_SEEDS, Interval, mean_interval, rate_interval
from train.config import TrainConfig

SIMULATED = "SIMULATED: these figures are of the simulator, not of a model\n"
TOO_SHORT = (
    "(no episode is counted: one counts that began --max-steps steps of its lane before the end, "
    "or earlier; a longer run, --num-env-steps, has some, and so does mutagym eval)\n"
)
OVERLAP = "(the run is too short to have two ends: both columns have steps in common)\n"
ENDS = ("start", "end")
_ROWS = (
    ("success", "success", "episodes"),
    ("refusals", "refusal", "replies"),
    ("unlocked", "unlocked", "guard_episodes"),
)
"""Of the table: the title, and the keys of rate and count; the last where guard queries are learned
from, which count in no other."""
_HEAD = f"{'':14}{'first rollouts':>24}{'last rollouts':>24}\n"

Summary = dict[str, Any]
"""What summary.json says of a run."""
PER = 1000
"""A slope is the gain in so many steps."""
Sums = Counter[str]
"""Sums over steps, by TensorBoard's tags (of replies, of mutators that were chosen), and `scored`,
`unscored`, and `not_counted`, which is the part of `scored` in which nothing was asked or that is
on a guard query; over the episodes that began in some rows `episodes`, `returns`, `lengths`; of
guard queries `guard_episodes` and `unlocked`, of others `others` and `successes`."""
Trials = defaultdict[str, list[bool]]
"""By original query, whether it happened: trials of one query are alike."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of a run, or of several seeds."""

    summary: Summary
    stopped: BaseException | None
    """What ended it before its time."""


def sums_of(line: Mapping[str, Any]) -> Sums:
    """The part of a step, by its line of transitions.jsonl."""
    if line["unscored"]:
        return Counter(unscored=1)
    if line["outcome"] == "stopped":
        return Counter({"scored": 1, "not_counted": 1, f"mutators/{line['mutator']}": 1})
    undetermined, outcome, rejected = line["undetermined"], line["outcome"], line["rejected"]
    happened = {
        "outcome/answered_rate": outcome == "answered" and not undetermined,
        "outcome/refusal_rate": outcome == "refused",
        "outcome/partial_refusal_rate": line["partial"],
        "outcome/undetermined_rate": undetermined,
        "outcome/drifted_rate": not line["reward_parts"].get("intent_kept", 1.0),
        "mutators/adopted_rate": line["adopted"],
        "mutators/drifted_rate": rejected == "drifted",
    }
    if line["guard"]:  # its reply is neither a success nor a failure
        happened = {}
    sums: Sums = Counter({tag: int(each) for tag, each in happened.items()})
    sums.update(["scored", f"mutators/{line['mutator']}"])
    if line["guard"]:
        sums.update(["not_counted"])
        return sums
    sums.update(["outcome/filtered_rate"] if outcome == "filtered" else [])
    sums.update([f"rejected/{rejected}"] if rejected else [])
    sums.update({f"reward/{name}": value for name, value in line["reward_parts"].items()})
    return sums


def metrics_of(steps: Sums, episodes: Sums) -> dict[str, float]:
    """Rates and means over steps and over episodes, by TensorBoard's tag; none without any."""
    scored, unscored, count = steps["scored"], steps["unscored"], episodes["episodes"]
    replies = scored - steps["not_counted"]
    found: dict[str, float] = {"outcome/unscored_steps": unscored, "rollout/episodes": count}
    if scored + unscored:
        found["outcome/unscored_rate"] = unscored / (scored + unscored)
    if scored:
        of_replies = ("outcome/", "reward/", "rejected/", "mutators/adopted", "mutators/drifted")
        for tag, sum_of in steps.items():
            n = replies if tag.startswith(of_replies) else scored
            if "/" in tag and n:
                found[tag] = sum_of / n
    if count:
        found["rollout/ep_rew_mean"] = episodes["returns"] / count
        found["rollout/ep_len_mean"] = episodes["lengths"] / count
    if guards := episodes["guard_episodes"]:
        found["rollout/unlocked_rate"] = episodes["unlocked"] / guards
    if count > guards:
        found["rollout/success_rate"] = episodes["successes"] / (count - guards)
    return found


class Rows:
    """The rows of a training; an episode counts in the one in which it began."""

    def __init__(self) -> None:
        self._rows: list[Sums] = []
        self._open: dict[int, tuple[int, float, int]] = {}
        """By lane where its episode began, its return and its length so far."""

    def add(self, line: Mapping[str, Any]) -> int | None:
        """Count the next line of transitions.jsonl.

        Returns:
            Where the episode began that it ended; None if it ended none, or a failed call did.
        """
        if line["row"] == len(self._rows):
            self._rows.append(Counter())
        self._rows[line["row"]].update(sums_of(line))
        is_scored = not line["unscored"]
        began, total, length = self._open.pop(line["lane"], (int(line["row"]), 0.0, 0))
        total, length = total + line["reward"], length + is_scored
        if not (line["terminated"] or line["truncated"]):
            self._open[line["lane"]] = began, total, length
        elif is_scored:
            ended = {"episodes": 1, "returns": total, "lengths": length}
            which = ("guard_episodes", "unlocked") if line["guard"] else ("others", "successes")
            ended |= zip(which, (1, int(line["success"])), strict=True)
            self._rows[began].update(ended)
            return began
        return None

    def together(self, rows: range) -> Sums:
        """The sums over some rows."""
        sums: Sums = Counter()
        for row in self._rows[rows.start : rows.stop]:
            sums.update(dict(row))  # a copy, for another thread may add to the row
        return sums


class Span(NamedTuple):
    """The rows of one end of a training."""

    steps: range
    episodes: range
    """Those in which an episode that counts began."""


def ends_of(rows: int, rollout: int, max_steps: int) -> dict[str, Span]:
    """The two ends, by name; in a short training they overlap.

    An episode belongs to the row in which it began, for those that end soonest end well. In the
    last `max_steps` rows one may not have the time to end: none that began there counts.
    """
    size = max(1, rows // rollout // 8) * rollout
    last = range(max(0, rows - size), rows)
    begun = begun_in_time(last, max_steps)
    return {
        "start": Span(range(min(size, rows)), range(min(size, begun.stop))),
        "end": Span(last, begun),
    }


def begun_in_time(rows: range, max_steps: int) -> range:
    """As many rows, shifted so that what began in the last one had the time to end in `rows`."""
    return range(max(0, rows.start - max_steps + 1), max(0, rows.stop - max_steps + 1))


def ends_overlap(rows: int, rollout: int, max_steps: int) -> bool:
    """Whether both ends have rows in common: the training is too short to compare them."""
    start, end = ends_of(rows, rollout, max_steps).values()
    return start.steps.stop > end.steps.start


def rates(
    transitions: Iterable[Mapping[str, Any]],
    *,
    rows: int,
    rollout: int,
    max_steps: int,
    accuracy: LabelAccuracy | None = None,
    guarded: bool = False,
) -> dict[str, Any]:
    """Success and refusal rates in the first and the last rollouts, and counts over all steps.

    There are so many `rows` of all lanes, `rollout` of them in a rollout. In a `guarded` run guard
    queries are learned from. Where the accuracy of the
    labels is known, refusal rates are also corrected.
    """
    spans = ends_of(rows, rollout, max_steps)
    success: dict[str, Trials] = {end: defaultdict(list) for end in ENDS}
    refusal: dict[str, Trials] = {end: defaultdict(list) for end in ENDS}
    unlocked: dict[str, Trials] = {end: defaultdict(list) for end in ENDS}
    counted = Rows()
    for line in transitions:
        began, query = counted.add(line), line["original_query"]
        for end, span in spans.items():
            is_reply = line["outcome"] not in {"stopped", "unscored"} and not line["guard"]
            if line["row"] in span.steps and is_reply:
                refusal[end][query].append(line["outcome"] == "refused")
            if began in span.episodes:
                ended = unlocked if line["guard"] else success
                ended[end][query].append(line["success"])
    found: dict[str, Any] = {}
    for end in ENDS:
        counts = {"success": _counts(success[end]), "refusal": _counts(refusal[end])}
        if guarded:
            counts["unlocked"] = _counts(unlocked[end])
        for _, name, unit in _ROWS[: len(counts)]:
            found[f"{unit}_{end}"] = sum(of_query for _, of_query in counts[name])
            found[f"{name}_queries_{end}"] = len(counts[name])
            found |= _rate(name, end, rate_interval(counts[name]))
        if accuracy:
            corrected = corrected_rate(rate_interval(counts["refusal"]), accuracy)
            found |= _rate("refusal_corrected", end, corrected)
    sums = counted.together(range(rows))
    filtered, steps = sums["outcome/filtered_rate"], sums["scored"] + sums["unscored"]
    return {
        **found,
        "drifted_steps": sums["outcome/drifted_rate"],
        "drifted_rewrites": sums["mutators/drifted_rate"],
        "judge_repairs": int(sums["reward/judge_repaired"]),
        **({"filtered_steps": filtered} if filtered else {}),
        "unscored_steps": sums["unscored"],
        "unscored_rate": round(sums["unscored"] / steps, 4) if steps else None,
        "ends_overlap": ends_overlap(rows, rollout, max_steps),
    }


def played_by(config: TrainConfig, connection: Connection) -> Summary:
    """What learned, and on which models."""
    return {
        "algorithm": config.algorithm,
        "schedule": config.driven_by,
        "num_processes": config.num_processes,
        "target_model": connection.roles.target,
        "mutator_model": connection.roles.mutator,
    }


def summary_of_seeds(
    config: TrainConfig,
    connection: Connection,
    runs: Sequence[Summary],
    stopped: BaseException | None,
) -> Summary:
    """The runs of several seeds: sums, rates as means over the seeds, and each seed's own.

    The intervals hold the seeds' part alone: all seeds met the same training queries.
    """
    summed = ("env_steps", "unscored_steps", "llm_calls", "retries", "completion_tokens")
    summary: Summary = {
        "simulated": connection.simulated,
        "stopped": str(stopped) if stopped else None,
        "seeds": [run["seed"] for run in runs],
        **{name: sum(run[name] for run in runs) for name in summed},
        "wall_s": max(run["wall_s"] for run in runs),
        **played_by(config, connection),
        "runs": list(runs),
    }
    names = [name for _, name, _ in _ROWS if runs and f"{name}_rate_end" in runs[0]]
    for name, end in product(names or ("success", "refusal"), ENDS):
        rate = f"{name}_rate_{end}"
        found = [run[rate] for run in runs if run[rate] is not None]
        mean, *ends = mean_interval([[each] for each in found], least=0.0, most=1.0)
        enough = len(found) >= FEWEST_SEEDS
        summary[rate] = round(mean, 4) if found else None
        summary[f"{name}_interval_{end}"] = [round(x, 4) for x in ends] if enough else None
    return summary


def summary_text(summary: Summary, closing: str) -> str:
    """The summary of a run, or of several seeds, for a person: a table, notes, where the run is."""
    is_one = "runs" not in summary
    runs = [summary] if is_one else summary["runs"]
    lines = [SIMULATED if summary["simulated"] else "", _HEAD]
    for title, name, unit in _ROWS:
        if f"{name}_rate_end" not in runs[0]:
            continue
        of_run = [(title if is_one else f"{title} {run['seed']}", run) for run in runs]
        lines += [_line(each, run, name, unit) for each, run in of_run]
        if not is_one:
            lines.append(_line("  all seeds", summary, name))
    if "refusal_corrected_rate_end" in summary:
        lines.append(_line("  corrected", summary, "refusal_corrected"))
    for run in (run for run in runs if run.get("screened")):
        lines.append(_of_all(run, "" if is_one else f"seed {run['seed']}: "))
    over = "over the queries: trials of one query are not independent"
    if not is_one:
        over = "of a seed over its queries; of all over the seeds, from five on"
    lines.append(f"(95 % intervals {over})\n")
    if not any(run["episodes_start"] + run["episodes_end"] for run in runs):
        lines.append(TOO_SHORT)
    elif all(run["ends_overlap"] for run in runs):
        lines.append(OVERLAP)
    lines += _notes(summary) if is_one else []
    chosen = [(run, choice_text(run)) for run in runs if "saved" in run]
    lines += [text if is_one else f"seed {run['seed']}: {text}" for run, text in chosen]
    gains = [(run, gain_text(run)) for run in runs]
    lines += [text if is_one else f"seed {run['seed']}: {text}" for run, text in gains if text]
    hits = summary.get("cache_hits")
    lines += [
        f"unscored steps: {summary['unscored_steps']} of {summary['env_steps']} · ",
        f"model calls: {summary['llm_calls']}",
        "" if hits is None else f" (+ {hits} from the cache)",
        f" · {summary['wall_s']:.0f} s\n",
        closing,
    ]
    return printable("".join(lines))


def look_text(summary: Summary) -> str:
    """The last look at the kept queries, in a line; see `GainRecord.summary`."""
    look = summary["gain_looks"][-1]
    gain = _points(summary["gain"], summary["gain_interval"])
    line = f"look at step {look['env_steps']}: gain {gain} over {summary['gain_over']!r}, "
    line += "the best of the fixed mutators"
    if summary["gain_slope"] is not None:
        slope = _points(summary["gain_slope"], summary["gain_slope_interval"])
        line += f"; {slope} per {PER:,} steps since the last look"
    if unscored := summary["kept_unscored"]:
        line += f"; {unscored} kept queries could not be scored"
    return line


def choice_text(summary: Summary) -> str:
    """Which policy a run saved, and why, in a line."""
    saved, best = summary["saved"], summary["best_on_kept"]
    returns, kept = summary["kept_returns"], summary["kept_groups"]
    means = ", ".join(f"{name} {found['mean']:+.2f}" for name, found in returns.items())
    why = "it did best"
    if saved != best:
        behind, error = returns[saved]["behind"], returns[saved]["error"]
        why = (
            f"the simplest within one standard error of {best}, {behind:.2f} of {error:.2f} behind"
        )
    return f"saved: {saved} ({why}); return on {kept} kept queries: {means}\n"


def gain_text(summary: Summary) -> str:
    """The gain of a run, in lines for a person; empty where no queries are kept."""
    if not summary.get("gain_looks"):
        return ""
    end = summary["until_sure"]
    ended = f"  ended by --until-sure: {end}\n" if end else ""
    return (
        f"{look_text(summary)}\n{ended}"
        f"  {summary['kept_queries']} kept queries, {summary['kept_steps']} steps on them; "
        f"the 95 % are of all {len(summary['gain_looks'])} looks together; "
        "that more steps bring as much is a forecast\n"
    )


def _of_all(run: Summary, prefix: str) -> str:
    """What the rates are of, where queries were asked as they stand before the first rollout."""
    asked, answered = run["screened"], run["screened_answered"]
    line = f"({prefix}success is of queries without an answer as they stand; of all {asked}, "
    line += f"{answered / asked:.1%} were answered so"
    if run["success_rate_end"] is not None:
        opened = (run["success_rate_end"], *run["success_interval_end"])
        ends = [(answered + (asked - answered) * each) / asked for each in opened]
        line += ", and {:.1%} [{:.1%}, {:.1%}] with the last rollouts' policy".format(*ends)
    return f"{line})\n"


def _notes(summary: Summary) -> list[str]:
    """What there is to say of one run's steps."""
    filtered, estimated = summary.get("filtered_steps"), summary["estimated_thought_tokens"]
    lines = [
        f"drifted: {summary['drifted_steps']} steps asked for something else and earned nothing · ",
        f"{summary['drifted_rewrites']} rewrites were not adopted for it\n",
        f"{filtered} replies were ended by a content filter of the server\n" if filtered else "",
    ]
    if thoughts := summary["thought_tokens"] + estimated:
        about = "about " if estimated else ""
        lines.append(f"thoughts: {about}{thoughts} of {summary['completion_tokens']} tokens\n")
    return lines


def _line(title: str, summary: Summary, key: str, unit: str = "") -> str:
    """A line of the table: a rate in the first and the last rollouts, and of how many `unit`s."""
    line = f"{title:14}"
    for end in ENDS:
        rate, ends = summary[f"{key}_rate_{end}"], summary[f"{key}_interval_{end}"]
        cell = "-" if rate is None else f"{rate:.1%}"
        if rate is not None and ends is not None:
            cell += " [{:.1%}, {:.1%}]".format(*ends)
        line += f"{cell:>24}"
    if unit:
        counts = f"{summary[f'{unit}_start']}, {summary[f'{unit}_end']}"
        line += f"   of {counts} {unit.replace('_', ' ')}"
    return line + "\n"


def _points(mean: float, ends: Sequence[float]) -> str:
    """An interval of shares, in percentage points."""
    return "{:+.1f} points [{:+.1f}, {:+.1f}]".format(*(100 * each for each in (mean, *ends)))


def _rate(name: str, end: str, found: Interval) -> dict[str, Any]:
    """A rate at an end of a training, None without trials, and its 95 % interval."""
    mean, low, high = (round(value, 4) for value in found)
    return {
        f"{name}_rate_{end}": None if math.isnan(mean) else mean,
        f"{name}_interval_{end}": [low, high],
    }


def _counts(trials: Trials) -> list[tuple[int, int]]:
    """For each query how often it happened, and how often it could have."""
    return [(sum(each), len(each)) for each in trials.values()]
