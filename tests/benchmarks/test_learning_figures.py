"""The interquartile mean and its interval over seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import trim_mean  # type: ignore[import-untyped]

from benchmarks.learning import draw_curves, interquartile_mean, stratified_interval

SCORES = st.floats(-1, 1)


@given(scores=st.integers(1, 6).flatmap(lambda quarter: arrays(float, 4 * quarter, elements=SCORES)))
def test_with_a_multiple_of_four_runs_it_is_the_trimmed_mean(scores: np.ndarray) -> None:
    assert np.isclose(interquartile_mean(scores), trim_mean(scores, 0.25))


@given(scores=arrays(float, st.integers(1, 9), elements=SCORES))
def test_it_lies_between_the_extremes_and_one_outlier_of_five_or_more_cannot_move_it_far(
    scores: np.ndarray,
) -> None:
    assert scores.min() - 1e-12 <= interquartile_mean(scores) <= scores.max() + 1e-12
    if len(scores) >= 5:
        far = np.append(scores, 1e9)
        assert interquartile_mean(far) <= scores.max() + 1e-9


def test_the_interval_holds_the_mean_and_narrows_with_more_runs() -> None:
    stream = np.random.default_rng(0)
    few, many = stream.normal(size=(5, 2)), stream.normal(size=(80, 2))
    for scores in (few, many):
        low, high = stratified_interval(scores)
        assert low <= interquartile_mean(scores.reshape(-1)) <= high
    narrow, wide = (np.subtract(*stratified_interval(scores)[::-1]) for scores in (many, few))
    assert narrow < wide / 2


def test_runs_are_resampled_within_their_task_alone() -> None:
    apart = np.array([[0.0, 1.0]] * 6)  # no run differs from the others of its task
    low, high = stratified_interval(apart)
    assert low == high == interquartile_mean(apart.reshape(-1))


def test_the_curves_are_drawn_alike_each_time_and_name_their_levels(tmp_path: Path) -> None:
    steps, returns = np.arange(3.0), np.random.default_rng(0).normal(size=(5, 3))
    for name in ("a.svg", "b.svg"):
        draw_curves(tmp_path / name, {"shipped": (steps, returns)}, {"shipped": {"optimum": 1.0}})
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"optimum" in (tmp_path / "a.svg").read_bytes()
