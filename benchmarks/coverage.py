"""Measure how often 95 % intervals hold the truth, and write the tables into docs/statistics.md.

python -m benchmarks.coverage                    # 10,000 experiments a condition: a few minutes
python -m benchmarks.coverage --experiments 50   # quick, to stdout: figures of no meaning
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.coverage_pairs import agreement, differences
from benchmarks.experiments import RETURN_SPAN, Condition, checks, conditions, drawn_rates, held, returns
from benchmarks.other_intervals import (
    BOOTSTRAPPED,
    RESAMPLES,
    percentile_bootstrap,
    plain_wilson,
    studentised_bootstrap,
)
from benchmarks.tables import Section, between_marks
from scorers.correction import LabelAccuracy, corrected_rate
from scorers.statistics import Floats, clustered_interval, clustered_intervals, student_intervals

REPORT = Path(__file__).resolve().parents[1] / "docs" / "statistics.md"
EXPERIMENTS = 10_000
_MISSING = 0.3
_ABOUT = {"queries": "queries", "trials": "trials a query", "alike": "alike", "ours": "ours"}


def rates(experiments: int) -> list[Section]:
    """Success rates, with all trials there and with some missing."""
    # With one trial a query none is alike another: the kinds are the same.
    rows = [_rate_row(c, experiments) for c in conditions() if c.trials > 1 or c.alike == "no"]
    columns = _ABOUT | {"missing": "ours, 30 % missing"}
    columns |= {"bootstrap": "percentile bootstrap", "plain": "plain Wilson"}
    shares = [row[key] for row in rows for key in ("ours", "missing") if row[key] is not None]
    about = (
        "`clustered_interval`, also with 30 % of the trials missing by chance (a query keeps one), beside "
        "the percentile bootstrap over queries and Wilson's interval as if all trials were independent."
    )
    return [
        Section(
            title="Coverage: rates", about=about, rows=rows, columns=columns, checks=checks("rates", shares)
        )
    ]


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
        "missing": held(clustered_intervals(fewer, some.astype(float)), truth)
        if condition.trials > 1
        else None,
        "bootstrap": held(percentile_bootstrap(successes, trials), truth),
        "plain": held(plain_wilson(successes, trials), truth),
    }


def means(experiments: int) -> list[Section]:
    """Mean returns."""
    rows = [_mean_row(condition, experiments) for condition in conditions()]
    columns = _ABOUT | {"student": "not moved for skewness"}
    columns |= {"studentised": "bootstrap-t", "bootstrap": "percentile bootstrap"}
    about = (
        "`mean_interval` of returns: a success pays 1 and ends the episode, each of at most 5 steps costs "
        "0.1, and the rate is the chance of success at each step."
    )
    shares = [row["ours"] for row in rows]
    return [
        Section(
            title="Coverage: mean returns",
            about=about,
            rows=rows,
            columns=columns,
            checks=checks("returns", shares),
        )
    ]


def _mean_row(condition: Condition, experiments: int) -> dict[str, Any]:
    stream = np.random.default_rng([2, condition.queries, condition.trials, len(condition.alike)])
    rate = drawn_rates(stream, experiments)
    values = returns(stream, condition.chances(stream, rate), condition.trials)
    truth, span = condition.mean_return(rate), np.full(experiments, RETURN_SPAN)
    return {
        **condition.row(),
        "ours": held(student_intervals(values, span, skewed=True), truth),
        "student": held(student_intervals(values, span), truth),
        "studentised": held(studentised_bootstrap(values), truth),
        "bootstrap": held(percentile_bootstrap(values, np.ones_like(values)), truth),
    }


def corrected(experiments: int) -> list[Section]:
    """Rates corrected for the errors of labels."""
    shapes, accuracies = ((50, 1), (50, 10), (180, 4)), ((0.95, 0.95), (0.8, 0.97), (0.7, 0.8))
    rows = [
        _corrected_row(Condition(queries=queries, trials=trials, alike="0.2"), accuracy, samples, experiments)
        for (queries, trials), accuracy, samples in product(shapes, accuracies, ((50, 50), (100, 300)))
    ]
    columns = {"queries": "queries", "trials": "trials a query", "sensitivity": "sensitivity"}
    columns |= {"specificity": "specificity", "samples": "measured on", "ours": "ours"}
    columns |= {"raw": "not corrected"}
    about = (
        "`corrected_rate` with labels that err, whose sensitivity and specificity were measured on so many "
        "positives and negatives, beside `clustered_interval` of the labels as they are; trials of a query "
        "are alike by 0.2."
    )
    shares = [row["ours"] for row in rows]
    section = Section(
        title="Coverage: corrected rates",
        about=about,
        rows=rows,
        columns=columns,
        checks=checks("corrected rates", shares),
    )
    return [section]


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
        **condition.row(),
        "sensitivity": hit,
        "specificity": right,
        "samples": f"{samples[0]} and {samples[1]}",
        "ours": held((low, high), truth),
        "raw": held((raw_low, raw_high), truth),
    }


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


SECTIONS: Sequence[Callable[[int], list[Section]]] = (rates, means, differences, corrected, agreement)
"""In the order of the report."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the tables; the exit status is 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coverage", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--experiments", type=int, default=EXPERIMENTS, help="a condition; other than 10,000: to stdout"
    )
    experiments = parser.parse_args(argv).experiments
    sections = [section for measure in SECTIONS for section in measure(experiments)]
    text = "\n\n".join([_heading(experiments), *(section.markdown() for section in sections)])
    if experiments != EXPERIMENTS:
        print(text)
        return 0
    document = between_marks(REPORT.read_text(encoding="utf-8"), "benchmarks.coverage", text)
    REPORT.write_text(document, encoding="utf-8")
    missed = [check.what for section in sections for check in section.checks if not check.met]
    print(f"{len(missed)} targets missed", *missed, sep="\n  ", file=sys.stderr)
    return 1 if missed else 0


def _heading(experiments: int) -> str:
    bootstrapped = min(experiments, BOOTSTRAPPED)
    return (
        f"Made on {time.strftime('%Y-%m-%d')} by `python -m benchmarks.coverage`: the share of "
        f"{experiments:,} simulated evaluations whose nominal 95 % interval holds the true value (of the "
        f"first {bootstrapped:,} for the bootstraps, of {RESAMPLES} resamples). Each draws its true rate "
        "from 0.1 to 0.9, and then the chances of its queries: all the same (alike: no), beta-distributed so "
        "that two trials of a query correlate by 0.2 or 0.6, or for 60 or 90 % of the queries 0 or 1 "
        "(certain). "
        f"A share of 0.95 has a standard error of {(0.95 * 0.05 / experiments) ** 0.5:.1g}. "
        "No figure here is written by hand."
    )


if __name__ == "__main__":
    sys.exit(main())
