"""How often 95 % intervals hold the truth, in simulated evaluations whose truth is known.

python -m benchmarks.coverage    # 1,000 evaluations a condition: some ten minutes

Beside ours stand Student's interval over the queries' means, and the interval by betting that holds
at any time (`scorers.betting`), of the same evaluations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from benchmarks.reporting import Section, at_least, run
from scorers.betting import interval as betting_interval
from scorers.comparison import compare, compare_ratios, compare_seeds
from scorers.correction import LabelAccuracy, corrected_rate
from scorers.statistics import (
    Floats,
    Interval,
    exact_interval,
    mean_interval,
    rate_interval,
    ratio_interval,
    student_interval,
)

Chance = np.random.Generator
Ends = tuple[float, float]
EXPERIMENTS = 1000
LOWEST = 0.93
QUERIES = (12, 30, 180)
STEPS, STEP_COST = 5, 0.05
CERTAIN, FAR, DEAR, OTHER = 0.9, 0.04, 0.03, 0.5
"""Shares of queries that are certain, lie far off, take many calls; what a baseline answers."""
LEAST, MOST = -STEPS * STEP_COST, 1 - STEP_COST
"""What a return can be."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One simulated evaluation: what is said of it by each method."""

    ours: Ends
    values: Floats
    """(queries,), what Student's interval and the one by betting are of."""
    least: float = 0.0
    most: float = 1.0
    is_ratio: bool = False
    """Whether it is a ratio of two totals, on which nothing can be bet."""


Draw = Callable[[Chance], Evaluation]


def sections(*, quick: bool) -> Iterator[Section]:
    """All tables, in the order of the document."""
    experiments = 5 if quick else EXPERIMENTS
    about = (
        f"The share of {experiments:,} simulated evaluations whose nominal 95 % interval holds the "
        "true value, and the mean width, where trained policies are: most queries succeed. "
    )
    yield _section(
        "Coverage: rates and returns",
        about
        + "Alike: the chances of the queries are the same; beta-distributed so that two trials "
        "of a query correlate by 0.6; or 0 or 1 for 90 % of the queries (certain). A return: a "
        f"success pays 1 and ends the episode, each of at most {STEPS} steps costs {STEP_COST}.",
        {**dict(_rates()), **dict(_returns())},
        experiments,
    )
    yield _section(
        "Coverage: where outcomes are rare",
        about + "Few queries are lost for good: all their steps are refused, and their return is "
        "the least there can be, or -1.2 where the others have +.05.",
        dict(_rare()),
        experiments,
    )
    yield _section(
        "Coverage: differences",
        about
        + "Two policies on the same queries. p < .05: in how many of the evaluations without a "
        "difference the test finds one.",
        dict(_differences()),
        experiments,
    )
    yield _section(
        "Coverage: several seeds",
        about + "Of networks, each of which fails (.1 of the queries in place of .9) with that "
        "chance, or that differ by that standard deviation. Student's: variances over queries and "
        "over seeds added.",
        dict(_seeds()),
        experiments,
    )
    yield _corrected(experiments)


def _section(
    title: str, about: str, settings: dict[str, tuple[Draw, float]], experiments: int
) -> Section:
    rows = [_row(name, *setting, experiments) for name, setting in settings.items()]
    worst = min(row["ours"] for row in rows)
    checks = [at_least(f"{title.split(': ')[1]}: the worst of {len(rows)}", LOWEST, worst)]
    return Section(title=title, about=about, rows=rows, checks=checks)


def _row(name: str, draw: Draw, truth: float, experiments: int) -> dict[str, Any]:
    chance = np.random.default_rng(0)
    drawn = [draw(chance) for _ in range(experiments)]
    methods: dict[str, list[Ends]] = {"ours": [], "Student's": [], "betting": []}
    for each in drawn:
        methods["ours"].append(each.ours)
        values = np.atleast_2d(each.values)
        low, high = student_interval([values])
        methods["Student's"].append((max(each.least, low), min(each.most, high)))
        if len(values) == 1 and not each.is_ratio:
            span = each.most - each.least
            low, high = (float(end) for end in betting_interval((values[0] - each.least) / span))
            methods["betting"].append((each.least + span * low, each.least + span * high))
    found = {method: ends for method, ends in methods.items() if ends}
    return {
        "evaluation": name,
        **{method: _held(ends, np.full(len(ends), truth)) for method, ends in found.items()},
        **{
            f"{method}, width": float(np.mean([high - low for low, high in ends]))
            for method, ends in found.items()
        },
    }


def _chances(chance: Chance, rate: float, queries: int, alike: str) -> Floats:
    if alike == "certain":
        always = (chance.random(queries) < rate).astype(float)
        return np.where(chance.random(queries) < CERTAIN, always, rate)
    if alike == "0.6":
        total = 1 / 0.6 - 1
        return chance.beta(rate * total, (1 - rate) * total, queries)
    return np.full(queries, rate)


def _rates() -> Iterator[tuple[str, tuple[Draw, float]]]:
    for queries, rate in product(QUERIES, (0.5, 0.9, 0.95, 0.99)):
        for trials, alike in ((1, "no"), (4, "no"), (4, "0.6"), (4, "certain")):

            def draw(
                chance: Chance,
                queries: int = queries,
                rate: float = rate,
                trials: int = trials,
                alike: str = alike,
            ) -> Evaluation:
                counts = chance.binomial(trials, _chances(chance, rate, queries, alike))
                found = rate_interval([(int(count), trials) for count in counts])
                return Evaluation(ours=found[1:], values=counts / trials)

            yield f"rate {rate}, {queries} queries x {trials}, alike: {alike}", (draw, rate)


def _returns() -> Iterator[tuple[str, tuple[Draw, float]]]:
    for queries, rate in product(QUERIES, (0.5, 0.9, 0.97)):
        missed = 1 - rate
        truth = 1 - missed**STEPS - STEP_COST * sum(missed**k for k in range(STEPS))

        def draw(chance: Chance, queries: int = queries, rate: float = rate) -> Evaluation:
            steps = chance.geometric(rate, queries)
            values = (steps <= STEPS) - STEP_COST * np.minimum(steps, STEPS)
            return _mean(values)

        yield f"return, {rate} a step, {queries} queries", (draw, truth)


def _mean(values: Floats, least: float = LEAST, most: float = MOST) -> Evaluation:
    found = mean_interval([[value] for value in values.tolist()], least=least, most=most)
    return Evaluation(ours=found[1:], values=values, least=least, most=most)


def _rare() -> Iterator[tuple[str, tuple[Draw, float]]]:
    for queries in QUERIES:

        def far(chance: Chance, queries: int = queries) -> Evaluation:
            values = np.where(chance.random(queries) < FAR, -1.2, 0.05)
            return _mean(values, least=-1.25)

        yield f"+.05, and -1.2 in 4 %, {queries} queries", (far, 0.96 * 0.05 - 0.04 * 1.2)
    for queries, lost in product((30, 180), (0.01, 0.05)):

        def returns(chance: Chance, queries: int = queries, lost: float = lost) -> Evaluation:
            return _mean(np.where(chance.random(queries) < lost, LEAST, MOST))

        yield (
            f"return, {lost:.0%} of {queries} queries lost",
            (returns, lost * LEAST + (1 - lost) * MOST),
        )

        def refusals(chance: Chance, queries: int = queries, lost: float = lost) -> Evaluation:
            is_lost = chance.random(queries) < lost
            counts = [(STEPS, STEPS) if each else (0, 1) for each in is_lost.tolist()]
            found = rate_interval(counts, size=STEPS)
            refused, steps = np.where(is_lost, STEPS, 0), np.where(is_lost, STEPS, 1)
            residuals = (refused - found.mean * steps) / steps.mean()
            return Evaluation(ours=found[1:], values=found.mean + residuals, is_ratio=True)

        share = STEPS * lost / (1 + (STEPS - 1) * lost)
        yield f"refused steps, {lost:.0%} of {queries} queries lost", (refusals, share)


def _differences() -> Iterator[tuple[str, tuple[Draw, float]]]:
    for queries, rate, gain in product(QUERIES, (0.5, 0.95), (0.0, 0.3)):

        def draw(
            chance: Chance, queries: int = queries, rate: float = rate, gain: float = gain
        ) -> Evaluation:
            a, b = ((chance.random(queries) < rate).astype(float) for _ in range(2))
            a = np.maximum(a, chance.random(queries) < gain)
            return _difference(a, b, 0.0, 1.0)

        yield (
            f"success {rate}, {gain:.0%} of failures turned, {queries} queries",
            (draw, gain * (1 - rate)),
        )
    for queries in QUERIES:

        def far(chance: Chance, queries: int = queries) -> Evaluation:
            a = np.where(chance.random(queries) < FAR, -1.2, 0.05)
            return _difference(a, np.zeros(queries), -1.25, MOST)

        yield f"+.05, and -1.2 in 4 %, {queries} queries", (far, 0.0)
    for queries in (30, 180):

        def ratios(chance: Chance, queries: int = queries) -> Evaluation:
            lost = chance.random((2, queries)) < DEAR
            sides = [[(12, 0) if each else (2, 1) for each in side] for side in lost.tolist()]
            found = compare_ratios([sides[0]], [sides[1]]) or Interval(np.nan, -np.inf, np.inf)
            return Evaluation(
                ours=found[1:],
                values=12.0 * (lost[0].astype(float) - lost[1]),
                least=-12,
                most=12,
                is_ratio=True,
            )

        yield f"calls an answer, 3 % of {queries} queries lost", (ratios, 0.0)


def _difference(a: Floats, b: Floats, least: float, most: float) -> Evaluation:
    found = compare(
        [[value] for value in a.tolist()], [[value] for value in b.tolist()], least=least, most=most
    )
    span = most - least
    return Evaluation(ours=(found.low, found.high), values=a - b, least=-span, most=span)


def _seeds() -> Iterator[tuple[str, tuple[Draw, float]]]:
    def drawn(chance: Chance, seeds: int, fail: float, differ: float) -> Floats:
        rates = np.where(chance.random(seeds) < fail, 0.1, 0.9)
        rates = np.clip(rates + differ * chance.uniform(-1.7, 1.7, seeds), 0, 1)
        return (chance.random((seeds, 60)) < rates[:, None]).astype(float)

    for seeds, (fail, differ) in product((5, 10), ((0.0, 0.05), (0.1, 0.0), (0.2, 0.0))):

        def rate(
            chance: Chance, seeds: int = seeds, fail: float = fail, differ: float = differ
        ) -> Evaluation:
            answered = drawn(chance, seeds, fail, differ)
            cells = [[(int(each), 1) for each in seed] for seed in answered.tolist()]
            return Evaluation(ours=ratio_interval(cells)[1:], values=answered)

        def gain(
            chance: Chance, seeds: int = seeds, fail: float = fail, differ: float = differ
        ) -> Evaluation:
            answered = drawn(chance, seeds, fail, differ)
            other = (chance.random(60) < OTHER).astype(float)
            trials = [[[each] for each in seed] for seed in answered.tolist()]
            found = compare_seeds(trials, [[[each] for each in other.tolist()]])
            return Evaluation(ours=(found.low, found.high), values=answered - other, least=-1.0)

        what = f"{seeds} seeds, {fail:.0%} fail, differ by {differ}"
        truth = 0.9 - 0.8 * fail
        yield f"rate, {what}", (rate, truth)
        yield f"difference, {what}", (gain, truth - 0.5)


def _corrected(experiments: int) -> Section:
    rows: list[dict[str, Any]] = []
    for queries, (hit, right), samples in product(
        (50, 180), ((0.95, 0.95), (0.8, 0.97)), ((50, 50), (100, 300))
    ):
        chance, ends, raw = np.random.default_rng(0), [], []
        truths = chance.uniform(0.01, 0.3, experiments)
        for truth in truths:
            refused = chance.binomial(queries, truth)
            labelled = chance.binomial(refused, hit) + chance.binomial(queries - refused, 1 - right)
            found = chance.binomial(samples, (hit, right))
            accuracy = LabelAccuracy(
                sensitivity=found[0] / samples[0],
                specificity=found[1] / samples[1],
                positives=samples[0],
                negatives=samples[1],
            )
            share = Interval(labelled / queries, *exact_interval(int(labelled), queries))
            raw.append(share[1:])
            ends.append(corrected_rate(share, accuracy)[1:])
        rows.append(
            {
                "queries": queries,
                "sensitivity": hit,
                "specificity": right,
                "measured on": f"{samples[0]} and {samples[1]}",
                "ours": _held(ends, truths),
                "not corrected": _held(raw, truths),
            }
        )
    worst = min(float(row["ours"]) for row in rows)
    return Section(
        title="Coverage: corrected rates",
        about="`corrected_rate` of refusals, 1 to 30 % in truth, with labels that err, whose "
        "sensitivity and specificity were measured on so many positives and negatives.",
        rows=rows,
        checks=[at_least(f"corrected rates: the worst of {len(rows)}", LOWEST, worst)],
    )


def _held(ends: Sequence[Ends], truths: Floats) -> float:
    return float(
        np.mean([low <= truth <= high for (low, high), truth in zip(ends, truths, strict=True)])
    )


if __name__ == "__main__":
    sys.exit(run("coverage", "statistics.md"))
