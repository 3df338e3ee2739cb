"""What the charts of a run show, as plain data that `assets/charts.js` draws.

A chart of kind `curves` has panels of series; a point of a series is [[x of each axis], value, low, high].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from report.slots import Slots
from report.training import Estimate, Span, Training

Chart = dict[str, Any]
LEARNING_CURVES = "Learning curves"
"""The title of those of a training."""
LINEAGE = "Lineage"
NARROWING = "How each combination's interval narrowed"
STEPS = ("env steps", "target calls")
MOST_NAMES = 30
"""Mutators and categories of the heat map."""
COLORS = 14
"""As many names are told apart by their colour, see `assets/page.css`."""
OTHERS = "others"
MOST_PANELS = 12
"""Combinations of a selection whose intervals are drawn."""
_MEASURES = (
    ("Return of an episode", Span.mean_return, False),
    ("Success, share of episodes", Span.success_rate, True),
    ("Refusals, share of scored steps", Span.refusal_rate, True),
    ("Unscored, share of steps", Span.unscored_rate, True),
)


def learning_curves(name: str, windows: Sequence[Span]) -> Chart:
    """Return, success, refusals and unscored steps as a training goes on."""
    panels = []
    for title, of, percent in _MEASURES:
        points = [_point(at, of(span)) for at, span in zip(_places(windows), windows, strict=True)]
        panels.append({"title": title, "percent": percent, "series": [{"name": name, "points": points}]})
    return {
        "kind": "curves",
        "title": LEARNING_CURVES,
        "says": "Each point is of some rollouts, an episode counted where it began; bands are 95 % "
        "intervals. A target call is a question that the target was not asked before.",
        "axes": STEPS,
        "panels": panels,
    }


def overlaid(charts: Sequence[Chart]) -> Chart:
    """The learning curves of several runs in the same panels."""
    panels = [
        {**panel, "series": [chart["panels"][place]["series"][0] for chart in charts]}
        for place, panel in enumerate(charts[0]["panels"])
    ]
    return {**charts[0], "title": "Learning curves of the runs", "panels": panels, "compares": True}


def training_charts(training: Training, windows: Sequence[Span]) -> Iterator[Chart]:
    """Mutators over time, their success by category, and the reward's parts."""
    used: Counter[str] = Counter()
    for span in windows:
        used.update(span.mutators)
    names = _with_colors(used)
    yield {
        "kind": "shares",
        "title": "Mutators over time",
        "says": "The share of the scored steps in which the policy chose each mutator.",
        "axes": STEPS,
        "names": names,
        "points": [
            [at, _shares({name: n / max(1, span.scored) for name, n in span.mutators.items()}, names)]
            for at, span in zip(_places(windows), windows, strict=True)
        ],
    }
    yield heat_map(training.successes)
    parts = sorted({name for span in windows for name in span.parts})
    yield {
        "kind": "curves",
        "title": "The reward's parts",
        "says": "The mean of each part over the scored steps.",
        "axes": STEPS,
        "panels": [
            {"title": part, "percent": False, "series": [{"name": part, "points": _means(windows, part)}]}
            for part in parts
        ],
    }


def _with_colors(used: Counter[str]) -> list[str]:
    """The commonest names, the rest of them as others, where there are more than colours."""
    names = [name for name, _ in used.most_common()]
    return names if len(names) <= COLORS else [*names[: COLORS - 1], OTHERS]


def _shares(of: Mapping[str, float], names: Sequence[str]) -> list[float]:
    """The share of each of the names; of others, of all that is none of them."""
    rest = sum(share for name, share in of.items() if name not in names)
    return [round(of.get(name, 0.0) + (rest if name == OTHERS else 0.0), 4) for name in names]


def _most_common(counts: Counter[str]) -> set[str]:
    return {name for name, _ in counts.most_common(MOST_NAMES)}


def heat_map(successes: Mapping[tuple[str, str], Sequence[int]]) -> Chart:
    """How often each mutator succeeds in each category; the commonest of either where there are many."""
    mutators, categories = Counter[str](), Counter[str]()
    for (mutator, category), (_, n) in successes.items():
        mutators[mutator] += n
        categories[category] += n
    shown = _most_common(mutators), _most_common(categories)
    cells = [
        [mutator, category, *counts]
        for (mutator, category), counts in sorted(successes.items())
        if mutator in shown[0] and category in shown[1]
    ]
    left_out = len(successes) - len(cells)
    return {
        "kind": "heat",
        "title": "Success by mutator and category",
        "says": "The share of scored steps that ended with an answer that kept the intent, and of how "
        "many. What a policy chooses is not chosen by chance: compare mutators with mutagym eval."
        + (f" {left_out} cells of rare mutators or categories are left out." if left_out else ""),
        "cells": cells,
    }


def slots_chart(slots: Slots) -> Chart:
    """When the servers' slots were busy."""
    says = (
        f"{slots.count:,} calls on {len(slots.lanes)} lanes, busy {slots.busy:.0%} of the time. A bar ends "
        "when its reply was written down and is as long as the server says that it worked; gaps are "
        "idle time. A model has as many lanes as it was seen to work on calls at once."
    )
    if slots.untimed:
        says += f" {slots.untimed:,} more calls are left out: no server said how long it worked on them."
    if slots.left_out:
        says += f" {slots.left_out:,} more calls are left out: they are of too many servers and models."
    if slots.pauses:
        says += f" {slots.pauses} longer pauses are cut out: the run was stopped, and gone on with."
    return {"kind": "slots", "title": "The servers' slots", "says": says, **asdict(slots)}


def evaluation_charts(report: Mapping[str, Any]) -> Iterator[Chart]:
    """Success, refusals and return of the policies, with intervals; which mutators they used."""
    rows = [row for row in report["rates"] if row["policy"] is None]
    missions = len({row["mission"] for row in rows}) > 1
    names = [f"{row['team']} ({row['mission']})" if missions else str(row["team"]) for row in rows]
    measures = (
        ("success", "rate", "Success", True),
        ("refusal", "rate", "Refusals", True),
        ("return", "mean", "Return", False),
    )
    yield {
        "kind": "forest",
        "title": "Policies side by side",
        "says": "95 % intervals, clustered by query. Intervals may overlap where the paired comparison "
        "still tells two policies apart.",
        "panels": [
            {
                "title": title,
                "percent": percent,
                "rows": [
                    [name, *(_number(row[measure][each]) for each in (key, "low", "high"))]
                    for name, row in zip(names, rows, strict=True)
                ],
            }
            for measure, key, title, percent in measures
        ],
    }
    used: Counter[str] = Counter()
    for row in rows:
        used.update(row["mutators"])
    mutators = _with_colors(used)
    yield {
        "kind": "bars",
        "title": "Mutators that the policies chose",
        "says": "The share of their scored steps.",
        "names": mutators,
        "rows": [[name, _shares(row["mutators"], mutators)] for name, row in zip(names, rows, strict=True)],
    }


def evolution_charts(metrics: Sequence[Mapping[str, Any]], results: Mapping[str, Any]) -> Iterator[Chart]:
    """Fitness by generation, and where the prompts came from."""
    yield _of_metrics(
        "Fitness by generation",
        "generation",
        metrics,
        {
            "Fitness": ("evolve/best_fitness", "evolve/mean_fitness"),
            "Diversity of the population": ("evolve/diversity",),
            "Prompts": ("evolve/children", "evolve/duplicates", "evolve/stopped", "evolve/unscored"),
        },
    )
    if "births" in results:
        yield {
            "kind": "lineage",
            "title": LINEAGE,
            "says": "Each prompt that was tried, at its generation and fitness; a line leads to each of "
            "its parents, and the strong one to the best prompt. Below: how that came about, step by step.",
            "best": str(results["best_prompt"]),
            "births": [
                {
                    "generation": int(birth["generation"]),
                    "prompt": str(birth["prompt"]),
                    "parents": [int(parent) for parent in birth["parents"] if 0 <= int(parent) < place],
                    "steps": [str(step) for step in birth["steps"]],
                    "fitness": None if birth["fitness"] is None else float(birth["fitness"]),
                    "stopped": bool(birth["stopped"]),
                }
                for place, birth in enumerate(results["births"])
            ],
        }


def selection_charts(metrics: Sequence[Mapping[str, Any]], results: Mapping[str, Any]) -> Iterator[Chart]:
    """How the interval of each combination narrowed, and how the search went."""
    rows = [row for row in results.get("combinations", []) if "trail" in row]
    if rows:
        shown = rows[:MOST_PANELS]
        more = f" The first {len(shown)} of {len(rows)} are drawn." if len(rows) > len(shown) else ""
        yield {
            "kind": "curves",
            "title": NARROWING,
            "says": f"The mean score after so many datapoints; its interval holds at any time.{more}",
            "axes": ("datapoints",),
            "log": True,
            "domain": (0, 1),
            "panels": [
                {
                    "title": " · ".join(map(str, row["combination"].values())),
                    "percent": False,
                    "series": [
                        {
                            "name": "score",
                            "points": [
                                [[n], float(mean), float(low), float(high)]
                                for n, mean, low, high in row["trail"]
                            ],
                        }
                    ],
                }
                for row in shown
            ],
        }
    yield _of_metrics(
        "The search, round by round",
        "round",
        metrics,
        {
            "Best score": ("select/best",),
            "Combinations that may still be named": ("select/survivors",),
            "Evaluations so far": ("select/evaluations",),
        },
    )


def optimization_charts(metrics: Sequence[Mapping[str, Any]]) -> Iterator[Chart]:
    """Reward and fitness as an optimization goes on."""
    yield _of_metrics(
        "Reward and fitness",
        "steps",
        metrics,
        {
            "Reward": ("optimize/reward", "optimize/candidate_reward"),
            "Feedback": ("optimize/feedback",),
            "The critics' estimate": ("optimize/critic",),
            "Fitness of the population": ("population/best_fitness", "population/mean_fitness"),
        },
    )


def _number(value: Any) -> float | None:  # noqa: ANN401 - whatever a file holds
    """It as a number; None where it is not known."""
    return None if value is None else float(value)


def _of_metrics(
    title: str, axis: str, metrics: Sequence[Mapping[str, Any]], panels: Mapping[str, Sequence[str]]
) -> Chart:
    """Curves of what metrics.jsonl has; the panels say which keys each shows."""
    return {
        "kind": "curves",
        "title": title,
        "says": "",
        "axes": (axis,),
        "panels": [
            {
                "title": name,
                "percent": False,
                "series": [
                    {
                        "name": key.partition("/")[2].replace("_", " "),
                        "points": [
                            [[float(line["step"])], float(line[key]), None, None]
                            for line in metrics
                            if line.get(key) is not None
                        ],
                    }
                    for key in keys
                ],
            }
            for name, keys in panels.items()
        ],
    }


def _places(windows: Sequence[Span]) -> list[list[int]]:
    """Where the windows end: steps and target calls so far."""
    steps = calls = 0
    places = []
    for span in windows:
        steps, calls = steps + span.steps, calls + span.calls
        places.append([steps, calls])
    return places


def _means(windows: Sequence[Span], part: str) -> list[list[Any]]:
    return [
        [at, round(span.parts[part] / span.scored, 6), None, None]
        for at, span in zip(_places(windows), windows, strict=True)
        if span.scored
    ]


def _point(at: list[int], found: Estimate) -> list[Any]:
    return [at, found.value, found.low, found.high]
