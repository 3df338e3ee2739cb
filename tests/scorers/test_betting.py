"""Tests and intervals by betting: valid at any time, certain in the end, the same however they are fed."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.betting import MeanTest, PairedTest, interval

scores = st.lists(st.floats(0, 1), min_size=1, max_size=40)
ternary = st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=60)


def paths(means: float | list[float], datapoints: int, runs: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random((runs, datapoints)) < means) * 1.0


def test_a_true_claim_is_rejected_as_seldom_as_delta_says_whenever_one_stops() -> None:
    for mean in (0.1, 0.5, 0.9):
        test = MeanTest(mean, shape=(2000,))
        test.add(paths(mean, 300, 2000, seed=1))
        for delta in (0.2, 0.05):
            assert test.rejects(delta).mean() <= delta


def test_without_replacement_too_a_true_claim_is_rejected_as_seldom_as_delta_says() -> None:
    chance = np.random.default_rng(2)
    ties = np.repeat([[1.0, -1.0, 0.0]], 40, axis=0).ravel()  # their mean is exactly 0
    shuffled = np.array([chance.permutation(ties) for _ in range(2000)])
    test = PairedTest(population=120, shape=(2000,))
    test.add(shuffled)
    for delta in (0.2, 0.05, 0.01):
        assert test.rejects(delta).mean() <= delta


def test_the_expected_e_value_over_all_orders_is_at_most_one() -> None:
    values = [1.0, 0.0, -1.0, 1.0, -1.0]
    for stop in range(1, 5):
        ends = [_last(order[:stop]) for order in permutations(values)]
        assert np.mean(ends) <= 1 + 1e-9


def _last(differences: tuple[float, ...]) -> float:
    """The capital after these differences, of five in all, by hand: shares of .02 to .8 side by side."""
    total = Fraction(0)
    for share in (2, 5, 10, 20, 35, 55, 80):
        capital, left = Fraction(1), Fraction(5, 2)
        for place, difference in enumerate(differences):
            mean, value = left / (5 - place), (1 + Fraction(difference)) / 2
            ratio = value / mean if mean else 1
            capital *= 1 + Fraction(share, 100) * (ratio - 1)
            left -= value
        total += capital
    return float(total / 7)


def test_the_evidence_is_the_largest_capital_on_the_way() -> None:
    differences = (1.0, 1.0, 0.0, -1.0)
    test = PairedTest(population=5)
    for end in range(1, 5):
        test.add([differences[end - 1]])
        most = max(1.0, *(_last(differences[:stop]) for stop in range(1, end + 1)))
        assert float(np.exp(test.log_evidence)) == pytest.approx(most)


def test_the_capital_now_may_be_less_than_the_largest_on_the_way() -> None:
    differences = (1.0, 1.0, -1.0)
    test = PairedTest(population=5)
    assert test.log_capital == 0
    test.add(differences)
    assert float(np.exp(test.log_capital)) == pytest.approx(_last(differences))
    assert test.log_capital < test.log_evidence


@given(ternary)
def test_after_the_whole_population_the_test_is_certain(differences: list[float]) -> None:
    test = PairedTest(population=len(differences))
    test.add(differences)
    if sum(differences) > 0:
        assert float(test.log_evidence) == math.inf
    else:
        assert float(test.log_evidence) < math.inf


@given(ternary, st.integers(0, 60))
def test_splitting_the_values_changes_no_bit(differences: list[float], split: int) -> None:
    whole, parts = PairedTest(population=60), PairedTest(population=60)
    whole.add(differences)
    parts.add(differences[:split])
    parts.add(differences[split:])
    assert whole.log_evidence == parts.log_evidence
    assert whole.count == parts.count == len(differences)


@given(st.lists(ternary.map(lambda row: (row * 10)[:10]), min_size=1, max_size=5))
def test_tests_side_by_side_are_as_those_alone(rows: list[list[float]]) -> None:
    together = PairedTest(population=12, shape=(len(rows),))
    together.add(rows)
    for row, evidence in zip(rows, together.log_evidence, strict=True):
        alone = PairedTest(population=12)
        alone.add(row)
        assert alone.log_evidence == evidence


def test_a_margin_asks_for_that_much_more() -> None:
    differences = [0.3] * 60
    plain, more, less = (PairedTest(margin=margin) for margin in (0.0, 0.3, -0.3))
    found = [float(test.add(differences)) for test in (less, plain, more)]
    assert found[0] > found[1] > found[2] == 0


@given(scores, st.floats(0.001, 0.5))
def test_the_interval_holds_the_mean_and_lies_in_0_to_1(values: list[float], delta: float) -> None:
    low, high = interval(values, delta)
    assert 0 <= low <= np.mean(values) <= high <= 1


@given(scores)
def test_of_the_whole_population_the_interval_is_the_mean(values: list[float]) -> None:
    low, high = interval(values, population=len(values))
    assert low == high == np.mean(values)


@given(scores, st.integers(1, 100))
def test_knowing_how_many_there_are_makes_the_interval_no_wider_where_it_matters(
    values: list[float], more: int
) -> None:
    size = len(values) + more
    low, high = interval(values, population=size)
    # What was not seen is worth between 0 and 1 each.
    assert sum(values) / size - 1e-6 <= low
    assert high <= (sum(values) + more) / size + 1e-6


@pytest.mark.parametrize("mean", [0.05, *(pytest.param(mean, marks=pytest.mark.soak) for mean in (0.5, 0.8))])
def test_an_interval_misses_the_population_at_any_time_as_seldom_as_delta_says(mean: float) -> None:
    drawn = paths(mean, 100, 300, seed=3)
    missed = np.zeros(300, dtype=bool)
    for count in (1, 2, 5, 10, 20, 50, 100):
        low, high = interval(drawn[:, :count], 0.1)
        missed |= (low > mean) | (high < mean)
    assert missed.mean() <= 0.1


@pytest.mark.parametrize("runs", [200, pytest.param(400, marks=pytest.mark.soak)])
def test_an_interval_misses_the_mean_of_the_dataset_as_seldom_as_delta_says(runs: int) -> None:
    drawn = paths(0.7, 100, runs, seed=4)
    truth = drawn.mean(1)
    missed = np.zeros(runs, dtype=bool)
    for count in (5, 20, 50, 80, 95, 100):
        low, high = interval(drawn[:, :count], 0.1, population=100)
        missed |= (low > truth + 1e-12) | (high < truth - 1e-12)
    assert missed.mean() <= 0.1


def test_no_score_tells_nothing() -> None:
    assert [float(end) for end in interval([])] == [0.0, 1.0]
    assert interval(np.zeros((3, 0)))[1].tolist() == [1.0, 1.0, 1.0]


def test_an_interval_narrows_with_the_scores() -> None:
    widths = [np.ptp(interval([0, 1] * half)) for half in (5, 50, 500)]
    assert widths[0] > widths[1] > widths[2]
    assert widths[1] < 0.35


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MeanTest(1.5), "a bound from 0 to 1, got 1.5"),
        (lambda: MeanTest(0.5, population=0), "a population of at least 1, got 0"),
        (lambda: PairedTest(margin=2), "a margin from -1 to 1, got 2"),
        (lambda: MeanTest(0.5).add([2.0]), r"values in \[0, 1\]"),
        (lambda: MeanTest(0.5).add([math.nan]), r"values in \[0, 1\]"),
        (lambda: MeanTest(0.5, population=2).add([0, 0, 0]), "at most 2 values, the population, got 3"),
        (lambda: interval([0.5], 0), "a delta above 0 and below 1, got 0"),
        (lambda: interval([1.5]), r"scores in \[0, 1\]"),
        (lambda: interval([0.5, 0.5], population=1), "at most 1 scores"),
    ],
)
def test_what_is_out_of_range_is_one_clear_line(make: object, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)
