"""What holds for every selector: each cell once, errors counted, results that no cap changes."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorers.betting import interval
from search.selectors.combination import Combination
from search.selectors.random_search import BruteForceSelector
from search.selectors.registry import SELECTORS, make_selector
from search.selectors.results import Round
from search.selectors.selector import Evaluation, NoWinnerError, Selector
from tests.search.selectors.tables import Table, bernoulli, grid, lookup

NAMES = list(SELECTORS)
FAST = ["brute_force", "random", "arm_elimination", "threshold", "epsilon_lucb", "hill_climbing"]


def play(selector: Selector, table: Table) -> None:
    """Another driver than `select_best`: the cells are looked up."""
    while asked := selector.ask():
        selector.tell(
            [[table[number, selector.datapoints[place]] for place in places] for number, places in asked]
        )


@pytest.mark.parametrize("name", NAMES)
def test_results_are_the_same_whatever_the_cap_and_the_driver(name: str) -> None:
    table = bernoulli([0.9, 0.7, 0.5, 0.4, 0.3, 0.2], 30, seed=5)
    choices = grid(2, 3)
    found = []
    for parallel, cap in ((False, 20), (True, 3), (True, 50)):
        selector = make_selector(name, choices, range(30), lookup(table, choices), seed=3)
        results = selector.select_best(parallel=parallel, max_concurrent=cap)
        found.append((results, json.dumps(results.to_dict())))
    other = make_selector(name, choices, range(30), lookup(table, choices), seed=3)
    play(other, table)
    found.append((other.results(), json.dumps(other.results().to_dict())))
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=15)
@given(data=st.data())
def test_no_cell_is_asked_for_or_counted_twice(name: str, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(1,), (4,), (2, 3)]))
    size, seed = data.draw(st.integers(1, 25)), data.draw(st.integers(0, 99))
    table = bernoulli([0.5] * math.prod(shape), size, seed)
    asked: Counter[tuple[Combination, int]] = Counter()
    lock = threading.Lock()
    found = lookup(table, grid(*shape))

    def evaluate(combination: Combination, datapoint: int) -> float:
        with lock:
            asked[combination, datapoint] += 1
        if datapoint == 0:
            raise RuntimeError("once is enough")
        return found(combination, datapoint)

    # Each datapoint stands in the dataset twice.
    selector = make_selector(
        name, grid(*shape), [*range(size), *range(size)], evaluate, seed=seed, max_errors=1
    )
    results = selector.select_best(parallel=True, max_concurrent=4)
    assert set(asked.values()) == {1}
    assert results.evaluations == len(asked) == sum(row.datapoints for row in results.rows)
    assert results.errors == sum(datapoint == 0 for _, datapoint in asked)
    assert results.dataset_size == size


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.3, 1.0, None]), min_size=3, max_size=3), min_size=1, max_size=5)
)
def test_an_error_is_0_in_the_lower_bound_and_1_in_the_upper(rows: list[list[float | None]]) -> None:
    def evaluate(combination: Combination, datapoint: int) -> float:
        row: list[float | None] = rows[combination["a"]]
        score = row[datapoint]
        if score is None:
            raise OSError("no answer")
        return score

    choices = grid(len(rows))
    results = BruteForceSelector(choices, range(3), evaluate, max_errors=1).select_best()
    order = BruteForceSelector(choices, range(3), evaluate).datapoints
    table = [[row[datapoint] for datapoint in order] for row in rows]
    lows, _ = interval([[score or 0.0 for score in row] for row in table])
    _, highs = interval([[1.0 if score is None else score for score in row] for row in table])
    for found in results.rows:
        scores = table[found.index]
        assert found.errors == scores.count(None)
        assert found.score == pytest.approx(sum(score or 0 for score in scores) / 3)
        assert (found.low, found.high) == (lows[found.index], highs[found.index])


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -0.1, 1.1, "high", "1", None, Evaluation(math.nan), Evaluation(2.0)]
)
def test_what_is_no_score_is_an_error_and_counted(bad: object) -> None:
    results = BruteForceSelector(
        {"a": ["good", "bad"]},
        range(20),
        lambda c, _: 0.1 if c["a"] == "good" else bad,  # type: ignore[arg-type,return-value] # that is the test
    ).select_best()
    assert results.best.combination["a"] == "good"
    row = results.rows[1]
    assert (row.errors, row.datapoints, row.score) == (20, 20, 0.0)
    assert row.first_error is not None
    assert "expected a score from 0 to 1, got" in row.first_error


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_errs_is_never_chosen_however_well_it_does_elsewhere(name: str) -> None:
    def evaluate(combination: Combination, datapoint: int) -> float:
        if combination["model"] == "broken" and datapoint % 5 < 2:
            raise TimeoutError("no reply")
        return 1.0 if combination["model"] == "broken" or datapoint % 4 == 0 else 0.0

    choices = {"model": ["broken", "sound"], "prompt": ["p", "q"]}
    # Those with a budget must not spend all of it on the broken one.
    more = {
        "random": {"sample_fraction": 0.75},
        "bayesian": {"budget": 0.75},
        "matrix_ucb": {"budget": 1.0},
    }.get(name, {})
    selector = make_selector(name, choices, range(40), evaluate, seed=1, **more)
    assert selector.select_best(parallel=True).best.combination["model"] == "sound"


@pytest.mark.parametrize("name", NAMES)
def test_where_all_fail_nobody_is_named_and_one_line_says_why(name: str) -> None:
    def evaluate(_combination: Combination, _datapoint: int) -> float:
        raise ConnectionError("refused")

    selector = make_selector(name, grid(3), range(20), evaluate)
    with pytest.raises(NoWinnerError) as caught:
        selector.select_best(parallel=True)
    assert "more than 10% of its datapoints" in str(caught.value)
    assert "refused" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.results.errors == caught.value.results.evaluations > 0
    with pytest.raises(ValueError, match="no combination is named"):
        _ = caught.value.results.best


def test_the_first_of_equals_is_named() -> None:
    for name in ("brute_force", "arm_elimination", "epsilon_lucb", "threshold"):
        # Of those that were evaluated as often: what is asked for ahead may be of any of them.
        found = make_selector(name, grid(4), range(20), lambda _c, d: d % 2, seed=7, ahead=0).select_best()
        assert found.best.index == 0


def test_costs_are_those_of_a_datapoint() -> None:
    def evaluate(combination: Combination, _datapoint: int) -> Evaluation:
        return Evaluation(0.5, 2.0, 10, 5, 0.25 * combination["a"])

    row = BruteForceSelector(grid(2), range(8), evaluate).select_best().rows[1]
    assert (row.latency_s, row.prompt_tokens, row.completion_tokens, row.tokens) == (2.0, 10, 5, 15)
    assert row.price == 0.25


def test_rows_begin_with_the_best_and_end_with_those_never_seen() -> None:
    table = np.repeat([[0.2], [0.9], [0.5], [0.7]], 10, axis=1)
    rows = BruteForceSelector(grid(4), range(10), lookup(table, grid(4))).select_best().rows
    assert [row.index for row in rows] == [1, 3, 2, 0]
    assert [row.is_best for row in rows] == [True, False, False, False]
    some = make_selector("random", grid(4), range(10), lookup(table, grid(4)), seed=2).select_best()
    assert [row.datapoints for row in some.rows] == [10, 0, 0, 0]
    assert (some.rows[1].low, some.rows[1].high) == (0.0, 1.0)
    assert some.to_dict()["combinations"][1]["score"] is None
    assert some.savings == 0.75


def test_rounds_are_told_as_they_end_with_their_plan() -> None:
    seen: list[Round] = []
    ticks: list[None] = []
    table = bernoulli([0.9, 0.1, 0.2], 40, seed=1)
    selector = make_selector("arm_elimination", grid(3), range(40), lookup(table, grid(3)))
    results = selector.select_best(True, 10, seen.append, lambda: ticks.append(None))
    assert tuple(seen) == results.rounds
    assert [each.number for each in seen] == list(range(1, len(seen) + 1))
    assert seen[0].plan == (2, 4)
    assert (seen[0].combinations, seen[0].batch_size, seen[0].evaluations) == (3, 4, 12)
    assert seen[-1].evaluations_so_far == results.evaluations == len(ticks)
    assert seen[-1].survivors == (0,)


def test_a_round_is_asked_for_again_until_it_is_told() -> None:
    selector = BruteForceSelector(grid(2), range(3), lambda _c, _d: 1.0)
    assert selector.ask() == selector.ask()
    with pytest.raises(ValueError, match="one outcome for each evaluation"):
        selector.tell([[1.0]])
    selector.tell([[1.0, 1.0, 1.0]] * 2)
    assert selector.ask() == []


def test_an_interrupt_goes_through_and_the_search_goes_on_from_the_round() -> None:
    class Stop(BaseException):
        pass

    calls: list[None] = []

    def evaluate(_combination: Combination, _datapoint: int) -> float:
        calls.append(None)
        if len(calls) == 2:
            raise Stop
        return 1.0

    selector = BruteForceSelector(grid(2), range(3), evaluate)
    with pytest.raises(Stop):
        selector.select_best()
    assert selector.select_best().evaluations == 6
    assert selector.select_best().evaluations == 6


def _made(**settings: float) -> Callable[[], object]:
    return lambda: BruteForceSelector(grid(2), range(3), lambda _c, _d: 1.0, **settings)  # type: ignore[arg-type] # a seed is whole


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_made(seed=-1), "seed must be at least 0, got -1"),
        (_made(delta=0.0), "delta must be above 0 and below 1, got 0.0"),
        (_made(max_errors=2), "max_errors must be from 0 to 1, got 2"),
        (lambda: BruteForceSelector({}, [1], lambda _c, _d: 1.0), "expected choices by name"),
        (lambda: BruteForceSelector(grid(2), [], lambda _c, _d: 1.0), "at least one datapoint, got none"),
        (
            lambda: BruteForceSelector(grid(2), [1], lambda _c, _d: 1.0).select_best(True, 0),
            "max_concurrent must be at least 1, got 0",
        ),
    ],
)
def test_a_bad_setting_is_one_clear_line(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("max_begun", "most"), [(None, 2), (6, 6)])
def test_as_many_evaluations_are_begun_as_are_allowed_beside_the_cap(
    max_begun: int | None, most: int
) -> None:
    """Each waits until so many are under way; where fewer were begun at once, it would wait for ever."""
    together, inside, seen, lock = threading.Barrier(most, timeout=30), 0, 0, threading.Lock()

    def evaluate(_combination: Combination, _datapoint: int) -> float:
        nonlocal inside, seen
        with lock:
            inside += 1
            seen = max(seen, inside)
        together.wait()
        with lock:
            inside -= 1
        return 1.0

    selector = BruteForceSelector(grid(2), range(3 * most), evaluate)
    selector.select_best(parallel=True, max_concurrent=2, max_begun=max_begun)
    assert seen == most
