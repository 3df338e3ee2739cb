"""What the charts of a run show, as plain data that `assets/charts.js` draws.

A chart is a table, `columns` and `rows`, with the options of its kind. None is not known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Chart = dict[str, Any]
Row = Sequence[Any]
Data = Mapping[str, Any]
MOST_NAMES = 30
"""Mutators and categories of the heat map."""
COLORS = 14
"""As many names are told apart by their colour, see `assets/page.css`."""
OTHERS = "others"
MOST_PANELS = 12
"""Combinations of a selection whose intervals are drawn."""
_ENDS = ("value", "low", "high")


def curves(
    title: str, rows: Sequence[Row], *, axes: Sequence[str], says: str = "", **options: object
) -> Chart:
    """Panels of lines with bands.

    A row is [panel, series, its place on each axis, value, low, high]; without a place it is a line
    across the panel. The options: `percents`, the panels that show shares; `wide`, one large panel
    whose lines are named; `choices`, whether series can be hidden; `log`; `domain` of the values.
    """
    columns = ("panel", "series", *axes, *_ENDS)
    chart = {"kind": "curves", "title": title, "says": says, "columns": columns, "rows": rows}
    return chart | {"percents": ()} | options


def shares(
    title: str,
    places: Sequence[tuple[Row, Mapping[str, float]]],
    *,
    kind: str,
    columns: Sequence[str],
    says: str,
) -> Chart:
    """How much each mutator was used in each place; rare ones are others where they are many.

    The kind is "areas" over time, or "bars"; the columns name what the places are.
    """
    used: Counter[str] = Counter()
    for _, of in places:
        used.update(of)
    names = [name for name, _ in used.most_common()]
    names[COLORS - 1 :] = [OTHERS] if len(names) > COLORS else names[COLORS - 1 :]
    rows = []
    for place, of in places:
        whole, counts = sum(of.values()), defaultdict[str, float](float)
        for name, n in of.items():
            counts[name if name in names else OTHERS] += n
        rows += [[*place, name, round(counts[name] / whole, 4)] for name in names if whole]
    columns = (*columns, "mutator", "share")
    return {"kind": kind, "title": title, "says": says, "columns": columns, "rows": rows}


def heat_map(successes: Mapping[tuple[str, str], Sequence[int]]) -> Chart:
    """How often each mutator succeeds in each category: [successes, scored steps] of each pair."""
    used = Counter[str](), Counter[str]()
    for pair, (_, n) in successes.items():
        for counter, name in zip(used, pair, strict=True):
            counter[name] += n
    mutators, categories = (dict(counter.most_common(MOST_NAMES)) for counter in used)
    rows = [
        [mutator, category, *counts]
        for (mutator, category), counts in sorted(successes.items())
        if mutator in mutators and category in categories
    ]
    left_out = len(successes) - len(rows)
    return {
        "kind": "heat",
        "title": "Success by mutator and category",
        "says": "The share of scored steps that ended with an answer that kept the intent, and of "
        "how many. What a policy chooses is not chosen by chance: compare mutators with mutagym "
        "eval."
        + (f" {left_out} cells of rare mutators or categories are left out." if left_out else ""),
        "columns": ("mutator", "category", "successes", "scored steps"),
        "rows": rows,
    }


def evaluation_charts(report: Data) -> Iterator[Chart]:
    """Success, refusals and return of the policies, with intervals; which mutators they used."""
    rows = [row for row in report["rates"] if row["policy"] is None]
    missions = len({row["mission"] for row in rows}) > 1
    names = [f"{row['team']} ({row['mission']})" if missions else str(row["team"]) for row in rows]
    yield {
        "kind": "forest",
        "title": "Policies side by side",
        "says": "95 % intervals, clustered by query. Intervals may overlap where the paired "
        "comparison still tells two policies apart.",
        "columns": ("panel", "policy", *_ENDS),
        "rows": [
            [panel, name, *(row[key][end] for end in (mean, "low", "high"))]
            for panel, key, mean in (
                ("Success", "success", "rate"),
                ("Refusals", "refusal", "rate"),
                ("Return", "return", "mean"),
            )
            for name, row in zip(names, rows, strict=True)
        ],
        "percents": ("Success", "Refusals"),
    }
    yield shares(
        "Mutators that the policies chose",
        [([name], row["mutators"]) for name, row in zip(names, rows, strict=True)],
        kind="bars",
        columns=("policy",),
        says="The share of their scored steps.",
    )


def evolution_charts(metrics: Sequence[Data], results: Data) -> Iterator[Chart]:
    """Fitness by generation, and which prompts the best one descends from."""
    panels = {
        "Fitness": ("evolve/best_fitness", "evolve/mean_fitness"),
        "Diversity of the population": ("evolve/diversity",),
        "Prompts": ("evolve/children", "evolve/duplicates", "evolve/stopped", "evolve/unscored"),
    }
    yield _of_metrics("Fitness by generation", "generation", metrics, panels)
    if results:
        births = results["births"]
        yield {
            "kind": "lineage",
            "title": "Lineage",
            "says": "Each prompt that was tried, at its generation and fitness; a line leads to "
            "each of its parents, and the strong one to the best prompt. Below: how that came "
            "about, step by step.",
            "columns": tuple(births[0]),
            "rows": [list(birth.values()) for birth in births],
            "best": results["best_prompt"],
        }


def selection_charts(metrics: Sequence[Data], results: Data) -> Iterator[Chart]:
    """How the interval of each combination narrowed, and how the search went."""
    if results:
        rows = results["combinations"]
        more = f" The first {MOST_PANELS} of {len(rows)} are drawn." * (len(rows) > MOST_PANELS)
        yield curves(
            "How each combination's interval narrowed",
            [
                [" · ".join(map(str, row["combination"].values())), "score", *point]
                for row in rows[:MOST_PANELS]
                for point in row["trail"]
            ],
            axes=("datapoints",),
            says="The mean score after so many datapoints; its interval holds at any time." + more,
            log=True,
            domain=(0, 1),
        )
    panels = {
        "Best score": ("select/best",),
        "Combinations that may still be named": ("select/survivors",),
        "Evaluations so far": ("select/evaluations",),
    }
    yield _of_metrics("The search, round by round", "round", metrics, panels)


def optimization_charts(metrics: Sequence[Data], _results: Data) -> Iterator[Chart]:
    """Reward and fitness as an optimization goes on."""
    panels = {
        "Reward": ("optimize/reward", "optimize/candidate_reward"),
        "Feedback": ("optimize/feedback",),
        "The critics' estimate": ("optimize/critic",),
        "Fitness of the population": ("population/best_fitness", "population/mean_fitness"),
    }
    yield _of_metrics("Reward and fitness", "steps", metrics, panels)


def _of_metrics(
    title: str, axis: str, metrics: Sequence[Data], panels: Mapping[str, Sequence[str]]
) -> Chart:
    """Curves of what metrics.jsonl has; the panels say which keys each shows."""
    rows = [
        [panel, key.partition("/")[2].replace("_", " "), line["step"], line[key], None, None]
        for panel, keys in panels.items()
        for key in keys
        for line in metrics
        if line.get(key) is not None
    ]
    return curves(title, rows, axes=(axis,))
