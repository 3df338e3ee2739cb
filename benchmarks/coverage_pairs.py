"""How often the interval of a paired difference holds the truth, and how it agrees with the test."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, get_args

import numpy as np

from benchmarks.experiments import (
    QUERIES,
    TRIALS,
    Condition,
    Effect,
    checks,
    conditions,
    drawn_rates,
    held,
    lifted,
)
from benchmarks.other_intervals import percentile_bootstrap, studentised_bootstrap, unpaired_normal
from benchmarks.tables import Section
from scorers.comparison import Comparison, compare
from scorers.statistics import Floats, student_intervals

_ENOUGH = 8
_LEVEL = 0.05
_COMPARED = 20
_CHECKED: Sequence[Effect] = ("none", "0.05", "0.3", "mixed")
_COLUMNS = {
    "queries": "queries",
    "trials": "trials a query",
    "alike": "alike",
    "differ": "queries that differ",
    "none": "no effect",
    **{effect: effect for effect in get_args(Effect)[1:]},
    "studentised": "bootstrap-t",
    "bootstrap": "percentile bootstrap",
    "unpaired": "independent trials",
}


def differences(experiments: int) -> list[Section]:
    """Differences of two policies, where enough queries differ, and where too few do."""
    rows = [_row(condition, experiments, number) for number, condition in enumerate(conditions())]
    enough = [row for row in rows if row["differ"] >= _ENOUGH]
    return [
        Section(
            title="Coverage: differences",
            about="The interval of `compare` for two policies that share the chances of the queries: both "
            "have the same (no effect); one turns 0.05 or 0.3 of the other's failures into successes; it "
            "gains 0.3 in half of the queries and loses as much in the others (mixed); it always solves one "
            "query in 20 (few). Of the other methods the lowest and the highest of the five. These are the "
            f"conditions in which, without an effect, at least {_ENOUGH} queries come out differently on "
            "average. The checks leave out `few`: a sample may hold none of the few queries.",
            rows=enough,
            columns=_COLUMNS,
            checks=checks("differences", [row[effect] for row in enough for effect in _CHECKED]),
        ),
        Section(
            title="Coverage: differences where few queries differ",
            about=f"The same where fewer than {_ENOUGH} do. No method can be exact here. Ours errs on the "
            "wide side, except where few queries differ and all of them to one side.",
            rows=[row for row in rows if row["differ"] < _ENOUGH],
            columns=_COLUMNS,
        ),
    ]


def _row(condition: Condition, experiments: int, number: int) -> dict[str, Any]:
    """How often each method holds the difference, under each effect."""
    stream = np.random.default_rng([3, number])
    others: dict[str, list[float]] = {"studentised": [], "bootstrap": [], "unpaired": []}
    row = condition.row()
    for effect in get_args(Effect):
        a, b, truth = _pairs(stream, condition, experiments, effect)
        values = a - b
        if effect == "none":
            row["differ"] = round(float((values != 0).sum(-1).mean()), 1)
        row[effect] = held(student_intervals(values, np.ones(experiments)), truth)
        others["studentised"].append(held(studentised_bootstrap(values), truth))
        others["bootstrap"].append(held(percentile_bootstrap(values, np.ones_like(values)), truth))
        others["unpaired"].append(held(unpaired_normal(a, b, condition.trials), truth))
    return row | {name: f"{min(shares):.3f} to {max(shares):.3f}" for name, shares in others.items()}


def _pairs(
    stream: np.random.Generator, condition: Condition, experiments: int, effect: Effect
) -> tuple[Floats, Floats, Floats]:
    """The success rates of two policies in each query, and the true difference."""
    rate = drawn_rates(stream, experiments)
    chances = condition.chances(stream, rate)
    better, truth = lifted(stream, chances, rate, effect)
    a, b = (stream.binomial(condition.trials, p) / condition.trials for p in (better, chances))
    return a, b, truth


def agreement(experiments: int) -> list[Section]:
    """Interval and test on the same data, without and with a difference."""
    effects: Sequence[Effect] = ("none", "0.3")
    rows = [
        _agreement_row(Condition(queries=queries, trials=trials, alike="0.2"), effect, experiments)
        for queries, trials, effect in product(QUERIES, TRIALS, effects)
    ]
    columns = {"queries": "queries", "trials": "trials a query", "effect": "effect", "test": "p < 0.05"}
    columns |= {"interval": "interval without 0", "largest": "largest p of these"}
    columns |= {"missed": "p < 0.05, interval with 0"}
    about = (
        "What `compare` says of the same data by its interval and by its test, in a twentieth of the "
        "experiments; trials of a query are alike by 0.2."
    )
    return [Section(title="Interval and test", about=about, rows=rows, columns=columns)]


def _agreement_row(condition: Condition, effect: Effect, experiments: int) -> dict[str, Any]:
    stream = np.random.default_rng([5, condition.queries, condition.trials, effect == "none"])
    a, b, _ = _pairs(stream, condition, max(1, experiments // _COMPARED), effect)
    found = [compare(*_as_trials(x, y, condition.trials)) for x, y in zip(a, b, strict=True)]
    apart = [c.p_value for c in found if not c.low <= 0 <= c.high]
    return {
        **condition.row(),
        "effect": effect,
        "test": _share(found, [c.p_value < _LEVEL for c in found]),
        "interval": len(apart) / len(found),
        "largest": max(apart, default=None),
        "missed": _share(found, [c.p_value < _LEVEL and c.low <= 0 <= c.high for c in found]),
    }


def _share(found: Sequence[Comparison], those: Sequence[bool]) -> float:
    return sum(those) / len(found)


def _as_trials(a: Floats, b: Floats, trials: int) -> tuple[list[list[float]], list[list[float]]]:
    """The single trials behind the rates of each query."""
    first, second = (
        [[1.0] * won + [0.0] * (trials - won) for won in np.rint(rates * trials).astype(int).tolist()]
        for rates in (a, b)
    )
    return first, second
