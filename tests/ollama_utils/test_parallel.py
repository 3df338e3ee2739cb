"""Many at once: the same results as one after another, in the same places."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.parallel import ParallelError, map_parallel, run_parallel, score_batch_parallel
from tests.ollama_utils.threads import PATIENCE_S


@given(st.lists(st.none() | st.integers()), st.none() | st.integers(1, 20))
def test_it_gives_what_a_plain_loop_gives(items: list[int | None], max_workers: int | None) -> None:
    assert map_parallel(lambda item: item, items, max_workers) == items


@settings(max_examples=50)
@given(st.permutations(range(8)))
def test_results_keep_their_places_whatever_order_the_work_ends_in(order: list[int]) -> None:
    ended = [threading.Event() for _ in order]
    before = {item: order[place - 1] for place, item in enumerate(order) if place}

    def work(item: int) -> int:
        assert item not in before or ended[before[item]].wait(PATIENCE_S)
        ended[item].set()
        return item

    assert map_parallel(work, range(8)) == list(range(8))


@pytest.mark.parametrize("max_workers", [1, 2, 3, 8])
def test_max_workers_are_at_work_at_once_and_never_one_more(max_workers: int) -> None:
    lock, busy, most = threading.Lock(), [0], [0]
    full = threading.Barrier(max_workers)

    def work(_: int) -> None:
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        full.wait(PATIENCE_S)
        with lock:
            busy[0] -= 1

    map_parallel(work, range(3 * max_workers), max_workers)
    assert most == [max_workers]


def test_nested_calls_end_even_when_every_thread_of_the_pool_is_taken() -> None:
    def work(item: int) -> int:
        return sum(map_parallel(lambda other: item * other, range(3)))

    assert map_parallel(work, range(600)) == [item * 3 for item in range(600)]


@settings(max_examples=50)
@given(st.lists(st.booleans(), min_size=1), st.none() | st.integers(1, 5))
def test_a_failing_item_does_not_lose_the_others(
    fails: list[bool], max_workers: int | None
) -> None:
    def work(index: int) -> int:
        if fails[index]:
            raise KeyError(index)
        return index

    if not any(fails):
        assert map_parallel(work, range(len(fails)), max_workers) == list(range(len(fails)))
        return
    with pytest.raises(
        ParallelError, match=rf"{sum(fails)} of {len(fails)} items failed"
    ) as caught:
        map_parallel(work, range(len(fails)), max_workers)
    assert caught.value.results == [None if failed else i for i, failed in enumerate(fails)]
    assert [error.args for error in caught.value.failures.values()] == [
        (i,) for i in caught.value.failures
    ]
    assert set(caught.value.failures) == {i for i, failed in enumerate(fails) if failed}
    assert caught.value.__cause__ is caught.value.failures[fails.index(True)]


def test_after_a_ctrl_c_in_the_caller_no_further_item_begins() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_parallel(work, range(10), max_workers=1)
    assert begun == [0, 1, 2]


def test_run_parallel_spreads_each_item_over_the_arguments() -> None:
    assert run_parallel(lambda a, b: a - b, [(5, 3), (1, 1)]) == [2, 0]


def test_scores_keep_their_places_and_a_failure_is_nan_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def score(system_prompt: str, query: str, response: str) -> float:
        return len(system_prompt + query) / len(response)

    scores = score_batch_parallel(score, [("a", "b", "cd"), ("a", "b", ""), ("", "", "e")])
    assert scores[0] == 1.0
    assert math.isnan(scores[1])
    assert scores[2] == 0.0
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "item 1 has no score: ZeroDivisionError('division by zero')"
    ]


def test_no_items_give_no_results_and_no_workers_are_an_error() -> None:
    assert map_parallel(str, []) == []
    with pytest.raises(ValueError, match="at least 1, got 0"):
        map_parallel(str, [1], max_workers=0)
