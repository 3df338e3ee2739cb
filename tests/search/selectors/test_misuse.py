"""What a caller may get wrong, and where a search is broken off: nothing is made up, and no cell is lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from ollama_utils.parallel import map_parallel
from search.selectors.combination import Combination
from search.selectors.random_search import BruteForceSelector
from search.selectors.registry import make_selector
from search.selectors.selector import Evaluation, Request
from tests.search.selectors.tables import Table, bernoulli, grid


@pytest.mark.parametrize("outcomes", [[], [[]]])
def test_what_nobody_asked_for_cannot_be_told(outcomes: list[list[float]]) -> None:
    selector = BruteForceSelector(grid(2), range(3), lambda _c, _d: 1.0)
    with pytest.raises(ValueError, match="ask first"):
        selector.tell(outcomes)
    selector.select_best()
    with pytest.raises(ValueError, match="ask first"):
        selector.tell(outcomes)
    assert len(selector.rounds) == 1


class BrokenOffWhileItDecides(BruteForceSelector):
    def _rounds(self) -> Iterator[Sequence[Request]]:
        yield from super()._rounds()
        raise KeyboardInterrupt


class BrokenOffWhileItIsTold(BruteForceSelector):
    def _note(self) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("broken", [BrokenOffWhileItDecides, BrokenOffWhileItIsTold])
def test_a_search_that_was_broken_off_names_nobody(broken: type[BruteForceSelector]) -> None:
    selector = broken(grid(2), range(3), lambda _c, _d: 1.0)
    with pytest.raises(KeyboardInterrupt):
        selector.select_best()
    with pytest.raises(RuntimeError, match="broken off while it decided; make a new selector"):
        selector.select_best()


@pytest.mark.parametrize(
    "bad",
    [
        Evaluation(0.5, price=None),  # type: ignore[arg-type] # that is the test
        Evaluation(0.5, latency_s=math.nan),
        Evaluation(0.5, price=math.inf),
        Evaluation(0.5, prompt_tokens="many"),  # type: ignore[arg-type] # that is the test
    ],
)
def test_costs_that_are_no_numbers_are_an_error_of_that_datapoint(bad: Evaluation) -> None:
    results = BruteForceSelector(
        {"a": ["good", "bad"]}, range(4), lambda c, _: 0.1 if c["a"] == "good" else bad
    ).select_best()
    row = results.rows[1]
    assert (row.errors, row.score, row.price, row.latency_s) == (4, 0.0, 0.0, 0.0)
    assert row.first_error is not None
    assert "expected a finite number as" in row.first_error


def test_a_score_counts_as_the_number_that_it_is() -> None:
    score = np.float32(0.5)
    found = BruteForceSelector(grid(1), range(4), lambda _c, _d: Evaluation(score, price=1.0)).select_best()  # type: ignore[arg-type]
    assert (found.best.score, found.best.price) == (0.5, 1.0)


def test_an_evaluation_may_itself_use_the_pool_of_threads() -> None:
    def evaluate(combination: Combination, datapoint: int) -> float:
        parts = map_parallel(lambda part: (combination["a"] + datapoint + part) % 2, range(4))
        return float(sum(parts) / 4)

    results = BruteForceSelector(grid(3), range(30), evaluate).select_best(parallel=True, max_concurrent=300)
    assert (results.evaluations, results.errors) == (90, 0)


@pytest.mark.parametrize("name", ["arm_elimination", "epsilon_lucb", "threshold", "matrix_ucb"])
@pytest.mark.parametrize(
    ("size", "seeds"), [(100, 5), *(pytest.param(size, 40, marks=pytest.mark.soak) for size in (100, 200))]
)
def test_one_is_named_only_once_it_is_sure_to_fail_seldom_enough(name: str, size: int, seeds: int) -> None:
    """It answers nearly always right, and fails on more datapoints than it may, 12 % to 10 %: maybe late."""
    named = []
    for seed in range(seeds):
        chance = np.random.default_rng(seed)
        table = bernoulli([0.97, 0.6, 0.55, 0.5], size, seed)
        fails = set(chance.permutation(size)[: 12 * size // 100].tolist())

        def evaluate(
            combination: Combination, datapoint: int, table: Table = table, fails: set[int] = fails
        ) -> float:
            if combination["a"] == 0 and datapoint in fails:
                raise TimeoutError("no reply")
            return float(table[combination["a"], datapoint])

        selector = make_selector(name, grid(4), range(size), evaluate, seed=seed)
        best = selector.select_best().best
        named.append(best.index == 0)
    assert np.mean(named) <= 0.05
