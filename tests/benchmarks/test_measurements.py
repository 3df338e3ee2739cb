"""What the timed benchmarks measure: every case has a row of plausible figures."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import calls, limits, rate, step_cost, wrappers
from benchmarks.rollouts import summary_rows
from train.timing import compared


def _row(schedule: str, seed: int) -> dict[str, Any]:
    group = {"schedule": schedule, "num_processes": 4, "max_workers": 4, "slots": 4, "seed": seed}
    return group | {"wall_s": 1.0, "completion_tokens": 10, "transitions_sha256": str(seed)}


def test_medians_are_shown_where_there_are_some_and_else_the_row_itself() -> None:
    rows = compared([_row("sequential", 0), *(_row("lanes", seed) for seed in range(3))])
    assert [(row["schedule"], row["seeds"]) for row in summary_rows(rows)] == [
        ("sequential", 1),
        ("lanes", 3),
    ]


@pytest.mark.parametrize("encoder", step_cost.ENCODERS)
def test_the_parts_of_a_steps_cost_add_up(encoder: str) -> None:
    row = step_cost.measure(lanes=2, slots=8, encoder=encoder, num_steps=2, time_scale=0.01, runs=1)
    parts = ("of it HTTP", "of it encoding", "the rest")
    assert sum(row[part] for part in parts) == pytest.approx(row["CPU ms a step"], abs=0.01)
    assert all(row[part] > 0 for part in parts[:2])


def test_every_client_has_a_row_within_what_the_server_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "ROUNDS", 2)
    found = calls.measure(in_flight=(4,), runs=1)
    assert len({row["client"] for row in found}) == len(found) == 4
    for row in found:
        assert row["in flight"] == 4
        assert row["failed"] == 0
        assert 0 < row["calls/s"] <= row["at most"] == 4 / calls.REPLY_S
        assert row["CPU s per 1,000"] > 0


@pytest.mark.parametrize("faults", list(rate.FAULTS))
def test_no_window_from_the_first_call_on_holds_more_than_the_rate_limit_allows(
    faults: str,
) -> None:
    row = rate.measure(faults, seconds=0.8, per_minute=1200, time_scale=0.1)
    assert 0 < row["requests"] <= row["allowed"] + 1
    assert row["of what is allowed"] == row["requests"] / row["allowed"]
    assert row["calls lost"] == 0
    if faults == "none":
        assert row["of them repeated"] == 0


def test_every_limit_has_a_row_beside_the_one_that_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "WARM_UP_S", 0.1)
    rows = limits.compare_limits(slots=2, seconds=0.3)
    assert [row["limit"] for row in rows] == [1, 2, 4, "auto"]
    assert max(row["of the best fixed one"] for row in rows[:-1]) == 1
    assert all(0 < row["busy slots"] <= 2 for row in rows)


def test_every_policy_is_timed_under_its_own_wrapper() -> None:
    cases = wrappers.cases_for(step_s=0.01, steps=1)
    found = [row for case in cases for row in wrappers.measure(case, agents=2, runs=1)]
    assert {(row["policy"], row["wrapper"]) for row in found} >= {
        ("waits 10 ms", "thread"),
        ("computes 10 ms in Python", "process"),
        ("has step_batch", "batch"),
        ("has a torch network", "torch"),
    }
    assert all(row["times faster"] > 0 for row in found)
