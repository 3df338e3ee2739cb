"""Selectors: whatever the cap, the same results; what is claimed of a dataset is true of it."""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call
from search import make_selector
from search.select import SELECTORS, Combination, Evaluation, Many, NoWinnerError, Round
from simulator.process import EmbeddedServer
from simulator.settings import Settings

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
@pytest.mark.parametrize("tables", [40, pytest.param(200, marks=pytest.mark.soak)])
def test_what_is_claimed_of_a_dataset_is_true_but_for_a_chance_of_delta(
    tables: int, name: str, world: Callable[[np.random.Generator], Table]
) -> None:
    holds = []
    for seed in range(tables):
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


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from([0, 0.3, 1]), min_size=4, max_size=4), min_size=1))
def test_brute_force_names_the_first_of_the_highest_means(rows: list[list[float]]) -> None:
    table = np.array(rows)
    found = make_selector("brute_force", arms(table), range(4), lookup(table)).select_best()
    assert found.best.index == int(table.mean(1).round(12).argmax())
    assert {row.index: row.score for row in found.rows} == pytest.approx(
        dict(enumerate(table.mean(1)))
    )
    assert found.savings == 0


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.soak)])
def test_the_interval_of_the_arm_that_is_named_covers_although_the_luckiest_is_named(
    count: int,
) -> None:
    covers = []
    for seed in range(20):
        table = (np.random.default_rng([seed, 9]).random((count, 60)) < 0.6).astype(float)
        selector = make_selector("brute_force", arms(table), range(60), lookup(table), seed=seed)
        best = selector.select_best().best
        assert best.low <= best.score <= best.high
        covers.append(best.low <= 0.6 <= best.high)
    assert np.mean(covers) >= 0.93


@pytest.mark.parametrize("name", ["arm_elimination", "epsilon_lucb", "threshold"])
def test_clear_differences_are_found_in_a_part_of_the_evaluations(name: str) -> None:
    means = np.array([[0.8], [0.6], [0.5], [0.4], [0.3], [0.2]])
    saved = []
    for seed in range(10):
        table = (np.random.default_rng(seed).random((6, 200)) < means).astype(float)
        selector = make_selector(name, arms(table), range(200), lookup(table), seed=seed)
        saved.append(selector.select_best().savings)
    assert np.mean(saved) >= 0.3


def test_budgets_are_kept_and_what_choices_have_in_common_is_used() -> None:
    """Each of two names has one good choice of eight: a quarter of the arms finds both."""
    choices = {"model": list(range(8)), "prompt": list(range(8))}

    def evaluate(combination: Combination, datapoint: int) -> float:
        good = 0.35 * (combination["model"] == 5) + 0.35 * (combination["prompt"] == 2)
        return float(good + 0.2 * ((datapoint * 7 + combination["model"]) % 3 == 0))

    named: dict[str, list[bool]] = {"random": [], "hill_climbing": [], "bayesian": []}
    for name, seed in itertools.product(named, range(4)):
        found = make_selector(name, choices, range(9), evaluate, seed=seed).select_best()
        named[name].append(found.best.combination == {"model": 5, "prompt": 2})
        assert {row.datapoints for row in found.rows} == {0, 9}
        assert name == "hill_climbing" or found.evaluations == 16 * 9
        assert found.savings > 0
    assert sum(named["random"]) < 3
    assert all(named["bayesian"])
    assert all(named["hill_climbing"])
    cells = make_selector("matrix_ucb", choices, range(9), evaluate).select_best()
    assert cells.best.combination == {"model": 5, "prompt": 2}
    assert 0.25 <= 1 - cells.savings <= 0.35


@pytest.fixture(scope="module")
def uneven() -> Iterator[EmbeddedServer]:
    """Some replies take much longer than others: they come in another order than they were sent."""
    tokens = "lognormal:mean=25,sigma=1.0"
    with EmbeddedServer(Settings(slots=40, reply_tokens=tokens, time_scale=0.02)) as server:
        yield server


@pytest.mark.parametrize("name", NAMES)
def test_results_are_the_same_whatever_the_cap_no_cell_is_paid_for_twice_nor_the_cap_exceeded(
    uneven: EmbeddedServer, name: str
) -> None:
    means = np.array([[0.9], [0.7], [0.6], [0.5], [0.4], [0.2]])
    table = (np.random.default_rng(3).random((6, 40)) < means).astype(float)
    found = []
    for cap in (1, 7, 20):
        uneven.reset_stats()
        with Dispatcher([uneven.host], max_in_flight=64) as dispatcher:

            def evaluate(
                arm: Combination, datapoint: int, dispatcher: Dispatcher = dispatcher
            ) -> float:
                prompt = f"{arm['a']} {arm['b']}: {datapoint}"
                call = Call(model="sim-target", prompt=prompt, options={"temperature": 0})
                assert dispatcher.generate(call).error is None
                return float(table[3 * arm["a"] + arm["b"], datapoint])

            choices = {"a": [0, 1], "b": [0, 1, 2]}
            selector = make_selector(name, choices, range(40), evaluate, seed=3)
            results = selector.select_best(parallel=True, max_concurrent=cap)
        stats = uneven.stats()
        assert results.errors == 0
        assert stats["calls"] == results.evaluations
        assert stats["max_in_flight"] <= cap
        found.append(results.to_dict())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10, deadline=None)
@given(
    size=st.integers(1, 25), seed=st.integers(0, 99), shape=st.sampled_from([(1,), (4,), (2, 3)])
)
def test_no_cell_is_evaluated_twice_and_errors_are_counted(
    name: str, size: int, seed: int, shape: tuple[int, ...]
) -> None:
    choices = {str(place): list(range(count)) for place, count in enumerate(shape)}
    table = np.random.default_rng(seed).random((math.prod(shape), size)).round()
    cells: Counter[tuple[object, ...]] = Counter()
    lock = threading.Lock()

    def evaluate(combination: Combination, datapoint: int) -> float:
        with lock:
            cells[(*combination.values(), datapoint)] += 1
        if datapoint == 0:
            raise OSError("gone")
        return float(table[np.ravel_multi_index(list(combination.values()), shape), datapoint])

    selector = make_selector(name, choices, range(size), evaluate, seed=seed, max_errors=1)
    found = selector.select_best(parallel=True, max_concurrent=4)
    assert set(cells.values()) == {1}
    assert found.evaluations == len(cells)
    assert found.errors == sum(datapoint == 0 for *_, datapoint in cells)
    assert found.best.datapoints == size  # who is named is known on the whole dataset


@pytest.mark.parametrize("name", NAMES)
def test_one_that_fails_more_often_than_it_may_is_not_named_however_well_it_does_elsewhere(
    name: str,
) -> None:
    """It fails late, at 12 % of the datapoints, which may be 10 %."""
    size, seen = 100, []
    more = {"random": {"sample_fraction": 1.0}, "bayesian": {"budget": 1.0}}.get(name, {})
    for seed in range(10):
        order = make_selector(name, {"a": [0]}, range(size), lambda _c, _d: 0, seed=seed).datapoints
        late = set(order[-12:])

        def evaluate(combination: Combination, datapoint: int, late: set[int] = late) -> float:
            if combination["a"] == 0 and datapoint in late:
                raise TimeoutError("no reply")
            return 0.5 if combination["a"] and datapoint % 2 else 1.0

        choices = {"a": list(range(4))}
        found = make_selector(name, choices, range(size), evaluate, seed=seed, **more).select_best()
        seen.append(found.best.index)
        assert found.best.errors == 0
    assert 0 not in seen


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 9999), share=st.sampled_from([0.0, 0.1, 0.3]))
def test_too_often_is_of_the_whole_dataset_and_who_reaches_the_threshold_is_named_first(
    name: str, seed: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    table = (rng.random((4, 100)) < rng.uniform(0.4, 1, (4, 1))).astype(float)
    table[rng.random((4, 100)) < rng.choice([0, 0.05, share, 0.4], (4, 1))] = np.nan
    more = {"max_errors": share, **OWN.get(name, {})}
    selector = make_selector(name, arms(table), range(100), lookup(table), seed=seed, **more)
    try:
        found = selector.select_best()
    except NoWinnerError as error:
        found = error.results
        assert all(row.errors > 100 * share for row in found.rows if row.datapoints)
    else:
        assert found.best.datapoints == 100
        assert found.best.errors <= 100 * share
    verdicts = {row.verdict for row in found.rows}
    assert all(
        (row.verdict == "fails too often") == (row.errors > 100 * share) for row in found.rows
    )
    if name == "threshold":
        assert "undecided" not in verdicts
        assert "reaches" not in verdicts or found.best.verdict == "reaches"


@pytest.mark.parametrize("name", NAMES)
def test_where_all_fail_nobody_is_named_and_one_line_says_why(name: str) -> None:
    def evaluate(_combination: Combination, _datapoint: int) -> float:
        raise ConnectionError("refused")

    selector = make_selector(name, {"a": [1, 2, 3]}, range(30), evaluate)
    with pytest.raises(
        NoWinnerError, match=r"more than 10% of the datapoints, first with .*: refused"
    ) as caught:
        selector.select_best(parallel=True)
    assert "\n" not in str(caught.value)
    results = caught.value.results
    assert results.errors == results.evaluations > 0
    assert {row.verdict for row in results.rows} <= {"fails too often", "not seen"}
    with pytest.raises(ValueError, match="no combination is named"):
        _ = results.best


@pytest.mark.parametrize("bad", [1.5, -0.1, math.nan, None, "1", [1], Evaluation(2.0)])
def test_what_is_no_score_is_an_error_and_counts_as_0(bad: object) -> None:
    found = make_selector(
        "brute_force",
        {"a": ["good", "bad"]},
        range(8),
        lambda c, d: 0.5 if c["a"] == "good" or d else bad,  # type: ignore[arg-type,return-value] # that is the test
        max_errors=0.2,
    ).select_best()
    good, row = found.rows
    assert (row.errors, row.score, good.combination["a"]) == (1, 0.5 * 7 / 8, "good")
    assert row.first_error is not None
    assert "expected a score from 0 to 1, got" in row.first_error


def test_choices_and_datapoints_may_be_arrays() -> None:
    choices: dict[str, Many] = {
        "a": [np.zeros(2), np.ones(2), np.ones(3)],
        "b": np.array([0.0, 0.5]),
    }
    selector = make_selector(
        "brute_force", choices, np.eye(4), lambda c, d: c["a"].mean() * c["b"] * d.sum()
    )
    assert selector.select_best().best.index == 3


def test_costs_are_of_a_datapoint_without_error() -> None:
    def evaluate(combination: Combination, datapoint: int) -> Evaluation:
        if datapoint == 0:
            raise OSError("gone")
        return Evaluation(0.5, 2.0, 10, 5, 0.25 * combination["a"])

    found = make_selector("brute_force", {"a": [0, 1]}, range(10), evaluate).select_best()
    row = found.rows[1]
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
    assert tuple(played) == found.rounds
    assert played[-1].evaluations == found.evaluations
    assert played[-1].best == found.best.score
    assert found.claim


def test_another_driver_comes_to_the_same() -> None:
    table = (np.random.default_rng(1).random((6, 60)) < 0.5).astype(float)
    evaluate = lookup(table)
    whole = make_selector("epsilon_lucb", arms(table), range(60), evaluate).select_best()
    driven = make_selector("epsilon_lucb", arms(table), range(60), evaluate)
    assert driven.ask() == driven.ask()
    with pytest.raises(ValueError, match="expected 120 outcomes, got 1"):
        driven.tell([1.0])
    while cells := driven.ask():
        driven.tell([table[arm, driven.datapoints[place]] for arm, place in cells])
    assert driven.results().to_dict() == whole.to_dict()
    with pytest.raises(ValueError, match="expected 0 outcomes, got 1"):
        driven.tell([1.0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [9, 50])
def test_who_goes_on_after_an_interruption_evaluates_nothing_twice(name: str, at: int) -> None:
    table = (np.random.default_rng(1).random((6, 60)) < 0.5).astype(float)
    whole = make_selector(name, arms(table), range(60), lookup(table)).select_best()
    begun, lock = itertools.count(), threading.Lock()
    resumed, goes_on = threading.Event(), threading.Event()
    cells: Counter[tuple[int, int]] = Counter()

    def stops(combination: Combination, datapoint: int) -> float:
        with lock:
            number = next(begun)
        if number == at:
            raise KeyboardInterrupt
        cells[combination["arm"], datapoint] += 1
        if number in {at - 1, at - 2}:  # under way when the others are interrupted
            goes_on.wait()
        elif resumed.is_set():
            goes_on.set()
        return lookup(table)(combination, datapoint)

    selector = make_selector(name, arms(table), range(60), stops)
    with pytest.raises(KeyboardInterrupt):
        selector.select_best(parallel=True, max_concurrent=5)
    resumed.set()
    assert selector.select_best(parallel=True, max_concurrent=5).to_dict() == whole.to_dict()
    assert set(cells.values()) == {1}
    assert cells.total() == whole.evaluations


def test_a_strategy_of_your_own_is_a_generator() -> None:
    def two(
        table: object, rng: np.random.Generator, *, count: int = 2
    ) -> Iterator[list[tuple[int, int]]]:
        del table, rng
        yield [(arm, place) for arm in range(count) for place in range(4)]

    found = make_selector(two, {"a": [0, 1, 2]}, range(4), lambda c, _d: c["a"] / 2).select_best()
    assert (found.best.index, found.evaluations) == (1, 8)
    with pytest.raises(
        ValueError, match="the selector two has no setting 'cuont'; did you mean count"
    ):
        make_selector(two, {"a": [0]}, [1], lambda _c, _d: 0.0, cuont=1)


def test_what_cannot_be_made_is_one_line() -> None:
    table: list[tuple[str, dict[str, object], str]] = [
        ("brute_forse", {}, "no selector is called 'brute_forse'; did you mean brute_force?"),
        ("epsilon_lucb", {"epsilom": 1}, "has no setting 'epsilom'; did you mean epsilon"),
        ("random", {"sample_fraction": 0.0}, "sample_fraction is 0.0; expected a number above 0"),
        ("hill_climbing", {"restarts": 2.5}, "restarts is 2.5; expected a whole number"),
        ("arm_elimination", {"growth_factor": 0.5}, "growth_factor is 0.5; expected a number of"),
        ("threshold", {"threshold": 1.0}, "threshold is 1.0; expected a number above 0"),
        ("epsilon_lucb", {"epsilon": -0.1}, "epsilon is -0.1; expected a number from 0 to 1"),
        ("matrix_ucb", {"exploration": -1}, "exploration is -1; expected a number of at least 0"),
        ("brute_force", {"seed": -1}, "seed is -1; expected a whole number of at least 0"),
        (
            "brute_force",
            {"delta": 0},
            "delta is 0; expected a number of at least 1e-100 and below 1",
        ),
        ("brute_force", {"choices": {}}, "expected choices by name"),
        ("brute_force", {"choices": {"a": "bc"}}, "expected a list of choices for 'a', got 'bc'"),
        ("brute_force", {"choices": {"a": [1, 1]}}, "'a' has the choice 1 twice"),
        (
            "brute_force",
            {"choices": {"a": {1, 2}}},
            "expected a list of choices for 'a', got {1, 2}",
        ),
        ("brute_force", {"choices": [0, 1]}, "expected choices by name"),
        ("brute_force", {"dataset": []}, "expected a list of datapoints, got []"),
        ("brute_force", {"dataset": {1: 2}}, "expected a list of datapoints, got {1: 2}"),
        ("brute_force", {"dataset": {1}}, "expected a list of datapoints, got {1}"),
        ("brute_force", {"dataset": iter([1])}, "expected a list of datapoints, got <list_it"),
        ("brute_force", {"dataset": np.zeros((0, 2))}, "expected a list of datapoints, got array"),
        ("brute_force", {"seed": None}, "seed is None; expected a whole number of at least 0"),
        ("threshold", {"delta": 1e-323}, "delta is 1e-323; expected a number of at least 1e-100"),
        ("threshold", {"delta": None}, "delta is None; expected a number"),
        ("random", {"max_errors": "0.1"}, "max_errors is '0.1'; expected a number from 0 to 1"),
        ("hill_climbing", {"restarts": None}, "restarts is None; expected a whole number"),
    ]
    for name, wrong, says in table:
        told: dict[str, object] = {"choices": {"a": [0, 1]}, "dataset": range(5), **wrong}
        with pytest.raises(ValueError, match=r"expected|no selector|has") as caught:
            make_selector(name, evaluate=lambda _c, _d: 0.0, **told)  # type: ignore[arg-type]
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="max_concurrent must be at least 1, got 0"):
        make_selector("random", {"a": [0]}, [1], lambda _c, _d: 0.0).select_best(True, 0)
