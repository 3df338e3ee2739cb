"""The benchmark: its rows, and that all schedules made the same transitions."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

from cli.main import execute

HERE = ("--ollama-host", "embedded")
SMALL = (*HERE, "--num-processes", "4", "--num-steps", "4", "--slots", "4", "--time-scale", "0.02")
KEYS = {
    *(
        "schedule",
        "num_processes",
        "max_workers",
        "slots",
        "seed",
        "seeds",
        "env_steps",
        "wall_s",
        "simulated",
    ),
    *("env_steps_per_s", "bound_env_steps_per_s", "fraction_of_bound", "speedup", "slot_utilisation"),
    *("max_in_flight", "llm_calls", "failed_calls", "completion_tokens", "transitions_sha256"),
    *("cpu_ms_per_step", "cpu_s_per_1000_calls", "peak_rss_mib", "startup_s", "unscored_steps"),
    *("busy_slots", "equal_replies", "compared_replies"),
}


def _rows(folder: Path, *flags: str) -> list[dict[str, Any]]:
    path = folder / "rows.json"
    assert execute(("bench", *SMALL, *flags, "--json", str(path))) == 0
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    assert all(set(row) == KEYS for row in rows)
    return rows


@pytest.mark.parametrize(("flags", "calls"), [(("--judge",), 3), pytest.param((), 2, marks=pytest.mark.soak)])
def test_all_rows_make_the_same_transitions_with_the_same_calls(
    tmp_path: Path, flags: tuple[str, ...], calls: int
) -> None:
    rows = _rows(tmp_path, "--schedules", "sequential,phased,phased8,lanes", "--max-workers", "2,4", *flags)
    assert [(row["schedule"], row["max_workers"]) for row in rows] == [
        ("sequential", 1),
        ("phased", 2),
        ("phased", 4),
        ("phased8", 8),
        ("lanes", 2),
        ("lanes", 4),
    ]
    assert len({row["transitions_sha256"] for row in rows}) == 1
    assert {row["llm_calls"] for row in rows} == {calls * 16}
    assert [row["max_in_flight"] for row in rows] == [1, 2, 4, 4, 2, 4]


@pytest.mark.parametrize("schedule", ["gym-async", pytest.param("sb3-subproc", marks=pytest.mark.soak)])
def test_a_vector_environment_of_processes_makes_the_same_transitions(tmp_path: Path, schedule: str) -> None:
    here, apart = _rows(tmp_path, "--sweep-lanes", "2", "--schedules", f"lanes,{schedule}")
    assert apart["transitions_sha256"] == here["transitions_sha256"]
    assert apart["llm_calls"] == here["llm_calls"] == 2 * 2 * 4
    assert apart["max_in_flight"] == 2
    assert apart["peak_rss_mib"] > here["peak_rss_mib"]


class Sweep(NamedTuple):
    """A benchmark over several numbers of lanes."""

    rows: list[dict[str, Any]]
    shown: str
    """On stdout."""
    errors: str
    """On stderr."""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    flags = ("--schedules", "phased8,lanes", "--sweep-lanes", "1,3,6")
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        rows = _rows(tmp_path_factory.mktemp("sweep"), *flags)
    return Sweep(rows, out.getvalue(), errors.getvalue())


def test_a_sweep_has_a_row_for_each_number_of_lanes(sweep: Sweep) -> None:
    assert [(row["num_processes"], row["schedule"]) for row in sweep.rows] == [
        (lanes, schedule) for lanes in (1, 3, 6) for schedule in ("phased8", "lanes")
    ]
    hashes = [row["transitions_sha256"] for row in sweep.rows]
    assert hashes[::2] == hashes[1::2]
    assert len(set(hashes)) == 3


def test_the_bound_is_that_of_slots_never_idle_or_of_the_lanes_there_are(sweep: Sweep) -> None:
    for row in sweep.rows:
        busy_s = row["slot_utilisation"] * row["slots"] * row["wall_s"]
        at_once = min(row["slots"], row["num_processes"])
        assert row["bound_env_steps_per_s"] == pytest.approx(row["env_steps"] * at_once / busy_s, rel=0.01)
        assert row["fraction_of_bound"] == pytest.approx(
            row["slot_utilisation"] * row["slots"] / at_once, rel=0.01
        )
        assert 0 < row["fraction_of_bound"] <= 1


def test_standard_output_has_the_table_and_what_was_found(sweep: Sweep) -> None:
    assert "of bound" in sweep.shown
    assert "lanes: 6 lanes, 6 workers, seed 0" in sweep.errors
    assert "lanes: 6 lanes" not in sweep.shown


def test_several_seeds_give_a_row_each_and_their_medians(tmp_path: Path) -> None:
    rows = _rows(tmp_path, "--schedules", "sequential,lanes", "--seed", "5", "--seeds", "3")
    assert [(row["schedule"], row["seed"], row["seeds"]) for row in rows] == [
        ("sequential", 5, 1),
        ("lanes", 5, 1),
        ("lanes", 6, 1),
        ("lanes", 7, 1),
        ("lanes", None, 3),
    ]
    *single, medians = rows[1:]
    assert medians["env_steps_per_s"] == median(row["env_steps_per_s"] for row in single)
    assert medians["transitions_sha256"] is None
    assert rows[0]["transitions_sha256"] == rows[1]["transitions_sha256"]
    assert len({row["transitions_sha256"] for row in single}) == 3


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--schedules", "sequential,random"), "'random'; expected some of sequential, phased"),
        (("--schedules", ","), "--schedules is empty"),
        (("--sweep-lanes", "4,0"), "--sweep-lanes has '0'"),
        (("--max-workers", "many"), "--max-workers has 'many'"),
        (("--encoder", "hashing:x"), "'hashing:x'"),
    ],
)
def test_what_cannot_be_timed_is_one_line(
    flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(("bench", *HERE, *flags)) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert says in said
