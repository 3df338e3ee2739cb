"""How often 95 % intervals hold the truth, in simulated evaluations whose truth is known.

python -m benchmarks.coverage    # 10,000 experiments a condition: a few minutes

Arrays are of shape (experiments, queries). A query has its own chance of success; how the chances of the
queries vary makes trials of one query alike.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Literal, get_args

import numpy as np
from scipy.special import betaln, ndtr, ndtri  # type: ignore[import-untyped]

from benchmarks.reporting import Check, Section, at_least, at_most, run
from scorers.comparison import compare
from scorers.correction import LabelAccuracy, corrected_rate
from scorers.statistics import (
    Floats,
    clustered_interval,
    clustered_intervals,
    seed_part,
    student_intervals,
)

Ends = tuple[Floats, Floats]
Alike = Literal["no", "0.2", "0.6", "60 % certain", "90 % certain"]
"""The correlation of two trials of one query; `certain`: so many queries succeed always or never."""
Effect = Literal["no effect", "0.05", "0.3", "mixed", "few"]
QUERIES, TRIALS = (20, 50, 180), (1, 4, 10)
LOWEST, HIGHEST = 0.94, 0.965
"""Between which the share of intervals that hold the truth is to lie."""
SEEDS, SEEDS_DIFFER = (3, 5, 10), (0.0, 0.15, 0.5)
SEEDS_LOWEST, SEEDS_HIGHEST = 0.9, 0.985
"""The same for the worst with several seeds, of which few tell little."""
QUERIES_DIFFER, OWN_DIFFER = 0.6, 0.5
"""How queries differ, and how one seed's network does in one query: standard deviations in probits."""
EXPERIMENTS = 10_000
RESAMPLES = 999
BOOTSTRAPPED = 1000
"""Of how many experiments at most the bootstraps are made: they take the longest by far."""
_Z = float(ndtri(0.975))
_SAME = 1e-9
_ENOUGH = 8
"""Queries that have to differ on average, for a difference's interval to be checked."""
_LEVEL = 0.05
_COMPARED = 20
"""One experiment in so many is tested, too."""
_CHECKED: Sequence[Effect] = ("no effect", "0.05", "0.3", "mixed")
_MISSING = 0.3
_CERTAIN = {"60 % certain": 0.6, "90 % certain": 0.9}
_MOVED, _FEW = 0.3, 0.05
_STEPS, _STEP_COST = 5, 0.1
RETURN_SPAN = 1 + (_STEPS - 1) * _STEP_COST
"""How far two returns can lie apart: success at once, and none in all steps."""


def sections(*, quick: bool) -> Iterator[Section]:
    """How it was done, and all tables, in the order of the document."""
    experiments = 5 if quick else EXPERIMENTS
    yield Section(title="How often the intervals hold", about=_method(experiments))
    yield rates(experiments)
    yield means(experiments)
    yield from differences(experiments)
    yield corrected(experiments)
    yield several_seeds(experiments)
    yield agreement(experiments)


def _method(experiments: int) -> str:
    bootstrapped = min(experiments, BOOTSTRAPPED)
    return (
        f"The share of {experiments:,} simulated evaluations whose nominal 95 % interval holds the true "
        f"value (of the first {bootstrapped:,} for the bootstraps, of {RESAMPLES} resamples). Each draws its "
        "true rate from 0.1 to 0.9, and then the chances of its queries: all the same (alike: no), "
        "beta-distributed so that two trials of a query correlate by 0.2 or 0.6, or for 60 or 90 % of the "
        "queries 0 or 1 (certain). "
        f"A share of 0.95 has a standard error of {(0.95 * 0.05 / experiments) ** 0.5:.1g}. "
        "No figure here is written by hand."
    )


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What an evaluation is like."""

    queries: int
    """How many queries there are."""
    trials: int
    """How many trials a query has; where some are missing, at most."""
    alike: Alike
    """How alike the trials of a query are."""

    def row(self) -> dict[str, Any]:
        """The cells that name it."""
        return {"queries": self.queries, "trials a query": self.trials, "alike": self.alike}

    def chances(self, stream: np.random.Generator, rate: Floats) -> Floats:
        """The chance of each query, (experiments, queries), of which `rate` (experiments, 1) is the mean."""
        shape = (len(rate), self.queries)
        if self.alike == "no":
            return np.broadcast_to(rate, shape)
        if self.alike in _CERTAIN:
            always = (stream.random(shape) < rate).astype(float)
            return np.where(stream.random(shape) < _CERTAIN[self.alike], always, rate)
        a, b = self._beta(rate)
        return stream.beta(a, b, shape)

    def mean_return(self, rate: Floats) -> Floats:
        """The mean of `returns` over all queries and episodes, (experiments,)."""
        steps = sum(self._mean_power(rate, k) for k in range(_STEPS))
        return np.asarray(1 - self._mean_power(rate, _STEPS) - _STEP_COST * steps)[:, 0]

    def _mean_power(self, rate: Floats, power: int) -> Floats:
        """The mean over queries of (1 - chance) ** power, for each experiment's rate."""
        alone = np.asarray((1 - rate) ** power)
        if self.alike == "no":
            return alone
        if self.alike in _CERTAIN:
            certain = _CERTAIN[self.alike]
            return certain * (1 - rate) ** min(power, 1) + (1 - certain) * alone
        a, b = self._beta(rate)
        return np.asarray(np.exp(betaln(a, b + power) - betaln(a, b)))

    def _beta(self, rate: Floats) -> Ends:
        """The parameters of the beta distribution with this mean and correlation."""
        total = 1 / float(self.alike) - 1
        return rate * total, (1 - rate) * total


def conditions() -> Iterator[Condition]:
    """All that are shown."""
    for queries, trials, alike in product(QUERIES, TRIALS, get_args(Alike)):
        yield Condition(queries=queries, trials=trials, alike=alike)


def drawn_rates(stream: np.random.Generator, experiments: int) -> Floats:
    """The true rate of each experiment, (experiments, 1)."""
    return stream.uniform(0.1, 0.9, (experiments, 1))


def lifted(stream: np.random.Generator, chances: Floats, rate: Floats, effect: Effect) -> Ends:
    """The chances of a policy that differs from one with `chances`, and the true difference, (experiments,).

    A number is the share of its failures that the other turns into successes in every query. `mixed`: 0.3 of
    them in half of the queries, and 0.3 of the successes into failures in the others. `few`: one query in 20
    always succeeds.
    """
    failing = 1 - rate[:, 0]
    if effect == "no effect":
        return chances, np.zeros(len(rate))
    if effect == "mixed":
        gains = stream.random(chances.shape) < 1 / 2
        return chances + _MOVED * (gains - chances), _MOVED * (failing - 1 / 2)
    if effect == "few":
        solved = stream.random(chances.shape) < _FEW
        return np.where(solved, 1.0, chances), _FEW * failing
    return chances + float(effect) * (1 - chances), float(effect) * failing


def returns(stream: np.random.Generator, chances: Floats, trials: int) -> Floats:
    """Each query's mean return: at most 5 steps that cost 0.1 each; a success pays 1 and ends the episode."""
    steps = stream.geometric(np.clip(chances, 1e-9, 1)[..., None], (*chances.shape, trials))
    return np.asarray(((steps <= _STEPS) - _STEP_COST * np.minimum(steps, _STEPS)).mean(-1))


def held(ends: Ends, truth: Floats) -> float:
    """The share of intervals, which may be of the first experiments alone, that hold the truth."""
    low, high = ends
    truth = truth[: len(low)]
    return float(np.mean((low <= truth + 1e-12) & (truth - 1e-12 <= high)))


def checks(what: str, shares: Sequence[float]) -> list[Check]:
    """All conditions together, and the worst on either side."""
    overall = sum(shares) / len(shares)
    inside = sum(LOWEST <= share <= HIGHEST for share in shares)
    worst = f"{what}: the worst of {len(shares)} cells, of which {inside} are within"
    return [
        at_least(f"{what}: all cells together", LOWEST, overall),
        at_most(f"{what}: all cells together", HIGHEST, overall),
        at_least(worst, LOWEST, min(shares)),
        at_most(worst, HIGHEST, max(shares)),
    ]


def plain_wilson(successes: Floats, trials: Floats) -> Ends:
    """Wilson's interval as if all trials were independent."""
    n = trials.sum(-1)
    rate, shrink = successes.sum(-1) / n, 1 + _Z**2 / n
    centre = (rate + _Z**2 / (2 * n)) / shrink
    half = _Z / shrink * np.sqrt(rate * (1 - rate) / n + _Z**2 / (4 * n**2))
    return centre - half, centre + half


def unpaired_normal(a: Floats, b: Floats, trials: int) -> Ends:
    """The normal interval for the difference of two rates, as if all trials were independent."""
    n = trials * a.shape[-1]
    first, second = a.mean(-1), b.mean(-1)
    half = _Z * np.sqrt((first * (1 - first) + second * (1 - second)) / n)
    return first - second - half, first - second + half


def percentile_bootstrap(sums: Floats, sizes: Floats) -> Ends:
    """The middle 95 % of the rates, or means, of resampled queries."""
    weights = _resamples(sums.shape[-1])
    sums, sizes = sums[:BOOTSTRAPPED], sizes[:BOOTSTRAPPED]
    low, high = np.quantile((sums @ weights.T) / (sizes @ weights.T), [0.025, 0.975], axis=-1)
    return low, high


def studentised_bootstrap(values: Floats) -> Ends:
    """The bootstrap-t interval of a mean over resampled queries (Efron and Tibshirani 1993, chapter 12)."""
    weights = _resamples(values.shape[-1]) / values.shape[-1]
    values = values[:BOOTSTRAPPED]
    mean = values.mean(-1)
    away = values - mean[:, None]
    moved = away @ weights.T
    spread = np.sqrt(np.maximum((away**2) @ weights.T - moved**2, 0))
    # A resample of equal values is infinitely far from the mean of others.
    far = np.where(np.abs(moved) > _SAME, np.sign(moved) / _SAME, 0)
    ratios = np.where(spread > _SAME, moved / np.maximum(spread, _SAME), far)
    low, high = np.quantile(ratios, [0.025, 0.975], axis=-1)
    return mean - high * values.std(-1), mean - low * values.std(-1)


@cache
def _resamples(queries: int) -> Floats:
    """How often each query is drawn in each resample, (resamples, queries); they serve all experiments."""
    stream = np.random.default_rng([6, queries])
    return stream.multinomial(queries, np.full(queries, 1 / queries), RESAMPLES).astype(np.float64)


def differences(experiments: int) -> Iterator[Section]:
    """Differences of two policies, where enough queries differ, and where too few do."""
    rows = [_difference_row(condition, experiments, number) for number, condition in enumerate(conditions())]
    enough = [row for row in rows if row["queries that differ"] >= _ENOUGH]
    yield Section(
        title="Coverage: differences",
        about="The interval of `compare` for two policies that share the chances of the queries: both "
        "have the same (no effect); one turns 0.05 or 0.3 of the other's failures into successes; it "
        "gains 0.3 in half of the queries and loses as much in the others (mixed); it always solves one "
        "query in 20 (few). Of the other methods the lowest and the highest of the five. These are the "
        f"conditions in which, without an effect, at least {_ENOUGH} queries come out differently on "
        "average. The checks leave out `few`: a sample may hold none of the few queries.",
        rows=enough,
        checks=checks("differences", [row[effect] for row in enough for effect in _CHECKED]),
    )
    yield Section(
        title="Coverage: differences where few queries differ",
        about=f"The same where fewer than {_ENOUGH} do. No method can be exact here. Ours errs on the "
        "wide side, except where few queries differ and all of them to one side.",
        rows=[row for row in rows if row["queries that differ"] < _ENOUGH],
    )


def _difference_row(condition: Condition, experiments: int, number: int) -> dict[str, Any]:
    """How often each method holds the difference, under each effect."""
    stream = np.random.default_rng([3, number])
    others = defaultdict[str, list[float]](list)
    row = condition.row()
    for effect in get_args(Effect):
        a, b, truth = _pairs(stream, condition, experiments, effect)
        values = a - b
        if effect == "no effect":
            row["queries that differ"] = round(float((values != 0).sum(-1).mean()), 1)
        row[effect] = held(student_intervals(values, np.ones(experiments)), truth)
        others["bootstrap-t"].append(held(studentised_bootstrap(values), truth))
        others["percentile bootstrap"].append(held(percentile_bootstrap(values, np.ones_like(values)), truth))
        others["independent trials"].append(held(unpaired_normal(a, b, condition.trials), truth))
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


def agreement(experiments: int) -> Section:
    """Interval and test on the same data, without and with a difference."""
    effects: Sequence[Effect] = ("no effect", "0.3")
    rows = [
        _agreement_row(Condition(queries=queries, trials=trials, alike="0.2"), effect, experiments)
        for queries, trials, effect in product(QUERIES, TRIALS, effects)
    ]
    return Section(
        title="Interval and test",
        about=(
            "What `compare` says of the same data by its interval and by its test, in a twentieth of the "
            "experiments; trials of a query are alike by 0.2."
        ),
        rows=rows,
    )


def _agreement_row(condition: Condition, effect: Effect, experiments: int) -> dict[str, Any]:
    stream = np.random.default_rng([5, condition.queries, condition.trials, effect == "no effect"])
    a, b, _ = _pairs(stream, condition, max(1, experiments // _COMPARED), effect)
    found = [compare(*_as_trials(x, y, condition.trials)) for x, y in zip(a, b, strict=True)]
    apart = [c.p_value for c in found if not c.low <= 0 <= c.high]
    missed = sum(c.p_value < _LEVEL and c.low <= 0 <= c.high for c in found)
    return {
        "queries": condition.queries,
        "trials a query": condition.trials,
        "effect": effect,
        "p < 0.05": sum(c.p_value < _LEVEL for c in found) / len(found),
        "interval without 0": len(apart) / len(found),
        "largest p of these": max(apart, default=None),
        "p < 0.05, interval with 0": missed / len(found),
    }


def _as_trials(a: Floats, b: Floats, trials: int) -> tuple[list[list[float]], list[list[float]]]:
    """The single trials behind the rates of each query."""
    first, second = (
        [[1.0] * won + [0.0] * (trials - won) for won in np.rint(rates * trials).astype(int).tolist()]
        for rates in (a, b)
    )
    return first, second


def rates(experiments: int) -> Section:
    """Success rates, with all trials there and with some missing."""
    # With one trial a query none is alike another: the kinds are the same.
    rows = [_rate_row(c, experiments) for c in conditions() if c.trials > 1 or c.alike == "no"]
    shares = [row[key] for row in rows for key in ("ours", "ours, 30 % missing") if row[key] is not None]
    return Section(
        title="Coverage: rates",
        about=(
            "`clustered_interval`, also with 30 % of the trials missing by chance (a query keeps one), "
            "beside the percentile bootstrap over queries and Wilson's interval as if all trials were "
            "independent."
        ),
        rows=rows,
        checks=checks("rates", shares),
    )


def _rate_row(condition: Condition, experiments: int) -> dict[str, Any]:
    stream = np.random.default_rng([1, condition.queries, condition.trials, len(condition.alike)])
    rate = drawn_rates(stream, experiments)
    chances = condition.chances(stream, rate)
    all_there = np.full(chances.shape, condition.trials)
    some = np.maximum(1, stream.binomial(condition.trials, 1 - _MISSING, chances.shape))
    successes, fewer = (stream.binomial(n, chances).astype(float) for n in (all_there, some))
    trials, truth = all_there.astype(float), rate[:, 0]
    return {
        **condition.row(),
        "ours": held(clustered_intervals(successes, trials), truth),
        "ours, 30 % missing": held(clustered_intervals(fewer, some.astype(float)), truth)
        if condition.trials > 1
        else None,
        "percentile bootstrap": held(percentile_bootstrap(successes, trials), truth),
        "plain Wilson": held(plain_wilson(successes, trials), truth),
    }


def means(experiments: int) -> Section:
    """Mean returns."""
    rows = [_mean_row(condition, experiments) for condition in conditions()]
    return Section(
        title="Coverage: mean returns",
        about=(
            "`mean_interval` of returns: a success pays 1 and ends the episode, each of at most 5 steps "
            "costs 0.1, and the rate is the chance of success at each step."
        ),
        rows=rows,
        checks=checks("returns", [row["ours"] for row in rows]),
    )


def _mean_row(condition: Condition, experiments: int) -> dict[str, Any]:
    stream = np.random.default_rng([2, condition.queries, condition.trials, len(condition.alike)])
    rate = drawn_rates(stream, experiments)
    values = returns(stream, condition.chances(stream, rate), condition.trials)
    truth, span = condition.mean_return(rate), np.full(experiments, RETURN_SPAN)
    return {
        **condition.row(),
        "ours": held(student_intervals(values, span, skewed=True), truth),
        "not moved for skewness": held(student_intervals(values, span), truth),
        "bootstrap-t": held(studentised_bootstrap(values), truth),
        "percentile bootstrap": held(percentile_bootstrap(values, np.ones_like(values)), truth),
    }


def corrected(experiments: int) -> Section:
    """Rates corrected for the errors of labels."""
    shapes, accuracies = ((50, 1), (50, 10), (180, 4)), ((0.95, 0.95), (0.8, 0.97), (0.7, 0.8))
    rows = [
        _corrected_row(Condition(queries=queries, trials=trials, alike="0.2"), accuracy, samples, experiments)
        for (queries, trials), accuracy, samples in product(shapes, accuracies, ((50, 50), (100, 300)))
    ]
    return Section(
        title="Coverage: corrected rates",
        about=(
            "`corrected_rate` with labels that err, whose sensitivity and specificity were measured on so "
            "many positives and negatives, beside `clustered_interval` of the labels as they are; trials of "
            "a query are alike by 0.2."
        ),
        rows=rows,
        checks=checks("corrected rates", [row["ours"] for row in rows]),
    )


def _corrected_row(
    condition: Condition, accuracy: tuple[float, float], samples: tuple[int, int], experiments: int
) -> dict[str, Any]:
    hit, right = accuracy
    stream = np.random.default_rng([4, condition.queries, *samples, round(100 * hit)])
    rate = drawn_rates(stream, experiments)
    true = stream.binomial(condition.trials, condition.chances(stream, rate))
    labelled = stream.binomial(true, hit) + stream.binomial(condition.trials - true, 1 - right)
    found = stream.binomial(samples, accuracy, (experiments, 2))
    ends = [
        _corrected_ends([(count, condition.trials) for count in counts], of, samples)
        for counts, of in zip(labelled.tolist(), found.tolist(), strict=True)
    ]
    low, high, raw_low, raw_high = np.array(ends).T
    truth: Floats = rate[:, 0]
    return {
        "queries": condition.queries,
        "trials a query": condition.trials,
        "sensitivity": hit,
        "specificity": right,
        "measured on": f"{samples[0]} and {samples[1]}",
        "ours": held((low, high), truth),
        "not corrected": held((raw_low, raw_high), truth),
    }


def several_seeds(experiments: int) -> Section:
    """Rates, returns and differences of a training of several seeds."""
    shapes = product(SEEDS, (50, 180), (1, 4), SEEDS_DIFFER)
    rows = [_seeds_row(*shape, experiments) for shape in shapes]
    shares = [row[name] for row in rows for name in ("rate", "return", "difference")]
    inside = sum(LOWEST <= share <= HIGHEST for share in shares)
    worst = (
        f"several seeds: the worst of {len(shares)} cells, of which {inside} are within {LOWEST} to {HIGHEST}"
    )
    return Section(
        title="Coverage: several seeds",
        about=(
            "The intervals over seeds and queries: of a rate, of a mean return, of the difference in rates "
            "from a policy without seeds; beside them that of a rate as if there were no other seeds. The "
            "chance of a success is Φ of a sum of normal deviates: of the query (standard deviation "
            f"{QUERIES_DIFFER}), of the seed (0, {SEEDS_DIFFER[1]} or {SEEDS_DIFFER[2]}: at a rate of 0.5 "
            f"about 0, 5 and 15 points) and of this seed in this query ({OWN_DIFFER})."
        ),
        rows=rows,
        checks=[
            at_least("several seeds: all cells together", LOWEST, sum(shares) / len(shares)),
            at_least(worst, SEEDS_LOWEST, min(shares)),
            at_most(worst, SEEDS_HIGHEST, max(shares)),
        ],
    )


def _seeds_row(seeds: int, queries: int, trials: int, differ: float, experiments: int) -> dict[str, Any]:
    stream = np.random.default_rng([7, seeds, queries, trials, round(100 * differ)])
    parts = [
        _seeds_held(stream, (size, seeds, queries), trials, differ)
        for size in np.diff([*range(0, experiments, 1000), experiments]).tolist()
    ]
    names = parts[0][1]
    shares = {name: sum(size * found[name] for size, found in parts) / experiments for name in names}
    return {"seeds": seeds, "queries": queries, "trials a query": trials, "seeds differ by": differ, **shares}


def _seeds_held(
    stream: np.random.Generator, shape: tuple[int, int, int], trials: int, differ: float
) -> tuple[int, dict[str, float]]:
    """Of so many experiments, seeds and queries: how many there were, and the share that held the truth."""
    count, _, queries = shape
    rate, other = drawn_rates(stream, count), drawn_rates(stream, count)
    by_query = QUERIES_DIFFER * stream.normal(size=(count, 1, queries))
    own = differ * stream.normal(size=(*shape[:2], 1)) + OWN_DIFFER * stream.normal(size=shape)
    spread = np.sqrt(1 + QUERIES_DIFFER**2 + OWN_DIFFER**2 + differ**2)
    chances = ndtr(ndtri(rate)[..., None] * spread + by_query + own)
    shared = np.sqrt(1 + QUERIES_DIFFER**2)
    against = stream.binomial(trials, ndtr(ndtri(other) * shared + by_query[:, 0])) / trials
    won = stream.binomial(trials, chances).astype(np.float64)
    paid = returns(stream, chances, trials)
    successes, n, part = (
        won.sum(1),
        np.full((count, queries), float(shape[1] * trials)),
        seed_part(won / trials),
    )
    difference = won.mean(1) / trials - against
    ends = {
        "rate": (clustered_intervals(successes, n, seeds=part), rate[:, 0]),
        "return": (
            student_intervals(
                paid.mean(1), np.full(count, RETURN_SPAN), skewed=True, seeds=[seed_part(paid)]
            ),
            _mean_return(ndtri(rate) * spread, np.sqrt(spread**2 - 1)),
        ),
        "difference": (
            student_intervals(difference, np.ones(count), seeds=[part]),
            (rate - other)[:, 0],
        ),
        "rate, these seeds alone": (clustered_intervals(successes, n), rate[:, 0]),
    }
    return count, {name: held(found, truth) for name, (found, truth) in ends.items()}


def _mean_return(middle: Floats, spread: float) -> Floats:
    """The mean of `returns`, (experiments,), where chances are Φ of normal deviates around `middle`."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    missed = 1 - ndtr(middle + spread * nodes)
    paid = 1 - missed**_STEPS - _STEP_COST * sum(missed**k for k in range(_STEPS))
    return np.asarray(paid @ weights / weights.sum())


def _corrected_ends(
    clusters: Sequence[tuple[int, int]], found: Sequence[int], samples: tuple[int, int]
) -> tuple[float, ...]:
    """The corrected interval and the raw one, for an accuracy measured on samples."""
    accuracy = LabelAccuracy(
        sensitivity=found[0] / samples[0],
        specificity=found[1] / samples[1],
        positives=samples[0],
        negatives=samples[1],
    )
    return (*corrected_rate(clusters, accuracy)[1:], *clustered_interval(clusters))


if __name__ == "__main__":
    sys.exit(run("coverage", "statistics.md"))
