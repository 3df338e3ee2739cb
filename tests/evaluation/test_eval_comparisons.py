"""Which policies an evaluation compares, by what, and how many queries that takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.report import report
from scorers.comparison import compare
from tests.evaluation.evaluations import agent, agents, crashed, results, unscored


def outcomes(**by_team: Sequence[bool]) -> dict[str, list[list[dict[str, Any]]]]:
    """A mission, by team and query whether it succeeded."""
    return {name: [[agent(name, success=s)] for s in each] for name, each in by_team.items()}


def test_success_is_paired_by_query_and_adjusted_over_all_that_are_shown() -> None:
    mission = outcomes(
        noop=[False] * 10 + [True] * 4,
        random=[False] * 5 + [True] * 9,
        best_fixed=[False] * 4 + [True] * 10,
        run=[True] * 14,
    )
    told = report(results(mission))["comparisons"]
    assert [line["against"] for line in told] == ["noop", "random", "best_fixed"]
    found = told[0]["success"]
    expected = compare([[1.0]] * 14, [[float(k >= 10)] for k in range(14)])
    assert found["difference"] == pytest.approx(10 / 14)
    assert (found["low"], found["high"]) == (expected.low, expected.high)
    assert found["p"] == pytest.approx(2 * 0.5**10, abs=0.001)
    assert found["p_holm"] == pytest.approx(3 * found["p"])


@settings(max_examples=8)
@given(st.lists(st.lists(agents("run"), min_size=2, max_size=2), min_size=2, max_size=6))
def test_equal_policies_differ_by_exactly_0(rows: list[list[dict[str, Any]]]) -> None:
    (line,) = report(results({"run": rows, "noop": rows}))["comparisons"]
    for name in ("success", "return", "calls_per_answer"):
        assert line[name]["difference"] in {0, None}
    assert (line["success"]["difference"] is None) == (line["queries"] == 0)
    assert line["success"]["p"] in {1, None}


@pytest.mark.parametrize(
    ("asked", "baselines", "pairs"),
    [
        ("run", "random noop", ["run random", "run noop"]),
        ("run noop", "noop random", ["run noop", "run random", "noop random"]),
        ("noop random", "noop random", ["random noop"]),
    ],
)
def test_those_that_were_asked_for_are_compared_with_the_baselines_each_pair_once(
    asked: str, baselines: str, pairs: list[str]
) -> None:
    teams = outcomes(run=[True], noop=[True], random=[True])
    found = report(results(teams, asked=asked.split(), baselines=baselines.split()))
    assert [f"{line['team']} {line['against']}" for line in found["comparisons"]] == pairs


def test_queries_that_only_one_was_scored_on_are_left_out() -> None:
    run = [[agent("run")], [unscored("run")], [crashed("run")]]
    (line,) = report(results({"run": run, "noop": [[agent()]] * 3}))["comparisons"]
    assert (line["queries"], line["left_out"], line["success"]["difference"]) == (1, 2, 0)
    (line,) = report(results({"run": run[1:], "noop": [[agent()]] * 2}), power=0.1)["comparisons"]
    assert (line["success"]["p"], line["queries_needed"]) == (None, None)
    unknown = {"difference": None, "low": None, "high": None}
    assert line["return"] == line["calls_per_answer"] == unknown
    assert unknown.items() <= line["success"].items()


@pytest.mark.parametrize(
    ("power", "wins", "queries", "expected"),
    [
        (0.05, 0, 180, None),  # where no query differs, nothing tells
        # Six must differ, of which a difference of 30 points brings three in ten: 25 in 80 of 100.
        (0.3, 1, 180, 25),
        (0.5, 20, 20, 6),  # where every query is won the next may not be
    ],
)
def test_enough_queries_have_to_differ_that_the_test_can_tell(
    power: float, wins: int, queries: int, expected: int | None
) -> None:
    mission = outcomes(run=[True] * queries, noop=[k >= wins for k in range(queries)])
    (line,) = report(results(mission), power=power)["comparisons"]
    assert line["queries_needed"] == expected


@pytest.mark.parametrize(
    ("failed", "wins", "turned"),
    [(0, 30, False), (3, 30, False), (20, 30, True)],
)
def test_where_failed_steps_could_turn_a_comparison_it_is_said(
    failed: int, wins: int, *, turned: bool
) -> None:
    """Of 60 queries noop answers 10, and run the first `wins`, with failed steps in some."""
    run = [[agent("run", success=k < wins, failed_steps=int(k < failed))] for k in range(60)]
    noop = [[agent(success=k < 10)] for k in range(60)]
    lines = [
        p for p in report(results({"run": run, "noop": noop}))["problems"] if "could turn" in p
    ]
    assert [f"mission 0, run against noop: {failed} episodes" in line for line in lines] == (
        [True] if turned else []
    )
