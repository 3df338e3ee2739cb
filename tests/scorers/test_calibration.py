"""A calibrated score keeps the order of the raw ones and comes nearer to what the feedback said."""

from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.critic import Calibration, brier_score, calibration_error

SHARES = st.floats(0, 1, width=32)
PAIRS = st.lists(st.tuples(SHARES, SHARES), max_size=60)
SOON = 5


def told(pairs: list[tuple[float, float]], least_pairs: int = SOON) -> Calibration:
    calibration = Calibration(least_pairs=least_pairs)
    for score, value in pairs:
        calibration.update(score, value)
    return calibration


@given(PAIRS, st.lists(SHARES, min_size=2, max_size=10))
def test_the_order_of_scores_is_kept_and_they_stay_shares(
    pairs: list[tuple[float, float]], scores: list[float]
) -> None:
    calibration = told(pairs)
    after = [calibration(score) for score in sorted(scores)]
    assert after == sorted(after)
    assert after[0] >= 0
    assert after[-1] <= 1


@given(PAIRS)
def test_scores_that_differ_still_differ(pairs: list[tuple[float, float]]) -> None:
    calibration = told(pairs)
    after = [calibration(score / 10) for score in range(11)]
    assert len(set(after)) == len(after)


@given(st.lists(st.tuples(SHARES, SHARES), max_size=SOON - 1), SHARES)
def test_with_few_pairs_a_score_stays_as_it_is(pairs: list[tuple[float, float]], score: float) -> None:
    assert told(pairs)(score) == score


@given(PAIRS, st.randoms(use_true_random=True))
def test_scores_do_not_depend_on_the_order_of_the_pairs(
    pairs: list[tuple[float, float]], chance: random.Random
) -> None:
    mixed, calibration = told(chance.sample(pairs, len(pairs))), told(pairs)
    for score in (0.0, 0.3, 1.0):
        assert mixed(score) == pytest.approx(calibration(score), abs=1e-12)


def test_a_judge_that_is_too_kind_is_brought_down_to_what_is_true() -> None:
    chance = random.Random(0)
    calibration = Calibration()
    for _ in range(400):
        true = chance.random()
        calibration.update(math.sqrt(true), float(chance.random() < true))
    for true in (0.1, 0.3, 0.5, 0.7, 0.9):
        assert calibration(math.sqrt(true)) == pytest.approx(true, abs=0.1)
    report = calibration.report()
    assert report.pairs == 400
    assert report.brier < report.brier_raw
    assert report.error < 0.06
    assert report.error_raw > 0.12


def test_a_report_scores_each_pair_by_what_was_known_before_it() -> None:
    calibration = Calibration(least_pairs=2)
    for score, value in [(0.2, 1.0), (0.2, 1.0), (0.2, 1.0)]:
        calibration.update(score, value)
    # Twice as it is, then (2 * 1 + 2 * .2) / 4 = .6.
    assert calibration.report().brier == pytest.approx((0.64 + 0.64 + 0.16) / 3)
    assert calibration.report().brier_raw == pytest.approx(0.64)


def test_only_the_latest_pairs_count_within_a_window() -> None:
    calibration = Calibration(least_pairs=2, window=3)
    for value in (0.0, 0.0, 0.0, 1.0, 1.0, 1.0):
        calibration.update(0.5, value)
    assert calibration(0.5) == pytest.approx((3 * 1 + 2 * 0.5) / 5)
    assert calibration.report().pairs == 6


@given(
    st.lists(st.tuples(st.sampled_from(["update", "ask", "report"]), SHARES, SHARES), max_size=30),
    st.integers(1, 6),
    st.none() | st.integers(1, 8),
)
def test_scores_and_reports_are_to_the_bit_those_of_a_fit_after_each_pair(
    deeds: list[tuple[str, float, float]], least: int, window: int | None
) -> None:
    lazy = Calibration(least_pairs=least, window=window)
    pairs: list[tuple[float, float]] = []
    after: list[float] = []
    for deed, score, value in deeds:
        fitted = told(pairs[-window:] if window else pairs, least)(score)
        if deed == "update":
            lazy.update(score, value)
            pairs.append((score, value))
            after.append(fitted)
        elif deed == "ask":
            assert lazy(score) == fitted
        elif pairs:
            values = [value for _, value in pairs]
            assert lazy.report().brier == brier_score(after, values)
            assert lazy.report().error == calibration_error(after, values)


def test_a_hundred_thousand_pairs_are_told_before_anything_is_asked() -> None:
    calibration = Calibration(least_pairs=2)
    for place in range(100_000):
        calibration.update(place % 1000 / 1000, float(place % 3 > 0))
    assert calibration(0.5) == pytest.approx(2 / 3, abs=0.05)


def test_pairs_told_and_reported_on_many_threads_are_all_reported() -> None:
    calibration = Calibration(least_pairs=2)

    def work(place: int) -> float:
        calibration.update(place % 7 / 7, place % 2)
        return calibration.report().brier if place % 5 == 0 else calibration(0.5)

    with ThreadPoolExecutor(8) as pool:
        assert all(0 <= figure <= 1 for figure in pool.map(work, range(200)))
    assert calibration.report().pairs == 200
    assert 0 <= calibration.report().brier <= 1


def test_nothing_told_is_nothing_reported() -> None:
    report = Calibration().report()
    assert report.pairs == 0
    assert all(math.isnan(figure) for figure in (report.error, report.error_raw, report.brier))


@pytest.mark.parametrize("pair", [(1.5, 1.0), (0.5, -0.1), (float("nan"), 1.0), (0.5, float("nan"))])
def test_what_is_no_share_is_an_error(pair: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        Calibration().update(*pair)


def test_the_calibration_error_weighs_each_bin_by_its_pairs() -> None:
    scores, values = [0.05, 0.15, 0.15, 1.0], [0.0, 1.0, 0.0, 1.0]
    expected = (0.05 + 2 * (0.5 - 0.15) + 0) / 4
    assert calibration_error(scores, values, bins=10) == pytest.approx(expected)


@given(st.lists(st.tuples(SHARES, st.sampled_from([0.0, 1.0])), min_size=1, max_size=60))
def test_both_errors_lie_between_0_and_1(pairs: list[tuple[float, float]]) -> None:
    scores, values = zip(*pairs, strict=True)
    assert 0 <= calibration_error(scores, values) <= 1
    assert 0 <= brier_score(scores, values) <= 1


def test_what_is_right_every_time_has_no_error() -> None:
    assert calibration_error([0.0, 1.0], [0.0, 1.0]) == 0
    assert brier_score([0.0, 1.0], [0.0, 1.0]) == 0
