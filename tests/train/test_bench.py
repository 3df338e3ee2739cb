"""The benchmark: its rows, and that all schedules made the same transitions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from train.cli import execute

COLUMNS = {
    "schedule",
    "num_processes",
    "max_workers",
    "slots",
    "env_steps",
    "wall_s",
    "env_steps_per_s",
    "speedup",
    "slot_utilisation",
    "max_in_flight",
    "llm_calls",
    "cpu_s_per_1000_calls",
    "transitions_sha256",
}


@pytest.mark.parametrize(("flags", "calls"), [((), 2), (("--judge",), 3)])
def test_all_rows_make_the_same_transitions_with_the_same_calls(
    tmp_path: Path, flags: tuple[str, ...], calls: int
) -> None:
    path = tmp_path / "rows.json"
    small = ("--num-processes", "4", "--num-steps", "4", "--slots", "4", "--time-scale", "0.02")
    assert execute(("bench", *small, "--max-workers", "2,4", "--json", str(path), *flags)) == 0
    rows = json.loads(path.read_text())
    assert [(row["schedule"], row["max_workers"]) for row in rows] == [
        ("sequential", 1),
        ("phased", 2),
        ("phased", 4),
    ]
    assert all(set(row) >= COLUMNS for row in rows)
    assert len({row["transitions_sha256"] for row in rows}) == 1
    assert {row["llm_calls"] for row in rows} == {calls * 16}
    assert [row["max_in_flight"] for row in rows] == [1, 2, 4]


def test_an_unknown_schedule_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(("bench", "--schedules", "sequential,random")) == 2
    assert "'random'" in capsys.readouterr().err
