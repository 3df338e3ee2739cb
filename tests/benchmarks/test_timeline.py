"""The picture of the slots: no two calls of a row overlap, and there are no more rows than slots."""

from __future__ import annotations

from pathlib import Path

from benchmarks.timeline import SLOTS, Served, calls_of, draw, in_slots, rollout


def test_calls_side_by_side_get_rows_of_their_own_and_others_share_one() -> None:
    one, beside, after = (
        Served(0.0, 2.0, "answer"),
        Served(1.0, 3.0, "answer"),
        Served(2.0, 4.0, "rewording"),
    )
    assert in_slots([one, beside, after]) == [[one, after], [beside]]


def test_the_calls_of_a_run_fit_into_the_slots_of_its_server(tmp_path: Path) -> None:
    calls = calls_of(rollout(tmp_path / "run", "lanes", steps=1))
    assert len(in_slots(calls)) <= SLOTS
    assert {call.what for call in calls} == {"rewording", "answer"}
    draw(tmp_path / "picture.svg", {"phased": calls})
    assert "<svg" in (tmp_path / "picture.svg").read_text(encoding="utf-8")
