"""What a selector says of each combination, and of what it claims."""

from __future__ import annotations

import numpy as np
import pytest

from search.selectors.registry import SELECTORS, make_selector
from search.selectors.results import SelectionResults
from tests.search.selectors.tables import Table, bernoulli, grid, lookup

CLEAR = np.repeat([[0.1], [0.9], [0.4]], 200, axis=1)


def found(name: str, table: Table, **settings: object) -> SelectionResults:
    choices = grid(len(table))
    evaluate = lookup(table, choices)
    return make_selector(name, choices, range(table.shape[1]), evaluate, **settings).select_best()


def verdicts(results: SelectionResults) -> list[str]:
    """In the order of the combinations' numbers."""
    return [row.verdict for row in sorted(results.rows, key=lambda row: row.index)]


def test_all_that_were_seen_whole_are_ruled_out_by_a_better_one() -> None:
    results = found("brute_force", CLEAR)
    assert verdicts(results) == ["ruled out (round 1)", "best", "ruled out (round 1)"]
    assert results.claim == "The best on these datapoints: all were seen."


def test_arm_elimination_says_in_which_round_each_one_went_and_how_sure_it_is() -> None:
    results = found("arm_elimination", bernoulli([0.1, 0.9, 0.7], 200, seed=1), delta=0.01)
    told = verdicts(results)
    last = [round_.number for round_ in results.rounds if 0 in round_.survivors]
    assert told[1] == "best"
    assert told[0] == f"ruled out (round {len(last) + 1})"
    assert "chance of error of at most 1 %" in results.claim


def test_equals_are_not_distinguished_and_the_claim_names_them() -> None:
    results = found("arm_elimination", np.repeat([[0.5], [0.5], [0.1]], 20, axis=1))
    assert verdicts(results)[:2] == ["best", "not distinguished from the best"]
    assert "a=0 and a=1 have the same score on all 20 datapoints; the first is named" in results.claim


def test_a_threshold_is_reached_or_not_or_undecided() -> None:
    selector = make_selector("threshold", grid(3), range(200), lookup(CLEAR, grid(3)), threshold=0.5)
    selector.tell([[CLEAR[number, 0]] * len(places) for number, places in selector.ask()])
    assert set(verdicts(selector.results())) <= {"reaches", "does not reach", "undecided"}
    results = selector.select_best()
    assert verdicts(results) == ["does not reach", "reaches", "does not reach"]
    assert "reaches 0.5" in results.claim


def test_what_nobody_looked_at_is_not_judged() -> None:
    results = found("random", CLEAR, seed=2)
    assert sorted(verdicts(results)) == ["best of those seen", "not seen", "not seen"]
    assert "of the others nothing is claimed" in results.claim


def test_one_that_fails_too_often_is_said_to() -> None:
    def evaluate(combination: object, _datapoint: int) -> float:
        if combination == {"a": 0}:
            raise OSError("no answer")
        return 0.5

    results = make_selector("brute_force", grid(2), range(4), evaluate).select_best()
    assert verdicts(results) == ["fails too often", "best"]


def test_one_that_lucb_lets_go_may_be_better_by_epsilon() -> None:
    results = found("epsilon_lucb", CLEAR, epsilon=0.05)
    assert verdicts(results)[1] == "best, or 0.05 below"
    assert verdicts(results)[0].startswith("not 0.05 better (round ")


@pytest.mark.parametrize("name", list(SELECTORS))
def test_every_selector_tells_its_claim_and_a_verdict_for_each(name: str) -> None:
    results = found(name, CLEAR)
    assert results.claim.endswith(".")
    assert "{" not in results.claim
    told = results.to_dict()
    assert told["claim"] == results.claim
    assert all(row["verdict"] for row in told["combinations"])
