"""Two policies on the same queries: the difference, its interval, and the test."""

from __future__ import annotations

import math
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest  # type: ignore[import-untyped]

from scorers.comparison import Comparison, compare, holm

OUTCOMES = st.lists(st.integers(0, 1).map(float), min_size=1, max_size=4)
RETURNS = st.lists(st.integers(-20, 20).map(lambda k: k / 20), min_size=1, max_size=3)
PAIRS = st.lists(st.tuples(OUTCOMES, OUTCOMES), min_size=2, max_size=12) | st.lists(
    st.tuples(RETURNS, RETURNS), min_size=2, max_size=12
)
P_VALUES = st.lists(st.floats(0, 1), max_size=8)
Pairs = list[tuple[list[float], list[float]]]


def compared(pairs: Pairs) -> Comparison:
    return compare([a for a, _ in pairs], [b for _, b in pairs])


def test_the_difference_is_the_mean_over_queries_of_the_difference_of_means() -> None:
    found = compare([[1, 1], [0, 1], [0]], [[0, 1], [0], [0, 0, 0]])
    assert found.difference == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert (found.queries, found.wins, found.losses) == (3, 2, 0)


def test_where_many_queries_differ_evenly_the_interval_is_students() -> None:
    values = [0.1, 0.4, -0.2, 0.3, 0.5, 0.0, 0.2, 0.35]
    found = compare([[2 + value] for value in values], [[2.0] for _ in values])
    half = 2.3646242510102993 * np.std(values, ddof=1) / math.sqrt(8)
    assert (found.low, found.high) == pytest.approx((np.mean(values) - half, np.mean(values) + half))


@given(PAIRS, st.randoms(use_true_random=True))
def test_the_order_of_queries_and_of_trials_does_not_matter(pairs: Pairs, random: Random) -> None:
    again = [(list(a), list(b)) for a, b in pairs]
    random.shuffle(again)
    for pair in again:
        for trials in pair:
            random.shuffle(trials)
    assert compared(again) == compared(pairs)


@given(PAIRS)
def test_swapping_the_policies_turns_everything_round(pairs: Pairs) -> None:
    there, back = compared(pairs), compared([(b, a) for a, b in pairs])
    assert back.difference == pytest.approx(-there.difference, abs=1e-12)
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low), abs=1e-9)
    assert back.p_value == pytest.approx(there.p_value)
    assert (back.wins, back.losses, back.test) == (there.losses, there.wins, there.test)


@given(PAIRS)
def test_the_interval_holds_the_difference_and_a_success_stays_within_one(pairs: Pairs) -> None:
    found = compared(pairs)
    assert found.low - 1e-12 <= found.difference <= found.high + 1e-12
    assert 0 < found.p_value <= 1
    if all(value in {0, 1} for pair in pairs for trials in pair for value in trials):
        assert -1 <= found.low <= found.high <= 1


@given(PAIRS, OUTCOMES)
def test_a_query_on_which_both_do_the_same_does_not_change_the_p_value(
    pairs: Pairs, both: list[float]
) -> None:
    assert compared([*pairs, (both, both)]).p_value == pytest.approx(compared(pairs).p_value)


@given(PAIRS)
def test_where_all_is_chance_the_interval_holds_no_difference(pairs: Pairs) -> None:
    """Each query again with the policies exchanged: no flip of signs comes nearer to 0."""
    found = compared([*pairs, *((b, a) for a, b in pairs)])
    assert found.p_value == 1
    assert found.low <= 0 <= found.high


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40))
def test_with_one_success_or_failure_each_the_test_is_mcnemars(outcomes: list[tuple[int, int]]) -> None:
    found = compare([[a] for a, _ in outcomes], [[b] for _, b in outcomes])
    wins, losses = (sum(pair == one for pair in outcomes) for one in ((1, 0), (0, 1)))
    assert found.test == "exact McNemar"
    assert (found.wins, found.losses) == (wins, losses)
    expected = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert found.p_value == pytest.approx(expected)


@given(st.lists(st.integers(-12, 12), min_size=1, max_size=9))
def test_otherwise_the_p_value_is_the_share_of_all_flips_of_signs(differences: list[int]) -> None:
    flips = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in product((-1, 1), repeat=len(differences))
    ]
    found = compare([[d / 7] for d in differences], [[0.0] for _ in differences])
    expected = sum(flip >= abs(sum(differences)) for flip in flips) / len(flips)
    assert found.p_value == pytest.approx(expected)


def test_several_trials_that_agree_are_tested_as_one() -> None:
    """Eight queries won and one lost, three trials each, are McNemar's test of eight and one."""
    a, b = [[1, 1, 1]] * 8 + [[0, 0, 0]], [[0, 0, 0]] * 8 + [[1, 1, 1]]
    found = compare(a, b)
    assert found.test == "exact sign flips by query"
    assert found.p_value == pytest.approx(binomtest(8, 9).pvalue)


def test_a_query_without_trials_on_either_side_is_left_out_and_counted() -> None:
    found = compare([[1], [], [0], [1]], [[0], [1], [0], []])
    assert (found.queries, found.left_out) == (2, 2)
    assert found.difference == 0.5


def test_policies_that_never_differ_may_still_differ_on_other_queries() -> None:
    found = compare([[1]] * 20, [[1]] * 20)
    assert found.p_value == 1
    assert found.low == -found.high
    assert 0.1 < found.high < 0.25


def test_the_more_queries_agree_the_less_they_can_differ() -> None:
    few, many = (compare([[1]] * n, [[1]] * n) for n in (20, 180))
    assert 0 < many.high < few.high / 5


def test_a_policy_that_always_wins_may_not_always_win_elsewhere() -> None:
    found = compare([[1]] * 20, [[0]] * 20)
    assert 0.7 < found.low < 0.95
    assert found.high == 1


def test_the_span_of_returns_says_how_far_equal_ones_may_lie_apart() -> None:
    wide = compare([[0, 10]] * 20, [[0, 10]] * 20)
    narrow = compare([[0, 1]] * 20, [[0, 1]] * 20)
    assert wide.high == pytest.approx(10 * narrow.high)


def test_one_query_tells_nothing_of_others() -> None:
    assert compare([[1]], [[0]]).low == -1
    assert compare([[0.5]], [[0.3]]).high == math.inf


def test_without_queries_there_is_no_difference_to_tell() -> None:
    found = compare([[], [1]], [[1], []])
    assert math.isnan(found.difference)
    assert (found.queries, found.left_out, found.p_value) == (0, 2, 1)


def test_without_any_trial_nothing_says_that_the_values_are_successes() -> None:
    found = compare([[], [0.95]], [[0.9], []])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert "McNemar" not in found.test
    nothing = compare([[], []], [[], []])
    assert (nothing.low, nothing.high, nothing.left_out) == (-math.inf, math.inf, 2)
    assert "McNemar" not in nothing.test


def test_successes_of_different_queries_are_successes_still() -> None:
    found = compare([[], [1]], [[0], []])
    assert (found.low, found.high) == (-1, 1)


def test_the_deviation_is_that_of_the_queries_differences() -> None:
    found = compare([[1], [0], [1], [1]], [[0], [0], [0], [1]])
    assert found.deviation == pytest.approx(np.std([1, 0, 1, 0], ddof=1))
    assert math.isnan(compare([[1]], [[0]]).deviation)


@pytest.mark.parametrize("b", [0, 1])
def test_where_all_differences_are_the_same_the_deviation_is_as_if_one_were_not(b: int) -> None:
    found = compare([[1]] * 20, [[b]] * 20)
    assert found.deviation == pytest.approx(np.std([1, *[0] * 19], ddof=1))


def test_other_queries_are_an_error() -> None:
    with pytest.raises(ValueError, match="got 1 and 2 queries"):
        compare([[1]], [[1], [0]])


def test_an_impossible_confidence_is_an_error() -> None:
    with pytest.raises(ValueError, match="got 95"):
        compare([[1]], [[0]], confidence=95)


def test_holm_multiplies_the_smallest_by_how_many_there_are() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []


@given(P_VALUES)
def test_corrected_p_values_are_no_smaller_and_keep_their_order(p_values: list[float]) -> None:
    found = holm(p_values)
    assert all(p - 1e-12 <= q <= 1 for p, q in zip(p_values, found, strict=True))
    ordered = [q for _, q in sorted(zip(p_values, found, strict=True))]
    assert ordered == sorted(ordered)


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_an_impossible_p_value_is_an_error(p: float) -> None:
    with pytest.raises(ValueError, match="expected p-values from 0 to 1"):
        holm([0.5, p])
