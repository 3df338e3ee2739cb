"""Selectors: whatever the cap, the same results; what is claimed of a dataset is true of it."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ollama_utils.errors import OutageError, ReplyLogError
from search import make_selector
from search.select import SELECTORS, Combination, Evaluation, NoWinnerError, Round
from search.task import ScorerError

Table = NDArray[np.float64]
NAMES = list(SELECTORS)
SURE = ("arm_elimination", "epsilon_lucb", "threshold")
DELTA, EPSILON, THRESHOLD = 0.05, 0.05, 0.6
OWN: Mapping[str, dict[str, Any]] = {
    "epsilon_lucb": {"epsilon": EPSILON},
    "threshold": {"threshold": THRESHOLD},
}


def arms(table: Table) -> dict[str, list[int]]:
    """A choice among the rows of a table."""
    return {"arm": list(range(len(table)))}


def lookup(table: Table) -> Callable[[Combination, int], float]:
    """An evaluation that reads a table."""
    return lambda combination, datapoint: float(table[combination["arm"], datapoint])


def independent(rng: np.random.Generator) -> Table:
    """Arms that are right with probabilities of their own."""
    return (rng.random((4, 50)) < rng.uniform(0.3, 0.9, (4, 1))).astype(float)


def correlated(rng: np.random.Generator) -> Table:
    """Arms that find the same datapoints hard."""
    hard = rng.normal(size=50) + 0.5 * rng.normal(size=(4, 50))
    return (hard < rng.uniform(-0.5, 1, (4, 1))).astype(float)


def rare(rng: np.random.Generator) -> Table:
    """Small advantages at most datapoints, large losses at few."""
    table = 0.6 + rng.uniform(0, 0.2, (4, 1)) * np.ones((4, 50))
    table[rng.random((4, 50)) < 0.06] = 0.0
    return table


def tied(rng: np.random.Generator) -> Table:
    """Equal sums, at other datapoints."""
    return np.array([rng.permutation(np.repeat([0.0, 1.0], [20, 30])) for _ in range(4)])


@pytest.mark.parametrize("world", [independent, correlated, rare, tied])
@pytest.mark.parametrize("name", SURE)
def test_what_is_claimed_of_a_dataset_is_true_but_for_a_chance_of_delta(
    name: str, world: Callable[[np.random.Generator], Table]
) -> None:
    holds = []
    for seed in range(40):
        table = world(np.random.default_rng([seed, 9]))
        own = OWN.get(name, {})
        selector = make_selector(
            name, arms(table), range(50), lookup(table), seed=seed, delta=DELTA, **own
        )
        while cells := selector.ask():
            selector.tell([table[arm, selector.datapoints[place]] for arm, place in cells])
        found, means = selector.results(), table.mean(1)
        if name == "threshold":
            reaches = {row.index for row in found.rows if row.verdict == "reaches"}
            holds.append(reaches == set(np.flatnonzero(means >= THRESHOLD - 1e-9).tolist()))
        else:
            least = means.max() - (EPSILON if name == "epsilon_lucb" else 0)
            holds.append(means[found.best.index] >= least - 1e-9)
    assert np.mean(holds) >= 1 - DELTA


def test_the_interval_of_the_arm_that_is_named_covers_although_the_luckiest_is_named() -> None:
    covers = []
    for seed in range(15):
        table = (np.random.default_rng([seed, 9]).random((50, 60)) < 0.6).astype(float)
        selector = make_selector("brute_force", arms(table), range(60), lookup(table), seed=seed)
        best = selector.select_best().best
        assert best.low <= best.score <= best.high
        covers.append(best.low <= 0.6 <= best.high)
    assert np.mean(covers) >= 0.93


def test_budgets_are_kept_and_what_choices_have_in_common_is_used() -> None:
    """Each of two names has one good choice of eight: a quarter of the arms finds both."""
    choices = {"model": list(range(8)), "prompt": list(range(8))}

    def evaluate(combination: Combination, datapoint: int) -> float:
        good = 0.35 * (combination["model"] == 5) + 0.35 * (combination["prompt"] == 2)
        return float(good + 0.2 * ((datapoint * 7 + combination["model"]) % 3 == 0))

    for name in ("random", "hill_climbing", "bayesian", "matrix_ucb"):
        found = make_selector(name, choices, range(9), evaluate).select_best()
        finds_it = found.best.combination == {"model": 5, "prompt": 2}
        assert finds_it == (name != "random")
        if name == "matrix_ucb":
            assert 0.25 <= 1 - found.savings <= 0.35
        else:
            assert {row.datapoints for row in found.rows} == {0, 9}
            assert name == "hill_climbing" or found.evaluations == 16 * 9


@pytest.mark.parametrize("name", NAMES)
def test_results_are_the_same_whatever_the_cap_no_cell_is_paid_for_twice_nor_the_cap_exceeded(
    name: str,
) -> None:
    """Evaluations end in another order than they began."""
    table = (np.random.default_rng(3).random((6, 40)) < 0.6).astype(float)
    found = []
    for cap in (1, 7):
        free, asked = threading.BoundedSemaphore(cap), set[object]()

        def evaluate(
            chosen: Combination,
            datapoint: int,
            free: threading.Semaphore = free,
            asked: set[object] = asked,
        ) -> float:
            cell = (3 * chosen["a"] + chosen["b"], datapoint)
            assert cell not in asked
            assert free.acquire(blocking=False)
            asked.add(cell)
            time.sleep(hash(cell) % 5 / 5000)
            free.release()
            return float(table[cell])

        choices = {"a": [0, 1], "b": [0, 1, 2]}
        selector = make_selector(name, choices, range(40), evaluate, seed=3)
        results = selector.select_best(parallel=True, max_concurrent=cap)
        assert (results.errors, results.evaluations) == (0, len(asked))
        found.append(results.to_dict())
    assert found[0] == found[1]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(seed=st.integers(0, 9999), share=st.sampled_from([0.0, 0.1, 0.3]), all_fail=st.booleans())
def test_too_often_is_of_the_whole_dataset_and_where_all_fail_one_line_says_why(
    name: str,
    seed: int,
    share: float,
    all_fail: bool,  # noqa: FBT001 - drawn
) -> None:
    rng = np.random.default_rng(seed)
    table = (rng.random((4, 100)) < rng.uniform(0.4, 1, (4, 1))).astype(float)
    table[rng.random((4, 100)) < rng.choice([0, 0.05, share, 0.4], (4, 1))] = np.nan
    if all_fail:
        table[:] = np.nan
    more = {"max_errors": share, **OWN.get(name, {})}
    selector = make_selector(name, arms(table), range(100), lookup(table), seed=seed, **more)
    try:
        found = selector.select_best()
    except NoWinnerError as error:
        found, why = error.results, str(error)
    if found.rows[0].is_best:
        assert found.best.datapoints == 100
        assert found.best.errors <= 100 * share
    else:
        assert all(row.errors > 100 * share for row in found.rows if row.datapoints)
        assert f"more than {share:.0%} of the datapoints, first with ValueError" in why
    verdicts = {row.verdict for row in found.rows}
    assert all(
        (row.verdict == "fails too often") == (row.errors > 100 * share) for row in found.rows
    )
    if name == "threshold":
        assert "undecided" not in verdicts
        assert "reaches" not in verdicts or found.best.verdict == "reaches"


@pytest.mark.parametrize(
    "error", [ReplyLogError("the disk is full"), OutageError("gone"), ScorerError("a typo")]
)
def test_an_error_that_no_combination_is_to_blame_for_ends_the_selection(error: Exception) -> None:
    asked: list[int] = []

    def evaluate(_combination: Combination, datapoint: int) -> float:
        asked.append(datapoint)
        if len(asked) == 7:
            raise error
        return 0.5

    selector = make_selector("brute_force", {"a": [1, 2]}, range(10), evaluate)
    with pytest.raises(type(error), match=str(error)):
        selector.select_best()
    assert selector.select_best().errors == 0
    assert len(asked) == 2 * 10 + 1


@pytest.mark.parametrize("bad", [1.5, math.nan, None, "1", Evaluation(2.0)])
def test_what_is_no_score_is_an_error_that_counts_as_0_and_has_no_costs(bad: Any) -> None:
    good = Evaluation(0.5, 2.0, 10, 5, 0.25)

    def evaluate(combination: Combination, datapoint: int) -> Any:
        return good if combination["a"] == "good" or datapoint else bad

    choices = {"a": ["good", "bad"]}
    best, row = (
        make_selector("brute_force", choices, range(8), evaluate, max_errors=0.2).select_best().rows
    )
    assert (row.errors, row.score, best.combination["a"]) == (1, 0.5 * 7 / 8, "good")
    assert "expected a score from 0 to 1, got" in str(row.first_error)
    costs = (row.latency_s, row.prompt_tokens, row.completion_tokens, row.price)
    assert costs == (2.0, 10, 5, 0.25)


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        ("brute_force", ["ruled out", "best", "not distinguished from the best"]),
        ("arm_elimination", ["ruled out", "best", "not distinguished from the best"]),
        ("epsilon_lucb", ["not 0.05 better", "best, or 0.05 below", "not 0.05 better"]),
        ("threshold", ["does not reach", "reaches", "reaches"]),
        ("random", ["best of those seen", "not seen", "not seen"]),
    ],
)
def test_each_selector_says_what_it_knows(name: str, verdicts: list[str]) -> None:
    table = np.repeat([[0.1], [0.9], [0.9]], 100, axis=1)
    played: list[Round] = []
    selector = make_selector(
        name, arms(table), range(100), lookup(table), seed=2, **OWN.get(name, {})
    )
    found = selector.select_best(True, 10, played.append)
    rows = sorted(found.rows, key=lambda row: row.index)
    assert [row.verdict for row in rows] == verdicts
    assert played[-1].evaluations == found.evaluations
    assert played[-1].best == found.best.score
    assert found.claim


@pytest.mark.parametrize("name", NAMES)
def test_who_goes_on_after_an_interruption_comes_to_the_same(name: str) -> None:
    table = (np.random.default_rng(1).random((6, 60)) < 0.5).astype(float)
    whole = make_selector(name, arms(table), range(60), lookup(table)).select_best()
    begun, cells = itertools.count(), []

    def stops(combination: Combination, datapoint: int) -> float:
        if next(begun) == 50:
            raise KeyboardInterrupt
        cells.append((combination["arm"], datapoint))
        return lookup(table)(combination, datapoint)

    selector = make_selector(name, arms(table), range(60), stops)
    with pytest.raises(KeyboardInterrupt):
        selector.select_best()
    assert selector.select_best().to_dict() == whole.to_dict()
    assert len(set(cells)) == len(cells) == whole.evaluations


@pytest.mark.parametrize(
    ("name", "wrong", "says"),
    [
        ("brute_forse", {}, r"no selector is called 'brute_forse'; did you mean brute_force\?"),
        ("epsilon_lucb", {"epsilom": 1}, "has no setting 'epsilom'; did you mean epsilon"),
        ("random", {"sample_fraction": 0.0}, "sample_fraction is 0.0: it must be >= 1e-100"),
        ("threshold", {"delta": 1e-323}, "delta is 1e-323: it must be >= 1e-100"),
        ("hill_climbing", {"restarts": 2.5}, "restarts is 2.5; expected a whole number"),
        ("arm_elimination", {"growth_factor": 0.5}, "growth_factor is 0.5: it must be >= 1"),
        ("matrix_ucb", {"exploration": math.nan}, "exploration is nan: it must be"),
        ("brute_force", {"seed": None}, "seed is None; expected a whole number"),
        ("random", {"max_errors": "0.1"}, "max_errors is '0.1'; expected a number"),
        ("brute_force", {"choices": [0, 1]}, "expected choices by name"),
        ("brute_force", {"choices": {"a": "bc"}}, "a list of choices for 'a', got 'bc'"),
        ("brute_force", {"choices": {"a": ["x", "x"]}}, "choices for 'a' to differ, got 'x' twice"),
        ("brute_force", {"dataset": []}, r"expected a list of datapoints, got \[\]"),
        ("brute_force", {"dataset": iter([1])}, "expected a list of datapoints, got <list_it"),
    ],
)
def test_what_cannot_be_made_is_one_line(name: str, wrong: dict[str, Any], says: str) -> None:
    given = {"choices": {"a": [0, 1]}, "dataset": range(5), **wrong}
    with pytest.raises(ValueError, match=says):
        make_selector(name, evaluate=lambda _c, _d: 0.0, **given)
