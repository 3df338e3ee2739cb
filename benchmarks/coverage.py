"""How often intervals of 95 % hold the truth, and how often guard and --until-sure are wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from scipy.stats import binom  # type: ignore[import-untyped]

from benchmarks.results import Check, Table, at_least, at_most, run
from evaluation.gates import guard_verdict
from scorers.comparison import compare, compare_ratios, compare_seeds
from scorers.correction import LabelAccuracy, corrected_rate
from scorers.statistics import (
    Floats,
    Interval,
    exact_interval,
    mean_interval,
    rate_interval,
    ratio_interval,
)
from train.config import GainConfig
from train.gain import GainRecord

ABOUT = """\
Simulated evaluations whose truth is known: no model and no server, results are drawn. The share of
evaluations whose nominal 95 % interval holds the true value, and its mean width, above all where
trained policies are: most queries succeed, and few differ."""
Chance = np.random.Generator
Draw = Callable[[Chance], Sequence[float]]
"""Draws an evaluation: the lower and the upper end of its interval, and what it truly is."""
LOWEST = 0.93
"""The least share that is acceptable."""
QUERIES = (12, 30, 180)
STEPS, STEP_COST = 5, 0.05
LEAST, MOST = -STEPS * STEP_COST, 1 - STEP_COST
"""What a return can be."""
OTHER = 0.5
"""The rate of the baseline that several seeds are compared with."""
MARGIN = 0.05
LOOKS, KEPT = 24, 200
"""Looks of a training with --until-sure, and the queries it keeps."""


def measure(*, quick: bool) -> Iterator[Table | Check]:
    """All tables."""
    evaluations = 20 if quick else 1000
    yield from covered(
        "Rates and returns",
        "Queries are *alike* where two trials of one correlate: by 0.6, or for 90 % wholly. A "
        f"return: a success pays 1 and ends the episode, each of at most {STEPS} steps costs "
        f"{STEP_COST}. Lost queries end in {STEPS} refused steps.",
        {**rates(), **returns()},
        evaluations,
    )
    yield from covered(
        "Paired differences", "Two policies on the same queries.", differences(), evaluations
    )
    yield from covered(
        "Several seeds",
        "Networks that fail, .1 of the queries in place of .9, with that chance, or that differ "
        f"by that standard deviation; 60 queries. The difference is to a baseline of {OTHER}.",
        seeds(),
        evaluations,
    )
    yield from covered(
        "Rates corrected for label errors",
        "Refusals, 1 to 30 % in truth, with labels that err; sensitivity and specificity were "
        "measured on so many positives and negatives.",
        corrections(),
        evaluations,
    )
    yield from guard()
    yield from until_sure(evaluations)


def covered(
    title: str, about: str, draws: Mapping[str, Draw], evaluations: int
) -> Iterator[Table | Check]:
    """The share of intervals that hold the truth, for each way to draw an evaluation."""
    found = Parallel(n_jobs=2)(delayed(hold)(draw, evaluations) for draw in draws.values())
    yield Table(
        title=title,
        about=f"{about} {evaluations:,} evaluations a row.",
        rows=[
            {"evaluation": name, "holds the truth": share, "mean width": width}
            for name, (share, width) in zip(draws, found, strict=True)
        ],
    )
    worst = min(share for share, _ in found)
    yield at_least(f"{title.lower()}: the worst of {len(found)}", LOWEST, worst)


def hold(draw: Draw, evaluations: int) -> tuple[float, float]:
    """The share of intervals that hold the truth, and their mean width."""
    chance = np.random.default_rng(0)
    low, high, truth = np.array([draw(chance) for _ in range(evaluations)]).T
    return float(np.mean((low <= truth) & (truth <= high))), float(np.mean(high - low))


def rates() -> dict[str, Draw]:
    """Rates of queries with one or more trials."""
    draws: dict[str, Draw] = {}
    kinds = ((1, "no"), (4, "no"), (4, "0.6"), (4, "certain"))
    for queries, rate, (trials, alike) in product(QUERIES, (0.5, 0.9, 0.99), kinds):
        name = f"rate {rate}, {queries} queries x {trials}, alike: {alike}"
        draws[name] = partial(draw_rate, queries=queries, rate=rate, trials=trials, alike=alike)
    for queries, lost in product(QUERIES[1:], (0.01, 0.05)):
        name = f"refused steps, {lost:.0%} of {queries} queries lost"
        draws[name] = partial(draw_refused_steps, queries=queries, lost=lost)
    return draws


def draw_rate(
    chance: Chance, *, queries: int, rate: float, trials: int, alike: str
) -> Sequence[float]:
    """The rate of successes."""
    rates = np.full(queries, rate)
    if alike == "0.6":
        total = 1 / 0.6 - 1
        rates = chance.beta(rate * total, (1 - rate) * total, queries)
    elif alike == "certain":
        always = (chance.random(queries) < rate).astype(float)
        rates = np.where(chance.random(queries) < 0.9, always, rate)  # noqa: PLR2004 - as it says
    found = rate_interval([(int(count), trials) for count in chance.binomial(trials, rates)])
    return found.low, found.high, rate


def draw_refused_steps(chance: Chance, *, queries: int, lost: float) -> Sequence[float]:
    """The share of steps that are refused, where most queries have one step."""
    counts = [(STEPS, STEPS) if is_lost else (0, 1) for is_lost in chance.random(queries) < lost]
    found = rate_interval(counts, size=STEPS)
    return found.low, found.high, STEPS * lost / (1 + (STEPS - 1) * lost)


def returns() -> dict[str, Draw]:
    """Returns of a chance a step, and of few queries that lie far off."""
    draws: dict[str, Draw] = {}
    for queries, rate in product(QUERIES, (0.5, 0.9, 0.97)):
        name = f"return, {rate} a step, {queries} queries"
        draws[name] = partial(draw_return, queries=queries, rate=rate)
    for queries in QUERIES:
        name = f"+.05, and -1.2 in 4 %, {queries} queries"
        draws[name] = partial(draw_far, queries=queries)
    return draws


def draw_return(chance: Chance, *, queries: int, rate: float) -> Sequence[float]:
    """The mean return."""
    steps = chance.geometric(rate, queries)
    values = (steps <= STEPS) - STEP_COST * np.minimum(steps, STEPS)
    missed = 1 - rate
    truth = 1 - missed**STEPS - STEP_COST * sum(missed**k for k in range(STEPS))
    found = mean_interval(values[:, None].tolist(), least=LEAST, most=MOST)
    return found.low, found.high, truth


def draw_far(chance: Chance, *, queries: int) -> Sequence[float]:
    """The mean of values of which few lie far off."""
    values = np.where(chance.random(queries) < 0.04, -1.2, 0.05)  # noqa: PLR2004 - as it says
    found = mean_interval(values[:, None].tolist(), least=-1.25, most=MOST)
    return found.low, found.high, 0.96 * 0.05 - 0.04 * 1.2


def differences() -> dict[str, Draw]:
    """Two policies on the same queries."""
    draws: dict[str, Draw] = {}
    for queries, rate, gain in product(QUERIES, (0.5, 0.95), (0.0, 0.3)):
        name = f"success {rate}, {gain:.0%} of failures turned, {queries} queries"
        draws[name] = partial(draw_gain, queries=queries, rate=rate, gain=gain)
    for queries in QUERIES[1:]:
        name = f"calls an answer, 3 % of {queries} queries lost"
        draws[name] = partial(draw_costs, queries=queries)
    return draws


def draw_gain(chance: Chance, *, queries: int, rate: float, gain: float) -> Sequence[float]:
    """The difference in success between a policy and one that also gets some of its failures."""
    a, b = (chance.random((2, queries)) < rate).astype(float)
    a = np.maximum(a, chance.random(queries) < gain)
    found = compare(a[:, None].tolist(), b[:, None].tolist())
    return found.low, found.high, gain * (1 - rate)


def draw_costs(chance: Chance, *, queries: int) -> Sequence[float]:
    """The difference in calls an answer between equal policies."""
    lost = chance.random((2, queries)) < 0.03  # noqa: PLR2004 - as it says
    sides = [[[(12, 0) if each else (2, 1) for each in side]] for side in lost.tolist()]
    found = compare_ratios(*sides) or Interval(np.nan, -np.inf, np.inf)
    return found.low, found.high, 0.0


def seeds() -> dict[str, Draw]:
    """Rates of several seeds on the same queries, and their gain over a baseline."""
    draws: dict[str, Draw] = {}
    for count, (fail, differ) in product((5, 10), ((0.0, 0.05), (0.1, 0.0), (0.2, 0.0))):
        what = f"{count} seeds, {fail:.0%} fail, differ by {differ}"
        settings: dict[str, Any] = {"seeds": count, "fail": fail, "differ": differ}
        draws[f"rate, {what}"] = partial(draw_seeds, **settings, is_gain=False)
        draws[f"difference, {what}"] = partial(draw_seeds, **settings, is_gain=True)
    return draws


def draw_seeds(
    chance: Chance, *, seeds: int, fail: float, differ: float, is_gain: bool
) -> Sequence[float]:
    """The rate over seeds and queries, or what it is more than that of a baseline."""
    rates = np.where(chance.random(seeds) < fail, 0.1, 0.9)
    rates = np.clip(rates + differ * chance.uniform(-(3**0.5), 3**0.5, seeds), 0, 1)
    answered = (chance.random((seeds, 60)) < rates[:, None]).astype(float)
    truth = 0.9 - 0.8 * fail
    if not is_gain:
        cells = [[(int(each), 1) for each in seed] for seed in answered.tolist()]
        found = ratio_interval(cells)
        return found.low, found.high, truth
    other = (chance.random((1, 60)) < OTHER).astype(float)
    counts = [[[(each, 1) for each in row] for row in rows.tolist()] for rows in (answered, other)]
    gain = compare_seeds(*counts)
    return gain.low, gain.high, truth - OTHER


def corrections() -> dict[str, Draw]:
    """Rates of labels that err."""
    draws: dict[str, Draw] = {}
    labels = ((0.95, 0.95), (0.8, 0.97))
    for queries, (hit, right), samples in product((50, 180), labels, ((50, 50), (100, 300))):
        measured = f"measured on {samples[0]} and {samples[1]}"
        name = f"{queries} queries, sensitivity {hit}, specificity {right}, {measured}"
        draws[name] = partial(draw_correction, queries=queries, rates=(hit, right), samples=samples)
    return draws


def draw_correction(
    chance: Chance, *, queries: int, rates: tuple[float, float], samples: tuple[int, int]
) -> Sequence[float]:
    """The corrected rate of refusals."""
    truth = chance.uniform(0.01, 0.3)
    refused = chance.binomial(queries, truth)
    labelled = chance.binomial(refused, rates[0]) + chance.binomial(queries - refused, 1 - rates[1])
    found = chance.binomial(samples, rates) / samples
    accuracy = LabelAccuracy(
        sensitivity=found[0], specificity=found[1], positives=samples[0], negatives=samples[1]
    )
    share = Interval(labelled / queries, *exact_interval(int(labelled), queries))
    corrected = corrected_rate(share, accuracy)
    return corrected.low, corrected.high, truth


def guard() -> Iterator[Table | Check]:
    """How often a policy is said to keep the refusals, by what it truly unlocks."""
    shares = (0.0, 0.01, 0.02, MARGIN, 0.1)
    counts = (72, 100, 200, 500)
    yield Table(
        title="Guard queries: the chance that a policy passes",
        about=(
            f"At a margin of {MARGIN:g}, by how many of them the target refuses as they stand "
            "and by the share that the policy truly unlocks: of the binomial distribution."
        ),
        rows=[
            {"guard queries": n, **{f"{share:.0%} unlocked": passes(n, share) for share in shares}}
            for n in counts
        ],
    )
    worst = max(passes(n, MARGIN) for n in range(1, max(counts) + 1))
    what = f"chance to pass of a policy at the margin, the worst of 1 to {max(counts)} queries"
    yield at_most(what, 0.025, worst)


def passes(n: int, share: float) -> float:
    """The chance that at most the margin is said to be unlocked of n queries."""
    most = next(k for k in range(n + 1) if guard_verdict(k, n, MARGIN) != "kept") - 1
    return float(binom.cdf(most, n, share))


def until_sure(trainings: int) -> Iterator[Table | Check]:
    """How often a policy that gains nothing is said to gain, at any of its looks."""
    cases: dict[str, Callable[[Chance], bool]] = {
        f"wanders between two equal mutators, {LOOKS} looks": claims_wandering,
        "plays the best mutator (.8, the others .6), one look": claims_best,
    }
    rows: list[dict[str, Any]] = []
    for name, claims in cases.items():
        count = sum(claims(np.random.default_rng(seed)) for seed in range(trainings))
        low, high = exact_interval(count, trainings)
        row = {"policy": name, "trainings": trainings, "claimed": count / trainings}
        rows.append(row | {"95 % interval": f"{low:.3f} to {high:.3f}"})
        yield at_most(f"--until-sure claims a gain: {name}", 0.05, count / trainings)
    yield Table(
        title="--until-sure: false claims",
        about=f"Policies that gain nothing over the best fixed mutator, on {KEPT} kept queries.",
        rows=rows,
    )


def claims_wandering(chance: Chance) -> bool:
    """Whether a policy that changes a tenth of its choices between looks is said to gain."""
    fixed = (chance.random((2, KEPT)) < 0.5).astype(float)  # noqa: PLR2004 - equal mutators
    chosen, looks = chance.integers(2, size=KEPT), []
    for _ in range(LOOKS):
        moved = chance.integers(10, size=KEPT) == 0
        chosen = np.where(moved, chance.integers(2, size=KEPT), chosen)
        looks.append(fixed[chosen, np.arange(KEPT)])
    return claims_gain(looks, fixed)


def claims_best(chance: Chance) -> bool:
    """Whether a policy that is the best mutator is said to gain."""
    rates = np.array([0.8, 0.6, 0.6, 0.6])
    fixed = (chance.random((len(rates), KEPT)) < rates[:, None]).astype(float)
    return claims_gain([(chance.random(KEPT) < rates[0]).astype(float)], fixed)


def claims_gain(looks: Sequence[Floats], fixed: Floats) -> bool:
    """Whether any look's interval lies above 0."""
    record = GainRecord([str(query) for query in range(KEPT)], GainConfig())
    record.fixed = {str(number): results for number, results in enumerate(fixed)}
    for number, results in enumerate(looks, 1):
        record.add(results, steps=number, kept_steps=0, steps_left=1)
    return any(look.gain.low > 0 for look in record.looks)


if __name__ == "__main__":
    sys.exit(run("coverage", ABOUT, measure))
