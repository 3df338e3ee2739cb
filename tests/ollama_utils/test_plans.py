"""Plans side by side: each gets its own values in order, the cap holds, no place idles."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.plans import Plan, PlanRunner, play_plans

Batches = list[list[int]]


def echo(batches: Batches) -> Plan[int, int, list[list[int]]]:
    """Yield each batch, and return what came of all of them."""
    seen = []
    for batch in batches:
        came: Sequence[int] = yield batch
        seen.append(list(came))
    return seen


class Meter:
    """Squares, and counts how many are under way."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.done: list[int] = []
        self.lock = threading.Lock()

    def __call__(self, item: int) -> int:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.0005)
        with self.lock:
            self.now -= 1
            self.done.append(item)
        return item * item


@given(
    plans=st.lists(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=4), max_size=5),
    cap=st.integers(1, 6),
)
def test_every_plan_gets_its_own_values_in_order_and_the_cap_holds(
    plans: list[Batches], cap: int
) -> None:
    meter = Meter()
    results = play_plans([echo(batches) for batches in plans], meter, cap)
    assert results == [[[item * item for item in batch] for batch in batches] for batches in plans]
    assert meter.most <= cap
    assert sorted(meter.done) == sorted(
        item for batches in plans for batch in batches for item in batch
    )


def test_the_first_plan_comes_first_and_what_is_left_over_goes_to_the_next() -> None:
    begun: list[int] = []
    both = threading.Barrier(5, timeout=10)

    def do(item: int) -> int:
        begun.append(item)
        both.wait()
        return item

    play_plans([echo([[0, 1, 2]]), echo([[3, 4]])], do, 5)
    assert sorted(begun[:3]) == [0, 1, 2]


def test_a_plan_is_opened_only_when_a_place_would_be_idle() -> None:
    opened: list[str] = []

    def named(name: str) -> Plan[int, int, str]:
        opened.append(name)
        yield [1, 2, 3]
        return name

    def do(item: int) -> int:
        assert opened == ["a"] or item == 3 or len(opened) == 2
        return item

    assert play_plans([named("a"), named("b")], do, 1) == ["a", "b"]


def test_the_first_error_of_a_batch_is_thrown_into_its_plan() -> None:
    def do(item: int) -> int:
        if item > 1:
            raise ValueError(f"no {item}")
        return item

    def careful(batch: list[int]) -> Plan[int, int, list[int] | str]:
        try:
            return list((yield batch))
        except ValueError as error:
            return str(error)

    assert play_plans([careful([1, 3, 2]), careful([0, 1])], do, 2) == ["no 3", [0, 1]]


def test_plans_are_submitted_one_by_one_and_one_that_fails_leaves_the_others() -> None:
    def broken() -> Plan[int, int, None]:
        yield [1]
        raise RuntimeError("a fault in the plan")

    with PlanRunner(Meter(), 2) as runner:
        first, second = runner.submit(broken()), runner.submit(echo([[2], [3]]))
        assert second.result(timeout=10) == [[4], [9]]
        assert isinstance(first.exception(timeout=10), RuntimeError)
        assert runner.submit(echo([[4]])).result(timeout=10) == [[16]]
    assert runner.submit(echo([[5]])).cancelled()


def test_a_plan_that_is_cancelled_begins_no_further_batch() -> None:
    begun: list[int] = []
    under_way, cancelled = threading.Event(), threading.Event()

    def do(item: int) -> int:
        begun.append(item)
        under_way.set()
        assert cancelled.wait(10)
        return item

    with PlanRunner(do, 1) as runner:
        first, unopened = runner.submit(echo([[1, 2], [3]])), runner.submit(echo([[4]]))
        last = runner.submit(echo([[5]]))
        assert under_way.wait(10)
        assert first.cancel()
        assert unopened.cancel()
        cancelled.set()
        assert last.result(10) == [[5]]
    assert begun == [1, 5]


def test_stopping_cancels_what_is_not_finished_and_waits_for_nothing() -> None:
    begun, let_go = threading.Event(), threading.Event()

    def do(item: int) -> int:
        begun.set()
        let_go.wait(10)
        return item

    runner = PlanRunner(do, 1)
    future, later = runner.submit(echo([[1], [2]])), runner.submit(echo([[3]]))
    assert begun.wait(10)
    runner.stop()
    assert future.cancelled()
    assert later.cancelled()
    let_go.set()


def test_a_plan_may_submit_another_one() -> None:
    with PlanRunner(Meter(), 1) as runner:

        def parent() -> Plan[int, int, Future[list[list[int]]]]:
            yield [2]
            return runner.submit(echo([[3]]))

        assert runner.submit(parent()).result(timeout=10).result(timeout=10) == [[9]]


def test_a_plan_that_raises_ends_all_and_nothing_is_begun_after_it() -> None:
    def broken() -> Plan[int, int, None]:
        yield [1]
        raise RuntimeError("a fault in the plan")

    meter = Meter()
    with pytest.raises(RuntimeError, match="a fault in the plan"):
        play_plans([broken(), echo([[2], [3]])], meter, 1)
    assert meter.done == [1]


@pytest.mark.parametrize("fails_at", [1, 3, 4])
def test_a_tick_that_raises_ends_all_at_once(fails_at: int) -> None:
    done: list[int] = []

    def tick() -> None:
        if len(done) == fails_at:
            raise LookupError

    def whole() -> Plan[int, None, None]:
        yield range(4)

    with pytest.raises(LookupError):
        play_plans([whole()], done.append, 1, tick)
    assert len(done) == fails_at


def test_an_interrupt_in_an_item_stops_the_others() -> None:
    class StopNow(BaseException):
        pass

    def do(_item: int) -> int:
        raise StopNow

    with pytest.raises(StopNow):
        play_plans([echo([[1] * 50])], do, 1)


def test_a_cap_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_in_flight must be at least 1, got 0"):
        play_plans([], lambda item: item, 0)
