"""The report of an evaluation as people get it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cli.output import print_tables
from evaluation.gates import read_gates
from evaluation.report import report
from report.evaluations import evaluation_tables
from tests.evaluation.evaluations import ACCURACY, agent, full, results

Capture = pytest.CaptureFixture[str]

PLAIN = str.maketrans({"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{MIDDLE DOT}": "-"})
NAMES = ["mission 0", "mission 1", "mission 0 guard"]


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """A report with everything in it."""
    gates = read_gates(("success=0.8", "kept=0.5"), ("refusal=0.9",), NAMES, NAMES[2:])
    return report(full(), power=0.05, accuracy=ACCURACY, gates=gates)


def shown(capsys: Capture, found: dict[str, Any]) -> str:
    """What is printed for people."""
    lines = [*found["notes"], *found["problems"]]
    print_tables(evaluation_tables(found), lines, simulated=found["simulated"])
    return capsys.readouterr().out


def test_the_tables_fit_110_columns_and_say_the_same_as_the_page(
    whole: dict[str, Any], capsys: Capture
) -> None:
    out = shown(capsys, whole)
    assert out.startswith("SIMULATED")
    assert max(map(len, out.splitlines())) <= 110
    words = " ".join(out.split())
    tables = list(evaluation_tables(whole))
    assert len(tables) == 15
    for table in tables:
        assert table.rows
        assert table.caption in words
        assert table.says in words
        for row in table.rows:
            assert " ".join(cell.translate(PLAIN) for cell in row[table.names :]) in words
    assert tables[0].caption == (
        "mission 0: target m, reward refusal, 40 held-out queries, up to 5 tries"
    )
    assert "85.0 [70.4, 94.3]" in out
    assert "ValueError: [red]no[/red]" in out  # what looks like markup is shown as it is
    assert "SIMULATED" not in shown(capsys, whole | {"simulated": False})


@pytest.mark.parametrize("columns", [50, 80])
def test_in_a_narrow_terminal_no_name_and_no_number_is_cut(
    columns: int, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The tables are as wide as they must be, and the terminal wraps them."""
    wide = shown(capsys, whole)
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = shown(capsys, whole)
    of_a_policy = re.compile(r" (run|best_fixed|noop) ")
    rows = [line.split() for line in wide.splitlines() if of_a_policy.match(line)]
    assert len(rows) > 12
    assert [line.split() for line in narrow.splitlines() if line.split() in rows] == rows


def test_what_did_not_come_up_has_no_table_and_no_column(capsys: Capture) -> None:
    plain = shown(capsys, report(results({"run": [[agent("run")]]})))
    for title in ("paired comparisons", "corrected for", "gates", "fitted", "guard", "plays"):
        assert title not in plain
    for outcome, column in (("filtered", "filtered %"), ("partial", "partly %")):
        odd = agent("run", success=False, outcomes=[outcome])
        assert column in shown(capsys, report(results({"run": [[odd]]})))
        assert column not in plain
