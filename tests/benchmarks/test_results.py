"""What a benchmark measured is written down, read back, and shown on a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import measured
from benchmarks.results import Check, Table, at_least, at_most, run


def measure(*, quick: bool) -> Iterator[Table | Check]:
    yield Table(title="Lanes", about="How.", rows=[{"who": "a|b", "x": 12.34567}, {"y": True}])
    yield at_least("busy", 0.9, 0.1 if quick else 0.9)
    yield at_most("CPU", 1.0, 2.0)


def test_a_benchmark_writes_its_result_and_the_page_shows_it_unless_it_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "measured.md"
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    monkeypatch.setattr(measured, "PAGE", page)
    assert run("calls", "What it costs.", measure, argv=["--quick"]) == 0
    assert not list(tmp_path.iterdir())
    assert run("calls", "What it costs.", measure, argv=[]) == 1  # a check is not met
    assert "NOT MET: CPU at most 1: 2" in capsys.readouterr().out
    found = measured.read()["calls"]
    assert found.keys() == {
        *("benchmark", "about", "machine", "python", "packages", "commit", "date", "seconds"),
        *("tables", "checks"),
    }
    assert [check["met"] for check in found["checks"]] == [True, False]
    section = page.read_text("utf-8").partition("## Calls\n\n")[2].partition("\n\n## ")[0]
    lines = section.splitlines()
    assert lines[:9] == [
        *("What it costs.", "", "### Lanes", "", "How.", ""),
        *("| who | x | y |", "| --- | --- | --- |", r"| a\|b | 12.35 | - |"),
    ]
    assert "| CPU | at most 1 | 2 | **no** |" in lines
    assert found["commit"] in lines[-1]


def test_the_page_in_git_is_made_of_the_results_in_git() -> None:
    assert measured.PAGE.read_text("utf-8") == measured.page(measured.read())
