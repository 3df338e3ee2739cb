"""What bench makes of its rows: speed-ups, medians, and which transitions must be the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.bench import compared, differing


def _row(schedule: str, seed: int, wall_s: float, *, tokens: int = 1000, **more: object) -> dict[str, Any]:
    row = {"schedule": schedule, "num_processes": 4, "max_workers": 4, "seed": seed, "env_steps": 16}
    speed = {"wall_s": wall_s, "env_steps_per_s": 16 / wall_s, "completion_tokens": tokens}
    return row | speed | {"transitions_sha256": f"of seed {seed}", "simulated": True} | more


@given(st.floats(0.1, 100), st.floats(0.1, 100))
def test_for_the_same_work_the_speed_up_is_the_ratio_of_the_wall_times(one_s: float, other_s: float) -> None:
    first, second = compared([_row("sequential", 0, one_s), _row("lanes", 0, other_s)])
    assert first["speedup"] == 1
    ratio = second["env_steps_per_s"] / first["env_steps_per_s"]
    assert second["speedup"] == pytest.approx(ratio, abs=0.006)


def test_a_seed_with_longer_replies_is_no_slower_for_it() -> None:
    rows = compared([_row("sequential", 0, 8), _row("lanes", 0, 1), _row("lanes", 1, 2, tokens=2000)])
    assert [row["speedup"] for row in rows] == [1, 8, 8, 8]


def test_medians_stand_behind_the_rows_of_their_group() -> None:
    rows = compared([_row("lanes", seed, wall_s) for seed, wall_s in enumerate((3, 1, 8))])
    assert [row["seed"] for row in rows] == [0, 1, 2, None]
    assert rows[-1]["wall_s"] == 3
    assert rows[-1]["schedule"] == "lanes"
    assert rows[-1]["simulated"] is True
    assert rows[-1]["transitions_sha256"] is None


def test_only_rows_of_as_many_lanes_and_one_seed_must_have_the_same_transitions() -> None:
    rows = [_row("sequential", 0, 1), _row("lanes", 1, 1), _row("lanes", 0, 1)]
    rows.append(_row("lanes", 0, 1, num_processes=8, transitions_sha256="of eight"))
    assert differing(rows) == []
    assert differing([*rows, _row("phased", 1, 1, transitions_sha256="another")]) == ["phased"]
