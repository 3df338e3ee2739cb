"""The summary of a training run: one dictionary for machines, a few lines for people.

Its rates are counted from the lines of transitions.jsonl: those of the first and of the last
rollouts, an eighth of all each, or one at least.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from records.terminal import printable
from scorers.correction import LabelAccuracy, corrected_rate
from scorers.statistics import rate_interval

SIMULATED = "SIMULATED: these figures are of the simulator, not of a model\n"
TOO_SHORT = (
    "(no episode is counted: one counts that began --max-steps steps of its lane before the end, "
    "or earlier; a longer run, --num-env-steps, has some, and so does mutagym eval)\n"
)
OVERLAP = "(the run is too short to have two ends: both columns have steps in common)\n"
ENDS = ("start", "end")
_HEAD = f"{'':14}{'first rollouts':>24}{'last rollouts':>24}\n"

Sums = Counter[str]
"""Sums over steps, by TensorBoard's tags (of scored steps), and `scored` and `unscored`; over the
episodes that began in some rows `episodes`, `successes`, `returns` and `lengths`."""
Trials = defaultdict[str, list[bool]]
"""By original query, whether it happened: trials of one query are alike."""


def sums_of(line: Mapping[str, Any]) -> Sums:
    """The part of a step, by its line of transitions.jsonl."""
    if line["unscored"]:
        return Counter(unscored=1)
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
    sums: Sums = Counter({tag: int(each) for tag, each in happened.items()})
    sums.update(["scored", f"mutators/{line['mutator']}"])
    sums.update(["outcome/filtered_rate"] if outcome == "filtered" else [])
    sums.update([f"rejected/{rejected}"] if rejected else [])
    sums.update({f"reward/{name}": value for name, value in line["reward_parts"].items()})
    return sums


def step_metrics(sums: Sums) -> dict[str, float]:
    """Rates and means over steps by TensorBoard's tag; none without a denominator."""
    scored, unscored = sums["scored"], sums["unscored"]
    found: dict[str, float] = {"outcome/unscored_steps": unscored}
    if scored + unscored:
        found["outcome/unscored_rate"] = unscored / (scored + unscored)
    return found | {tag: count / scored for tag, count in sums.items() if scored and "/" in tag}


def episode_metrics(sums: Sums) -> dict[str, float]:
    """Means over episodes by TensorBoard's tag; none without one."""
    count = sums["episodes"]
    found: dict[str, float] = {"rollout/episodes": count}
    if count:
        found["rollout/ep_rew_mean"] = sums["returns"] / count
        found["rollout/ep_len_mean"] = sums["lengths"] / count
        found["rollout/success_rate"] = sums["successes"] / count
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
            ended = {"episodes": 1, "successes": int(line["success"]), "lengths": length}
            self._rows[began].update({**ended, "returns": total})
            return began
        return None

    def together(self, rows: range) -> Sums:
        """The sums over some rows."""
        sums: Sums = Counter()
        for row in self._rows[rows.start : rows.stop]:
            sums.update(row)
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
) -> dict[str, Any]:
    """Success and refusal rates in the first and the last rollouts, and counts over all steps.

    There are so many `rows` of all lanes, `rollout` of them in a rollout. Where the accuracy of the
    labels is known, refusal rates are also corrected.
    """
    spans = ends_of(rows, rollout, max_steps)
    success: dict[str, Trials] = {end: defaultdict(list) for end in ENDS}
    refusal: dict[str, Trials] = {end: defaultdict(list) for end in ENDS}
    counted = Rows()
    for line in transitions:
        began, query = counted.add(line), line["original_query"]
        for end, span in spans.items():
            if line["row"] in span.steps and not line["unscored"]:
                refusal[end][query].append(line["outcome"] == "refused")
            if began in span.episodes:
                success[end][query].append(line["success"])
    found: dict[str, Any] = {}
    for end in ENDS:
        found |= _rate(success[end], "success", "episodes", end)
        found |= _rate(refusal[end], "refusal", "scored_steps", end)
        if accuracy:
            mean, low, high = corrected_rate(rate_interval(_counts(refusal[end])), accuracy)
            found[f"refusal_corrected_rate_{end}"] = None if math.isnan(mean) else round(mean, 4)
            found[f"refusal_corrected_interval_{end}"] = [round(low, 4), round(high, 4)]
    sums = counted.together(range(rows))
    filtered = sums["outcome/filtered_rate"]
    return {
        **found,
        "drifted_steps": sums["outcome/drifted_rate"],
        "drifted_rewrites": sums["mutators/drifted_rate"],
        "judge_repairs": int(sums["reward/judge_repaired"]),
        **({"filtered_steps": filtered} if filtered else {}),
        "unscored_steps": sums["unscored"],
        "unscored_rate": _share(sums["unscored"], sums["scored"] + sums["unscored"]),
        "ends_overlap": ends_overlap(rows, rollout, max_steps),
    }


def summary_text(summary: Mapping[str, Any], closing: str, gain: str = "") -> str:
    """The summary for a person: a table, notes, the gain, and where the run is."""
    hits, estimated = summary["cache_hits"], summary["estimated_thought_tokens"]
    thoughts = summary["thought_tokens"] + estimated
    filtered = summary.get("filtered_steps")
    lines = [
        SIMULATED if summary["simulated"] else "",
        _HEAD,
        _line("success", summary, "success", "episodes"),
        _line("refusals", summary, "refusal", "scored_steps"),
    ]
    if "refusal_corrected_rate_end" in summary:
        lines.append(_line("  corrected", summary, "refusal_corrected", "scored_steps"))
    lines += [
        "(95 % intervals over the queries: trials of one query are not independent)\n",
        notes_on_ends([summary]),
        f"drifted: {summary['drifted_steps']} steps asked for something else and earned nothing · ",
        f"{summary['drifted_rewrites']} rewrites were not adopted for it\n",
        f"{filtered} replies were ended by a content filter of the server\n" if filtered else "",
        gain,
        f"unscored steps: {summary['unscored_steps']} of {summary['env_steps']} · ",
        f"model calls: {summary['llm_calls']}",
        "" if hits is None else f" (+ {hits} from the cache)",
        f" · {summary['wall_s']:.0f} s\n",
    ]
    if thoughts:
        about = "about " if estimated else ""
        lines.append(f"thoughts: {about}{thoughts} of {summary['completion_tokens']} tokens\n")
    return printable("".join([*lines, closing]))


def seeds_text(summary: Mapping[str, Any], closing: str, gain: str = "") -> str:
    """The same for a training of several seeds."""
    runs = summary["runs"]
    lines = [SIMULATED if summary["simulated"] else "", _HEAD]
    for name in ("success", "refusal"):
        lines += [_rates_line(f"{name} {run['seed']}", run, name) + "\n" for run in runs]
        lines.append(_rates_line("  all seeds", summary, name) + "\n")
    lines += [
        "(95 % intervals: of a seed over its queries; of all over the seeds, from five on)\n",
        notes_on_ends(runs),
        gain,
        f"unscored steps: {summary['unscored_steps']} of {summary['env_steps']} · ",
        f"model calls: {summary['llm_calls']} · {summary['wall_s']:.0f} s\n",
        closing,
    ]
    return printable("".join(lines))


def notes_on_ends(runs: Sequence[Mapping[str, Any]]) -> str:
    """Why the table has no success rate, or the same in both columns; empty where it has two."""
    if not any(run["episodes_start"] + run["episodes_end"] for run in runs):
        return TOO_SHORT
    return OVERLAP if all(run["ends_overlap"] for run in runs) else ""


def _rates_line(title: str, summary: Mapping[str, Any], key: str) -> str:
    """A rate in the first and the last rollouts, as a line of a table."""
    cells = []
    for end in ENDS:
        rate, ends = summary[f"{key}_rate_{end}"], summary[f"{key}_interval_{end}"]
        cell = "-" if rate is None else f"{rate:.1%}"
        if rate is not None and ends is not None:
            cell += " [{:.1%}, {:.1%}]".format(*ends)
        cells.append(f"{cell:>24}")
    return f"{title:14}{''.join(cells)}"


def _line(title: str, summary: Mapping[str, Any], key: str, unit: str) -> str:
    counts = f"{summary[f'{unit}_start']}, {summary[f'{unit}_end']}"
    return f"{_rates_line(title, summary, key)}   of {counts} {unit.replace('_', ' ')}\n"


def _rate(trials: Trials, name: str, unit: str, end: str) -> dict[str, Any]:
    """The share (None without trials), its 95 % interval, of how many trials and queries."""
    counts = _counts(trials)
    n = sum(of_query for _, of_query in counts)
    return {
        f"{name}_rate_{end}": _share(sum(happened for happened, _ in counts), n),
        f"{name}_interval_{end}": [round(x, 4) for x in rate_interval(counts)[1:]],
        f"{unit}_{end}": n,
        f"{name}_queries_{end}": len(counts),
    }


def _counts(trials: Trials) -> list[tuple[int, int]]:
    """For each query how often it happened, and how often it could have."""
    return [(sum(each), len(each)) for each in trials.values()]


def _share(part: int, whole: int) -> float | None:
    """A share; None where the whole is 0."""
    return round(part / whole, 4) if whole else None
