"""The interquartile mean and its interval over seeds; `make learning` resumes runs of its own alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import trim_mean  # type: ignore[import-untyped]

from benchmarks.learning import (
    Plan,
    bootstrap_interval,
    check_made_of,
    draw_curves,
    interquartile_mean,
)

SCORES = st.floats(-1, 1)


@given(
    scores=st.integers(1, 6).flatmap(lambda quarter: arrays(float, 4 * quarter, elements=SCORES))
)
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
    few, many = stream.normal(size=10), stream.normal(size=160)
    for scores in (few, many):
        low, high = bootstrap_interval(scores)
        assert low <= interquartile_mean(scores) <= high
    narrow, wide = (np.subtract(*bootstrap_interval(scores)[::-1]) for scores in (many, few))
    assert narrow < wide / 2


def test_each_point_of_a_curve_has_its_own_interval() -> None:
    apart = np.array([[0.0, 1.0]] * 6)  # no run differs from the others
    low, high = bootstrap_interval(apart)
    assert np.allclose([low, high], [0.0, 1.0])


def test_the_curves_are_drawn_alike_each_time_and_name_their_algorithms(tmp_path: Path) -> None:
    shares = dict(zip((250, 500, 1000), np.random.default_rng(0).normal(size=(3, 5)), strict=True))
    for name in ("a.svg", "b.svg"):
        draw_curves(tmp_path / name, {"linucb": shares})
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"linucb" in (tmp_path / "a.svg").read_bytes()


def test_a_budget_that_a_rollout_goes_far_beyond_is_left_out() -> None:
    plan = Plan(budgets=(250, 500, 29_696))
    assert plan.steps("ppo") == {500: 512, 29_696: 29_696}
    assert plan.steps("linucb") == {250: 256, 500: 512, 29_696: 29_696}
    assert plan.steps("auto") == {250: 256, 500: 512, 29_696: 3_008 + 53 * 512}


def test_runs_of_the_same_code_and_plan_are_resumed_and_more_seeds_may_be_added(
    tmp_path: Path,
) -> None:
    plan = Plan(work=tmp_path / "learning")
    for seeds in (1, 5):
        check_made_of(replace(plan, seeds=seeds))
    (plan.work / "cautious-0").mkdir()
    (plan.work / "cautious-0" / "config.toml").touch()
    check_made_of(plan)


@pytest.mark.parametrize("left", ["another plan", "other code", "not known"])
def test_runs_of_other_code_or_another_plan_are_refused(tmp_path: Path, left: str) -> None:
    plan = Plan(work=tmp_path)
    file = tmp_path / "made_of.json"
    if left == "not known":
        (tmp_path / "cautious-0").mkdir()
        (tmp_path / "cautious-0" / "config.toml").touch()
    else:
        check_made_of(replace(plan, budgets=(512,)) if left == "another plan" else plan)
    if left == "other code":
        file.write_text(json.dumps(json.loads(file.read_text()) | {"code": "0"}))
    with pytest.raises(SystemExit, match="move them away"):
        check_made_of(plan)
