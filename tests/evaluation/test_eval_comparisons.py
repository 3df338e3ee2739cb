"""Which teams an evaluation compares with which, on which queries, and how many queries that takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from evaluation.report import report
from scorers.comparison import compare
from simulator.process import EmbeddedServer
from tests.evaluation.evaluations import agent, results

CRASH = "Traceback (most recent call last):\nKeyError: 'x'"


def test_comparisons_are_paired_by_query_and_adjusted_over_the_whole_table() -> None:
    outcomes = {
        "noop": [False] * 10 + [True] * 4,
        "random": [False] * 5 + [True] * 9,
        "best_fixed": [False] * 4 + [True] * 10,
        "run": [True] * 14,
    }
    told = report(
        results({name: [[agent(name, success=s)] for s in each] for name, each in outcomes.items()})
    )
    against = {(line["team"], line["against"]): line for line in told["comparisons"]}
    assert set(against) == {
        *(("run", other) for other in ("noop", "random", "best_fixed")),
        *(("best_fixed", other) for other in ("noop", "random")),
        ("random", "noop"),
    }
    line = against["run", "noop"]
    expected = compare([[1.0]] * 14, [[float(s)] for s in outcomes["noop"]])
    assert line["success"]["difference"] == pytest.approx(10 / 14)
    assert (line["success"]["low"], line["success"]["high"]) == (expected.low, expected.high)
    assert line["success"]["p"] == pytest.approx(2 * 0.5**10)
    assert line["success"]["test"] == "exact McNemar"
    # The two smallest of twelve p-values, of success and of return, are equal.
    assert line["success"]["p_holm"] == pytest.approx(min(1, 12 * 2 * 0.5**10))


def test_queries_that_only_one_team_was_scored_on_are_left_out_of_a_comparison() -> None:
    lost = agent("run", status="unscored", success=False)
    told = report(results({"noop": [[agent()]] * 3, "run": [[agent("run")], [lost], CRASH]}))
    (line,) = told["comparisons"]
    assert (line["queries"], line["left_out"]) == (1, 2)
    assert line["success"]["difference"] == 0


def test_queries_that_neither_team_was_scored_on_are_counted_as_left_out() -> None:
    lost = agent("run", status="unscored", success=False)
    told = report(results({"noop": [[agent()], CRASH, CRASH], "run": [[agent("run")], [lost], CRASH]}))
    (line,) = told["comparisons"]
    assert (line["queries"], line["left_out"]) == (1, 2)


def pairs_of(told: dict[str, Any]) -> list[tuple[str, str]]:
    return [(line["team"], line["against"]) for line in report(told)["comparisons"]]


def test_every_team_is_compared_with_the_baselines_of_the_evaluation_in_their_order() -> None:
    teams = {name: [[agent(name)]] for name in ("run", "random", "ucb1", "noop")}
    assert pairs_of(results(teams, baselines=("ucb1",))) == [
        ("run", "ucb1"),
        ("random", "ucb1"),
        ("noop", "ucb1"),
    ]
    assert pairs_of(results(teams, baselines=("ucb1", "random"))) == [
        ("run", "ucb1"),
        ("run", "random"),
        ("random", "ucb1"),
        ("noop", "ucb1"),
        ("noop", "random"),
    ]
    assert pairs_of(results(teams, baselines=())) == []


def test_without_a_query_in_common_nothing_is_known_and_the_report_is_still_json() -> None:
    told = report(results({"noop": [[agent()]], "run": [CRASH]}), power=0.1)
    (line,) = told["comparisons"]
    assert line["success"]["difference"] is line["return"]["difference"] is line["queries_needed"] is None
    assert line["return"]["low"] is line["return"]["high"] is None
    assert "McNemar" not in line["return"]["test"]
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_power_says_how_many_queries_a_difference_needs() -> None:
    outcomes = {"noop": [True, False] * 20, "run": [True, True, False, False] * 10}
    told = results({name: [[agent(name, success=s)] for s in each] for name, each in outcomes.items()})
    needed = [report(told, power=d)["comparisons"][0]["queries_needed"] for d in (0.05, 0.1, 0.2)]
    assert needed == sorted(needed, reverse=True)
    assert needed[0] == pytest.approx(4 * needed[1], rel=0.05)  # it goes with the square
    assert "queries_needed" not in report(told)["comparisons"][0]


def queries_needed(power: float, *, wins: int, queries: int) -> int | None:
    """What the report says of a policy that wins so many of the queries, all others equal."""
    outcomes = {"noop": [k >= wins for k in range(queries)], "run": [True] * queries}
    told = results({name: [[agent(name, success=s)] for s in each] for name, each in outcomes.items()})
    needed: int | None = report(told, power=power)["comparisons"][0]["queries_needed"]
    return needed


def test_where_no_query_differs_none_says_how_many_a_difference_needs() -> None:
    assert queries_needed(0.05, wins=0, queries=180) is None


def test_where_few_queries_differ_enough_have_to_that_the_test_can_tell() -> None:
    """Six must differ, of which a difference of 30 points brings three in ten: 25 in 80 of 100 samples."""
    assert queries_needed(0.3, wins=1, queries=180) == 25
    few, more = (queries_needed(0.01, wins=k, queries=180) for k in (1, 20))
    assert few is not None
    assert more is not None
    assert 6 * 100 < few < more


def test_where_every_query_is_won_the_next_may_not_be() -> None:
    needed = queries_needed(0.5, wins=20, queries=20)
    assert needed is not None
    assert needed >= 6


@pytest.mark.parametrize(
    ("baselines", "ranks", "pairs"),
    [
        (
            (),
            {"random": 1, "fixed:paraphrase": None, "noop": 0, "best_fixed": 2},
            {
                ("random", "noop"),
                *(("fixed:paraphrase", other) for other in ("noop", "random", "best_fixed")),
                *(("best_fixed", other) for other in ("noop", "random")),
            },
        ),
        (
            ("--baselines", "ucb1,noop"),
            {"random": None, "fixed:paraphrase": None, "ucb1": 0, "noop": 1},
            {
                *((team, other) for team in ("random", "fixed:paraphrase") for other in ("ucb1", "noop")),
                ("noop", "ucb1"),
            },
        ),
    ],
)
def test_an_evaluation_tells_its_baselines_those_that_p_names_included(
    simulator: EmbeddedServer,
    tmp_path: Path,
    baselines: tuple[str, ...],
    ranks: dict[str, int | None],
    pairs: set[tuple[str, str]],
) -> None:
    roles = [f"--{role}-model=sim-{role}" for role in ("target", "mutator", "judge")]
    flags = ("--ollama-host", simulator.host, *roles, "--encoder", "hashing:64", "--episodes", "3")
    policies = (
        "-p",
        "random",
        "-p",
        "fixed:paraphrase",
        "--mutators",
        "noop,paraphrase",
        "--fit-calls",
        "20",
    )
    folder = tmp_path / "eval"
    assert execute(("eval", *flags, *policies, *baselines, "--run-dir", str(folder))) == 0
    told = json.loads((folder / "results.json").read_text())
    assert {team["name"]: team["baseline"] for team in told["teams"]} == ranks
    found = pairs_of(told)
    assert set(found) == pairs
    assert len(found) == len(pairs)
