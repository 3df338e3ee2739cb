"""The rate that the server saw is measured from the first call on, with faults and without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.rate import FAULTS, main, rows


def test_no_window_from_the_first_call_on_holds_more_than_is_allowed() -> None:
    found = rows(seconds=1.5, per_minute=1200)
    assert [row["faults"] for row in found] == list(FAULTS)
    for row in found:
        assert 0 < row["requests"] <= row["allowed"] + 1
        assert row["share"] == row["requests"] / row["allowed"]
        assert row["lost"] == 0
    assert found[0]["struck"] == found[0]["retries"] == 0


def test_the_rows_are_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seconds", "0.5", "--per-minute", "600", "--json", str(tmp_path / "rate.json")]) == 0
    kept = json.loads((tmp_path / "rate.json").read_text("utf-8"))
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + len(kept) == 3
    assert f"{kept[0]['requests']}" in printed[1]
