"""What doctor plays for a forecast, and what it advises from it: laws, with no server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.advice import Advice, advise
from cli.forecast import FEWEST, PlannedRollout, Speed, _margin, fit, more_lanes, most_cost, plan
from cli.timed_rollout import Setting

SCHEDULES = ("sequential", "phased", "lanes")


def _wanted(schedule: str, lanes: int) -> Setting:
    return Setting(schedule=schedule, num_processes=lanes, max_workers=None, seed=0)


def _cost(part: PlannedRollout) -> int:
    return 3 * part.env_steps + part.setting.num_processes + 1


@given(
    wanted=st.builds(_wanted, st.sampled_from(SCHEDULES), st.integers(1, 80)),
    steps=st.integers(1, 20),
    slots=st.none() | st.integers(0, 100),
    step_s=st.floats(1e-3, 1e4),
    left_s=st.floats(-10, 1e4),
    is_ours=st.booleans(),
)
def test_no_plan_costs_more_than_was_announced_and_the_users_schedule_is_in_all(
    wanted: Setting, steps: int, slots: int | None, step_s: float, left_s: float, *, is_ours: bool
) -> None:
    speed, more = Speed(step_s=step_s, gain=2.0), more_lanes(slots)
    parts = fit(wanted, steps, is_ours=is_ours, speed=speed, left_s=left_s, more=more)
    assert sum(map(_cost, parts)) <= most_cost(wanted, steps, _cost)
    assert wanted.schedule in {part.setting.schedule for part in parts[1:]}
    assert all(part.steps >= 1 for part in parts)
    if speed.seconds(parts) > left_s:
        assert len(parts) == 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_fewest_steps_are_spent_on_the_users_schedule(schedule: str) -> None:
    wanted = _wanted(schedule, 16)
    few, usual = (plan(wanted, FEWEST, is_ours=False, most=most) for most in (8, FEWEST))
    assert sum(part.env_steps for part in few) == sum(part.env_steps for part in usual)
    steps = {part.setting.schedule: part.steps for part in few[1:]}
    own = "phased" if schedule == "phased" else "lanes"
    assert few[0].steps == 1
    assert steps[own] == FEWEST + 1


def _row(schedule: str, steps: int, pace: float) -> dict[str, Any]:
    return {"schedule": schedule, "num_processes": 16, "env_steps": steps, "env_steps_per_s": pace}


def _advice(
    *rows: dict[str, Any], schedule: str, per_step: float = 1.0, slots: int | None = None
) -> list[Advice]:
    roles = ({"role": role, "model": "m", "call_s": 1.0} for role in ("mutator", "target"))
    shares = (per_step, 1.0)
    report = {
        "forecast": rows,
        "residency": {"displaced": [], "models": ["m"]},
        "slots": [{"model": "m", "slots": slots}],
        "burst": {"tokens_per_s_full": 60.0, "tokens_per_s_alone": 40.0},
        "alone": [role | {"per_step": share} for role, share in zip(roles, shares, strict=True)],
    }
    return advise(report, schedule=schedule, slots_setting="--slots ")


@pytest.mark.parametrize(
    ("steps", "gain", "told"), [(32, 1.12, False), (128, 1.12, True), (32, 2.0, True), (128, 1.05, False)]
)
@pytest.mark.parametrize("pace", [1e-5, 1.0])
def test_a_gain_is_told_where_it_is_more_than_so_few_steps_may_differ_by(
    steps: int, gain: float, pace: float, *, told: bool
) -> None:
    found = _advice(
        _row("phased", steps, pace), _row("lanes", steps, gain * pace), schedule="phased", per_step=0
    )
    assert [each.gain for each in found] == ([pytest.approx(gain)] if told else [])


@pytest.mark.parametrize(("per_step", "said"), [(1.0, "50 %"), (0.5, "33 %"), (0.1, "")])
def test_rewordings_count_as_often_as_a_step_makes_them(per_step: float, said: str) -> None:
    found = _advice(_row("lanes", 128, 1.0), schedule="lanes", per_step=per_step)
    assert [each.do for each in found] == (["a smaller --mutator-model"] if said else [])
    assert all(said in each.why for each in found)


@pytest.mark.parametrize(("slots", "gain", "told"), [(4, 1.04, False), (4, 2.0, True), (1, 1.0, True)])
def test_more_slots_are_advised_unless_those_there_are_bring_nothing(
    slots: int, gain: float, *, told: bool
) -> None:
    rows = _row("sequential", 32, 1.0), _row("lanes", 128, gain)
    found = _advice(*rows, schedule="lanes", per_step=0, slots=slots)
    assert [each.do for each in found] == (["--slots 8"] if told else [])


def test_the_mean_length_of_replies_is_mostly_within_the_margin() -> None:
    stream = np.random.default_rng(3)
    expected, held = float(np.exp(0.5)), 0
    for _ in range(400):
        lengths = stream.lognormal(size=(8, 1)) * 1000
        margin = _margin(lengths.astype(int).tolist())
        assert margin is not None
        held += abs(lengths.mean() / 1000 - expected) <= margin * lengths.mean() / 1000
    assert held > 0.85 * 400  # 8 of so skewed a distribution


def test_replies_of_one_query_and_those_without_a_token_tell_no_margin() -> None:
    assert _margin([[5, 7, 9]]) is None
    assert _margin([[0], [0]]) is None
    assert _margin([]) is None
