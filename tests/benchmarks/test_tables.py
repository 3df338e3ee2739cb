"""Rows as Markdown, and figures held against their targets."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.reporting import Section, at_least, at_most, between_marks, check_table, table


def test_a_table_shows_the_columns_that_are_named_and_a_dash_for_what_is_missing() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "a|b", "pace": 12.34567, "hidden": 1},
        {"name": None, "pace": 3, "good": True},
    ]
    assert table(rows, {"name": "who", "pace": "steps/s", "good": "good"}).splitlines() == [
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
    lines = check_table([at_least("busy", 0.9, 0.5), at_most("CPU", 1.0, 0.5)]).splitlines()
    assert lines[2:] == ["| busy | at least 0.9 | 0.5 | **no** |", "| CPU | at most 1 | 0.5 | yes |"]


def test_a_section_has_its_title_what_was_done_the_rows_and_the_checks() -> None:
    section = Section(
        title="Lanes", about="How.", rows=[{"a": 1}], columns={"a": "A"}, checks=[at_least("a", 1, 1)]
    )
    title, about, rows, checks = section.markdown().split("\n\n")
    assert (title, about) == ("## Lanes", "How.")
    assert rows.endswith("| 1 |")
    assert checks.endswith("| yes |")


def test_what_a_module_writes_replaces_what_stood_between_its_marks_and_nothing_else() -> None:
    begin, end = "<!-- from here on written by python -m some.module -->", "<!-- up to here: some.module -->"
    document = between_marks(f"a\n{begin}\nold\n{end}\nb", "some.module", "new")
    assert document == f"a\n{begin}\n\nnew\n\n{end}\nb"
    with pytest.raises(ValueError, match="expected the lines"):
        between_marks(document, "another.module", "new")
