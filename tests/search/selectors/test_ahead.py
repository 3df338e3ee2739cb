"""Rounds are decided ahead, so that the cap stays full: at the same points however calls come in."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call
from search.selectors.combination import Combination
from search.selectors.registry import SELECTORS, make_selector
from search.selectors.results import SelectionResults
from search.selectors.selector import Selector
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.search.selectors.arms import MEANS
from tests.search.selectors.tables import Table, bernoulli

CAP = 20
CHOICES = {"model": [0, 1, 2], "prompt": [0, 1, 2]}
SAVING = ["arm_elimination", "epsilon_lucb", "threshold"]


def under_way(selector: Selector, table: Table) -> Iterator[int]:
    """How many evaluations are not told, whenever one is; it goes on while the search does."""
    selector.ask()
    while selector._untold:
        yield len(selector._untold)
        number, place = selector._untold[0]
        selector._take(float(table[number, selector.datapoints[place]]))


@pytest.mark.parametrize("name", list(SELECTORS))
def test_there_are_always_enough_evaluations_for_the_cap_but_for_the_last(name: str) -> None:
    for seed in range(5):
        table = bernoulli(list(MEANS), 100, seed)
        selector = make_selector(name, CHOICES, range(100), lambda _c, _d: 0.0, seed=seed)
        counts = list(under_way(selector, table))
        assert np.mean(np.minimum(counts[:-CAP], CAP)) >= 0.9 * CAP


@pytest.mark.parametrize("name", SAVING)
def test_no_search_asks_far_ahead_where_there_is_little_to_evaluate(name: str) -> None:
    table = bernoulli([0.9, 0.2], 50, seed=1)
    selector = make_selector(name, {"a": [0, 1]}, range(50), lambda _c, _d: 0.0)
    assert sum(1 for _ in under_way(selector, table)) <= 80


@pytest.mark.parametrize("name", list(SELECTORS))
def test_without_looking_ahead_a_round_is_asked_for_when_all_before_it_is_told(name: str) -> None:
    table = bernoulli(list(MEANS), 40, seed=2)
    selector = make_selector(name, CHOICES, range(40), lambda _c, _d: 0.0, ahead=0)
    while requests := selector.ask():
        assert int(selector.cells.asked.sum() - selector.cells.seen.sum()) == sum(
            len(places) for _, places in requests
        )
        selector.tell(
            [[table[number, selector.datapoints[k]] for k in places] for number, places in requests]
        )


def selected(server: EmbeddedServer, name: str, table: Table, cap: int, **settings: int) -> SelectionResults:
    """What a selector finds by calls to a server, which the table scores."""
    choices = {"arm": list(range(len(table)))}
    with Dispatcher([server.host], max_in_flight=64) as dispatcher:

        def evaluate(combination: Combination, datapoint: int) -> float:
            prompt = f"{combination['arm']}: {datapoint}"
            call = Call(model="sim-target", prompt=prompt, options={"temperature": 0})
            assert dispatcher.generate(call).error is None
            return float(table[combination["arm"], datapoint])

        server.reset_stats()
        selector = make_selector(name, choices, range(table.shape[1]), evaluate, **settings)
        return selector.select_best(parallel=True, max_concurrent=cap)


@pytest.fixture(scope="module")
def uneven() -> Iterator[EmbeddedServer]:
    """Some replies take much longer than others: they come in another order than they were asked for."""
    settings = Settings(slots=CAP, reply_tokens="lognormal:mean=25,sigma=1.0", time_scale=0.02)
    with EmbeddedServer(settings) as server:
        yield server


@pytest.mark.parametrize("name", list(SELECTORS))
def test_in_whatever_order_replies_come_results_are_equal_and_no_cell_is_paid_for_twice(
    uneven: EmbeddedServer, name: str
) -> None:
    table = bernoulli(list(MEANS), 30, seed=3)
    found = []
    for cap in (1, 7, CAP):
        results = selected(uneven, name, table, cap, seed=3)
        stats = uneven.stats()
        assert results.errors == 0
        assert stats["calls"] == results.evaluations
        assert stats["max_in_flight"] <= cap
        rounds = [(each.evaluations, each.survivors) for each in results.rounds]
        chosen = [(row.index, row.score, row.datapoints, row.verdict) for row in results.rows]
        found.append((rounds, chosen))
    assert found[0] == found[1] == found[2]


@pytest.fixture(scope="module")
def slow() -> Iterator[EmbeddedServer]:
    """Each reply takes long enough for as many calls as the cap to begin on a busy machine."""
    with EmbeddedServer(Settings(slots=CAP, reply_tokens="125")) as server:
        yield server


@pytest.mark.parametrize("name", SAVING)
def test_the_server_counts_as_many_calls_at_once_as_the_cap(slow: EmbeddedServer, name: str) -> None:
    results = selected(slow, name, bernoulli(list(MEANS), 8, seed=1), CAP, ahead=3 * CAP, n_initial=1)
    stats = slow.stats()
    assert stats["max_in_flight"] == CAP
    assert stats["calls"] == results.evaluations


def test_one_that_takes_long_holds_up_no_evaluation_that_was_asked_for() -> None:
    """The first ends when all others have: whoever waits in line for it would wait for ever."""
    others, lock, left = threading.Event(), threading.Lock(), 59

    def evaluate(combination: Combination, datapoint: int) -> float:
        nonlocal left
        if combination["a"] == 0 and datapoint == selector.datapoints[0]:
            assert others.wait(timeout=30)
            return 1.0
        with lock:
            left -= 1
            if not left:
                others.set()
        return 1.0

    selector = make_selector("brute_force", {"a": [0, 1]}, range(30), evaluate)
    assert selector.select_best(parallel=True, max_concurrent=2).errors == 0


@pytest.mark.parametrize("at", ["round", "evaluation"])
def test_what_is_raised_on_the_way_ends_the_search_and_nothing_more_is_begun(at: str) -> None:
    begun = 0

    def evaluate(_combination: Combination, _datapoint: int) -> float:
        nonlocal begun
        begun += 1
        return 1.0

    def fail(*_what: object) -> None:
        raise OSError("disk full")

    selector = make_selector("arm_elimination", CHOICES, range(1000), evaluate)
    on_round, on_evaluation = (fail if at == what else None for what in ("round", "evaluation"))
    with pytest.raises(OSError, match="disk full"):
        selector.select_best(True, 4, on_round, on_evaluation)
    assert begun < 9 * 1000
    ended = begun
    threading.Event().wait(0.2)
    assert begun <= ended + 4


def test_a_search_that_was_interrupted_goes_on_with_what_was_not_told() -> None:
    class Stop(BaseException):
        pass

    calls = 0

    def evaluate(combination: Combination, datapoint: int) -> float:
        nonlocal calls
        calls += 1
        if calls == 100:
            raise Stop
        return float((combination["model"] + datapoint) % 3 == 0)

    def new() -> Selector:
        return make_selector("epsilon_lucb", CHOICES, range(60), evaluate, seed=1)

    interrupted = new()
    with pytest.raises(Stop):
        interrupted.select_best(parallel=True, max_concurrent=5)
    assert interrupted.select_best(parallel=True).to_dict() == new().select_best(parallel=True).to_dict()
