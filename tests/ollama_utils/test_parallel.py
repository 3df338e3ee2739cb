"""Many at once: the same results as one after another, in the same places."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.parallel import (
    ParallelError,
    iterate_parallel,
    map_parallel,
    score_batch_parallel,
)
from tests.ollama_utils.threads import PATIENCE_S, interrupted_once


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


@settings(max_examples=50)
@given(st.lists(st.booleans()), st.none() | st.integers(1, 5))
def test_an_item_that_fails_does_not_lose_the_others(
    fails: list[bool], max_workers: int | None
) -> None:
    def work(index: int) -> int:
        if fails[index]:
            raise KeyError(index)
        return index

    if not any(fails):
        assert map_parallel(work, range(len(fails)), max_workers) == list(range(len(fails)))
        return
    expected = rf"{sum(fails)} of {len(fails)} items failed"
    with pytest.raises(ParallelError, match=expected) as caught:
        map_parallel(work, range(len(fails)), max_workers)
    assert caught.value.results == [None if failed else k for k, failed in enumerate(fails)]
    failures = caught.value.failures
    assert [error.args for error in failures.values()] == [(index,) for index in failures]
    assert list(failures) == [index for index, failed in enumerate(fails) if failed]
    assert caught.value.__cause__ is failures[fails.index(True)]


def test_calls_within_calls_end() -> None:
    def work(item: int) -> int:
        return sum(map_parallel(lambda other: item * other, range(3)))

    assert map_parallel(work, range(100)) == [item * 3 for item in range(100)]


def test_one_worker_is_this_thread_which_takes_the_items_in_order_until_a_ctrl_c() -> None:
    began: list[tuple[int, threading.Thread]] = []

    def work(item: int) -> None:
        began.append((item, threading.current_thread()))
        if item == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_parallel(work, range(10), max_workers=1)
    assert began == [(item, threading.current_thread()) for item in range(3)]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        map_parallel(work, [1], max_workers=0)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets go of items that hang."""
    event = threading.Event()
    yield event
    event.set()


def test_a_ctrl_c_ends_the_wait_for_items_on_other_threads(release: threading.Event) -> None:
    together = threading.Barrier(3)  # two items, and whoever sends the signal

    def work(_: int) -> None:
        together.wait(PATIENCE_S)
        release.wait()

    with interrupted_once(lambda: together.wait(PATIENCE_S)):
        map_parallel(work, range(2))


def test_scores_keep_their_places_and_a_failure_is_nan_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def score(system_prompt: str, query: str, response: str) -> float:
        return len(system_prompt + query) / len(response)

    scores = score_batch_parallel(score, [("a", "b", "cd"), ("a", "b", ""), ("", "", "e")])
    assert [scores[0], scores[2]] == [1.0, 0.0]
    assert math.isnan(scores[1])
    assert "item 1 has no score: ZeroDivisionError('division by zero')" in caplog.messages


def test_iterated_each_result_is_there_before_later_items_end(release: threading.Event) -> None:
    ticks: list[int] = []

    def work(item: int) -> int:
        assert item != 3 or release.wait(PATIENCE_S)
        return item

    results = iterate_parallel(work, range(6), 2, ticks.append)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    release.set()
    assert list(results) == [3, 4, 5]
    assert ticks == sorted(ticks)
    assert ticks[-1] == 6


@pytest.mark.parametrize("closes", [True, False])
def test_iterated_no_item_begins_once_one_raised_or_nobody_wants_more(
    release: threading.Event, *, closes: bool
) -> None:
    began: list[int] = []
    gates = [threading.Event() for _ in range(2)]

    def work(item: int) -> int:
        began.append(item)
        if item == 1:
            gates[0].wait(PATIENCE_S)
            if not closes:
                raise KeyError(item)
        if item > 1:
            gates[1].set()
            release.wait(PATIENCE_S)
        return item

    results = iterate_parallel(work, range(100), 2)
    assert next(results) == 0
    assert gates[1].wait(PATIENCE_S)
    if closes:
        results.close()
    gates[0].set()
    if not closes:
        with pytest.raises(KeyError):
            next(results)
    release.set()
    assert len(began) < 6
