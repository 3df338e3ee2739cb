"""Rows as Markdown, and figures held against their targets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import reporting
from benchmarks.reporting import Section, at_least, at_most, run, table, write_section


def test_a_table_is_headed_by_the_keys_of_its_rows_and_has_a_dash_for_what_is_missing() -> None:
    rows: list[dict[str, Any]] = [
        {"who": "a|b", "steps/s": 12.34567},
        {"who": None, "steps/s": 3, "good": True},
    ]
    assert table(rows).splitlines() == [
        "| who | steps/s | good |",
        "| --- | --- | --- |",
        r"| a\|b | 12.35 | - |",
        "| - | 3 | yes |",
    ]


@pytest.mark.parametrize(("measured", "met"), [(0.89, False), (0.90, True), (0.95, True)])
def test_a_figure_that_is_to_be_large_is_met_from_its_target_on(measured: float, met: bool) -> None:  # noqa: FBT001 - a parameter
    assert at_least("busy", 0.90, measured).met is met


def test_a_figure_that_is_to_be_small_is_met_up_to_its_target() -> None:
    assert at_most("CPU", 1.0, 1.0).met
    assert not at_most("CPU", 1.0, 1.01).met


def test_a_target_that_is_missed_stands_out_beside_what_was_measured() -> None:
    checks = [at_least("busy", 0.9, 0.5), at_most("CPU", 1.0, 0.5)]
    lines = Section(title="Lanes", about="How.", checks=checks).markdown().splitlines()
    assert lines[-2:] == [
        "| busy | at least 0.9 | 0.5 | **no** |",
        "| CPU | at most 1 | 0.5 | yes |",
    ]


def test_a_section_has_its_title_what_was_done_the_rows_and_the_checks() -> None:
    section = Section(title="Lanes", about="How.", rows=[{"a": 1}], checks=[at_least("a", 1, 1)])
    title, about, rows, checks = section.markdown().split("\n\n")
    assert (title, about) == ("## Lanes", "How.")
    assert rows.endswith("| 1 |")
    assert checks.endswith("| yes |")


def test_a_section_takes_the_place_of_the_one_with_its_title_or_comes_last(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(
        "# All\n\n## One\n\nold\n\n### Part\n\nold\n\n## One more\n\nkept\n", encoding="utf-8"
    )
    write_section(document, "## One\n\nnew")
    write_section(document, "## Another\n\nnew")
    assert document.read_text("utf-8") == (
        "# All\n\n## One\n\nnew\n\n## One more\n\nkept\n\n## Another\n\nnew\n"
    )


def test_a_benchmark_prints_its_sections_and_writes_them_only_when_it_is_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sections(*, quick: bool) -> Iterator[Section]:
        yield Section(
            title="Lanes", about="How.", checks=[at_least("busy", 0.9, 0.1 if quick else 0.5)]
        )

    module = ModuleType("benchmarks.lanes", "Whether lanes are busy.")
    module.__dict__["sections"] = sections
    monkeypatch.setitem(sys.modules, "benchmarks.lanes", module)
    monkeypatch.setattr(reporting, "DOCS", tmp_path)
    document = tmp_path / "document.md"
    document.write_text("# All\n", encoding="utf-8")
    for arguments, status, measured in (
        (["--quick"], 0, "0.1"),
        ([], 1, "0.5"),
        (["--write"], 1, "0.5"),
    ):
        before = document.read_text("utf-8")
        assert run("lanes", "document.md", arguments) == status
        shown = capsys.readouterr()
        assert f"| busy | at least 0.9 | {measured} | **no** |" in shown.out
        assert "(`python -m benchmarks.lanes`, " in shown.out
        assert (document.read_text("utf-8") != before) == (arguments == ["--write"])
        assert ("1 targets missed" in shown.err) == (status == 1)
    assert "## Lanes\n\nHow." in document.read_text("utf-8")
