"""The report on speed: which rows it shows, and that a section can be made alone."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import step_cost
from benchmarks.performance import REPORT
from benchmarks.reporting import heading
from benchmarks.rollouts import summary_rows
from cli.bench import compared


def _row(schedule: str, seed: int) -> dict[str, Any]:
    group = {"schedule": schedule, "num_processes": 4, "max_workers": 4, "slots": 4, "seed": seed}
    return group | {"wall_s": 1.0, "completion_tokens": 10, "transitions_sha256": str(seed)}


def test_medians_are_shown_where_there_are_some_and_else_the_row_itself() -> None:
    rows = compared([_row("sequential", 0), *(_row("lanes", seed) for seed in range(3))])
    assert [(row["schedule"], row["seeds"]) for row in summary_rows(rows)] == [
        ("sequential", 1),
        ("lanes", 3),
    ]


def test_the_parts_of_a_steps_cost_add_up() -> None:
    (row,) = step_cost.rows(pools=[(2, 8)], num_steps=2, time_scale=0.01, runs=1)
    parts = ("http_cpu_ms_per_step", "encode_cpu_ms_per_step", "own_cpu_ms_per_step")
    assert sum(row[part] for part in parts) == pytest.approx(row["cpu_ms_per_step"], abs=0.01)
    assert all(row[part] > 0 for part in parts[:2])


def test_the_report_opens_with_what_was_measured_on_what() -> None:
    text = heading()
    assert text.startswith("# Performance\n")
    for said in ("simulated", "cores", "gymnasium 1.", "no figure is written by hand"):
        assert said in text


def test_a_section_is_made_alone_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert REPORT.main(["--quick", "--only", "cost"]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("\n## ") == 1
    assert "| CPU ms a step outside HTTP and encoding | at most 1 |" in shown.out
    assert "=== cost" in shown.err
