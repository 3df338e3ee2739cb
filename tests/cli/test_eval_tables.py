"""The report of an evaluation as people and machines get it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from cli.eval import print_tables
from cli.formats import as_json, as_yaml
from evaluation.report import report
from tests.evaluation.evaluations import ACCURACY, agent, full, results


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def test_json_and_yaml_tell_the_same() -> None:
    made = report(full(8), power=0.1, accuracy=ACCURACY)
    assert json.loads(as_json(made)) == made
    assert yaml.safe_load(as_yaml(made)) == made


def shown(capsys: pytest.CaptureFixture[str], told: dict[str, Any]) -> str:
    """What is printed for people."""
    print_tables(report(told, power=0.05, accuracy=ACCURACY))
    return capsys.readouterr().out


def test_the_tables_fit_110_columns_and_say_what_their_intervals_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = shown(capsys, full())
    assert out.startswith("SIMULATED")
    assert max(map(len, out.splitlines())) <= 110
    for title in (
        "mission 0: target m",
        "paired comparisons",
        "corrected for",
        "transfer",
        "mutators chosen",
    ):
        assert title in out
    assert out.count("95 %") == 4
    assert "Needed: " in out.replace("\n", " ")
    assert "85.0 [70.9, 92.9]" in out
    assert "…" not in out


@pytest.mark.parametrize("columns", [50, 80])
def test_in_a_narrow_terminal_no_name_and_no_number_is_cut(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tables are as wide as they must be, and the terminal wraps them."""
    wide = shown(capsys, full())
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = shown(capsys, full())
    rows = [
        line.split() for line in wide.splitlines() if line.startswith((" run ", " best_fixed ", " noop "))
    ]
    assert len(rows) > 12
    assert [line.split() for line in narrow.splitlines() if line.split() in rows] == rows


def test_what_looks_like_markup_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert "ValueError: [red]no[/red]" in shown(capsys, full())


def test_a_real_model_is_not_labelled_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert "SIMULATED" not in shown(capsys, full() | {"simulated": False})


def test_tables_with_nothing_in_them_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(report(results({"run": [[agent("run")]]})))
    out = capsys.readouterr().out
    assert "paired comparisons" not in out
    assert "transfer" not in out
    assert "corrected for" not in out


def fits_table(capsys: pytest.CaptureFixture[str], *fits: dict[str, Any]) -> dict[str, str]:
    """The lines of the table of fits, by policy."""
    told = results({"run": [[agent("run")]]}) | {"fits": [{"mission": 0, "calls": 90} | fit for fit in fits]}
    print_tables(report(told))
    lines = capsys.readouterr().out.partition("fitted policies")[2].splitlines()
    return {fit["policy"]: next(line for line in lines if fit["policy"] in line) for fit in fits}


def test_what_a_fitted_policys_mutator_brought_is_a_return_or_a_success(
    capsys: pytest.CaptureFixture[str],
) -> None:
    means = {"noop": 0.25, "shorten": 0.5}
    lines = fits_table(
        capsys,
        {"policy": "best_fixed", "means": means, "chosen": "shorten"},
        {"policy": "ucb1", "means": means, "chosen": "shorten"},
    )
    assert lines["best_fixed"].split()[-4:] == ["90", "shorten", "return", "0.50"]
    assert lines["ucb1"].split()[-4:] == ["90", "shorten", "success", "0.50"]


def test_a_fitted_policy_that_draws_its_mutators_is_not_said_to_have_chosen_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    means = {"noop": 0.25, "shorten": 0.5}
    lines = fits_table(
        capsys,
        {"policy": "exp3", "means": means, "chosen": None},
        {"policy": "epsilon_greedy", "means": means, "chosen": None},
    )
    for line in lines.values():
        assert line.split()[-3:] == ["90", "drawn", "-"]


def test_where_nothing_says_how_many_queries_are_needed_the_table_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_tables(report(results({"noop": [[agent()]] * 9, "run": [[agent("run")]] * 9}), power=0.05))
    out = " ".join(capsys.readouterr().out.split())
    assert "needed" in out
    assert "- where none differed" in out
