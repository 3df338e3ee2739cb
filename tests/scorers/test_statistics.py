"""Intervals for rates and means, and for rates of labels that err: what they hold, how often."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest  # type: ignore[import-untyped]
from scipy.stats import t as student

from records.errors import UserError
from scorers.correction import LabelAccuracy, corrected_rate, read_accuracy
from scorers.statistics import (
    Floats,
    Interval,
    exact_interval,
    mean_interval,
    rate_interval,
    ratio_interval,
    student_interval,
    trials_without_success,
)

LEAST, MOST = -0.25, 0.95
"""What a return of five steps can be at the default cost."""
FEWER = settings(max_examples=15)
CLUSTERS = st.lists(
    st.integers(1, 4).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    min_size=1,
    max_size=40,
)
VALUES = st.lists(st.lists(st.floats(LEAST, MOST), min_size=1, max_size=3), min_size=1, max_size=20)
Clusters = list[tuple[int, int]]


@pytest.mark.parametrize(("successes", "n"), [(0, 12), (1, 12), (11, 12), (97, 100), (90, 180)])
def test_of_single_trials_it_is_scipys_exact_interval(successes: int, n: int) -> None:
    found = rate_interval([(1, 1)] * successes + [(0, 1)] * (n - successes))
    expected = binomtest(successes, n).proportion_ci(method="exact")
    assert found.mean == pytest.approx(successes / n)
    assert found[1:] == pytest.approx((expected.low, expected.high), abs=0.005)
    assert exact_interval(successes, n) == pytest.approx((expected.low, expected.high))


@FEWER
@given(CLUSTERS, st.randoms(use_true_random=False))
def test_an_interval_holds_the_rate_in_any_order_and_failures_mirror_successes(
    clusters: Clusters, random: Random
) -> None:
    found = rate_interval(clusters)
    assert 0 <= found.low <= found.mean <= found.high <= 1
    mirrored = rate_interval([(n - successes, n) for successes, n in clusters])
    assert mirrored == pytest.approx((1 - found.mean, 1 - found.high, 1 - found.low), abs=0.03)
    random.shuffle(clusters)
    assert rate_interval(clusters) == found
    tripled = rate_interval([(3 * successes, 3 * n) for successes, n in clusters])
    assert tripled == pytest.approx(found, abs=0.02)  # more trials of a query tell nothing new


Draw = Callable[[np.random.Generator], Interval]


def rare_return(queries: int) -> Draw:
    """+.05 in most queries and -1.2 in 4 %."""

    def draw(chance: np.random.Generator) -> Interval:
        values = np.where(chance.random(queries) < 0.04, -1.2, 0.05)
        return mean_interval([[value] for value in values.tolist()], least=-1.25, most=0.95)

    return draw


def refusals_of_lost_queries(share: float) -> Draw:
    """Most queries are answered at once; few are lost for good and refused in five steps each."""

    def draw(chance: np.random.Generator) -> Interval:
        lost = chance.random(30) < share
        return rate_interval([(5, 5) if each else (0, 1) for each in lost.tolist()], size=5)

    return draw


def certain_queries(chance: np.random.Generator) -> Interval:
    """Nine of ten queries are always answered or never, four trials each."""
    rates = np.where(chance.random(30) < 0.9, chance.random(30) < 0.9, 0.9)
    return rate_interval([(int(k), 4) for k in chance.binomial(4, rates)])


def one_of_five_seeds_fails(chance: np.random.Generator) -> Interval:
    rates = np.where(chance.random(5) < 0.2, 0.1, 0.9)
    answered = chance.random((5, 60)) < rates[:, None]
    return ratio_interval([[(int(each), 1) for each in seed] for seed in answered.tolist()])


@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (rare_return(30), 0.96 * 0.05 - 0.04 * 1.2),
        (refusals_of_lost_queries(0.05), 0.25 / 1.2),
        (certain_queries, 0.9),
        (one_of_five_seeds_fails, 0.2 * 0.1 + 0.8 * 0.9),
    ],
)
def test_an_interval_holds_the_truth_where_outcomes_are_rare(draw: Draw, truth: float) -> None:
    chance = np.random.default_rng(0)
    found = [draw(chance) for _ in range(150)]
    assert sum(each.low <= truth <= each.high for each in found) / len(found) >= 0.93


def test_under_five_seeds_there_is_no_interval_and_what_has_no_trials_counts_for_nothing() -> None:
    nothing = (0, 0)
    seed = [(1, 2), (1, 1), nothing]
    for seeds in ([seed] * 2, [seed] * 4, [seed, [nothing] * 3]):
        found = ratio_interval(seeds)
        assert found.mean == pytest.approx(2 / 3)
        assert math.isnan(found.low)
        assert math.isnan(found.high)
    assert 0 < ratio_interval([seed] * 5).low < ratio_interval([seed] * 50).low
    assert ratio_interval([*[seed] * 5, [nothing] * 3]) == ratio_interval([seed[:2]] * 5)
    mean, low, high = mean_interval([[], []], least=LEAST, most=MOST)
    assert math.isnan(mean)
    assert (low, high) == (LEAST, MOST)


def test_students_interval_is_scipys_and_adds_what_seeds_differ_by() -> None:
    values: Floats = np.random.default_rng(0).random(30)
    expected = student.interval(0.95, 29, values.mean(), values.std(ddof=1) / math.sqrt(30))
    assert student_interval([values[None]]) == pytest.approx(expected)
    assert student_interval([values[None], np.zeros((1, 30))]) == pytest.approx(expected)
    seeds = values[None] + np.array([[-0.1], [0.0], [0.1]])
    low, high = student_interval([seeds])
    assert high - low > expected[1] - expected[0]


@given(st.floats(0.001, 0.9))
def test_so_many_trials_without_success_show_a_bound_and_fewer_do_not(bound: float) -> None:
    n = trials_without_success(bound)
    assert exact_interval(0, n)[1] <= bound + 1e-12
    assert n == 1 or exact_interval(0, n - 1)[1] > bound - 1e-12
    assert trials_without_success(0.05) == 72


COUNTS = st.sampled_from([(positive, n) for n in range(1, 40) for positive in range(n + 1)])
LABELLED = COUNTS.map(lambda counts: labelled(*counts))
TOLD = {"sensitivity": 0.9, "specificity": 0.95, "positives": 100, "negatives": 200}


def accuracy(**other: float) -> LabelAccuracy:
    return LabelAccuracy(**{**TOLD, **other})  # type: ignore[arg-type]


def labelled(positive: int, n: int) -> Interval:
    return Interval(positive / n, *exact_interval(positive, n))


@given(LABELLED)
def test_labels_that_never_err_measured_without_end_leave_the_rate_as_it_is(
    found: Interval,
) -> None:
    sure = accuracy(sensitivity=1, specificity=1, positives=10**9, negatives=10**9)
    assert corrected_rate(found, sure) == pytest.approx(found, abs=1e-6)
    share = corrected_rate(labelled(40, 100), accuracy()).mean
    assert share == pytest.approx((0.4 + 0.95 - 1) / (0.9 + 0.95 - 1))


@given(LABELLED, st.floats(0.55, 1), st.floats(0.55, 1), st.integers(1, 500), st.integers(1, 500))
def test_the_interval_holds_the_share_and_stays_in_bounds(
    found: Interval, sensitivity: float, specificity: float, positives: int, negatives: int
) -> None:
    labels = LabelAccuracy(
        sensitivity=sensitivity, specificity=specificity, positives=positives, negatives=negatives
    )
    mean, low, high = corrected_rate(found, labels)
    assert 0 <= low <= mean + 1e-12
    assert mean - 1e-12 <= high <= 1


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (json.dumps({**TOLD, "positives": 1.5}), "human labels: positives Input should be"),
        (json.dumps({"n": 3}), "sensitivity Field required; specificity Field required"),
        (json.dumps({**TOLD, "sensitivity": 0.01}), "better than chance"),
        (json.dumps({**TOLD, "negatives": 0}), "negatives Input should be greater"),
        ("n,precision", "it is not JSON"),
    ],
)
def test_the_accuracy_is_read_or_an_error_names_its_file(
    written: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "judge.json"
    path.write_text(json.dumps({**TOLD, "n": 300, "kappa": 0.8}), encoding="utf-8")
    assert read_accuracy(str(path)) == accuracy()
    path.write_text(written, encoding="utf-8")
    with pytest.raises(UserError, match=r"--judge-accuracy: .*judge\.json: ") as caught:
        read_accuracy(str(path))
    assert said in str(caught.value)
