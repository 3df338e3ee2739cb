"""A rate that changes: the lowest limit holds for all, at once, and no token is given twice or lost."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError
from ollama_utils.rate import Reservation, TokenBucket
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from tests.ollama_utils.clock import Clock, reserved
from tests.ollama_utils.threads import PATIENCE_S, start, wait_until

_ROUNDING_S = 1e-6

RATES = st.floats(0.1, 1e5)


def test_a_bucket_that_nobody_waits_at_is_empty_once_its_rate_is_changed() -> None:
    clock = Clock(50.0)
    bucket = TokenBucket(60, clock=clock)
    clock.now_s = 100.0
    bucket.per_minute = 6
    assert reserved(bucket) == 110.0
    bucket.per_minute = None
    assert reserved(bucket) == 100.0
    bucket.per_minute = 60
    assert [reserved(bucket), reserved(bucket)] == [101.0, 102.0]


def test_a_limit_that_changes_nothing_leaves_what_lies_in_the_bucket() -> None:
    clock = Clock()
    bucket = TokenBucket(60, clock=clock)
    clock.now_s = 100.0
    with bucket.limited(600), bucket.limited(None):
        assert reserved(bucket) == 100.0


@pytest.mark.parametrize(("rate", "expected"), [(600, [0.55, 0.65, 0.75]), (6, [5.5, 15.5, 25.5])])
def test_those_who_wait_feel_a_changed_rate_at_once_and_what_they_waited_counts(
    rate: float, expected: list[float]
) -> None:
    clock = Clock()
    bucket = TokenBucket(60, clock=clock)
    turns = [bucket.reserve() for _ in range(3)]
    assert [bucket.due_s(turn) for turn in turns] == [1.0, 2.0, 3.0]
    clock.now_s = 0.5
    bucket.per_minute = rate
    assert [bucket.due_s(turn) for turn in turns] == pytest.approx(expected)
    clock.now_s = 0.52
    bucket.per_minute = None
    bucket.per_minute = 60
    assert [bucket.due_s(turn) for turn in turns] == [0.52] * 3, (
        "without a limit all of them were free to go"
    )


LIMITS = st.one_of(st.none(), RATES)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["add", "own"]), LIMITS),
        st.tuples(st.just("remove"), st.integers(0, 99)),
    ),
    max_size=40,
)


@given(own=LIMITS, steps=STEPS)
def test_whatever_limits_come_and_go_the_lowest_of_those_present_holds(
    own: float | None, steps: list[tuple[str, float | None]]
) -> None:
    bucket = TokenBucket(own, clock=Clock())
    present: list[tuple[float | None, AbstractContextManager[object]]] = []
    for kind, value in steps:
        if kind == "add":
            present.append((value, bucket.limited(value)))
            present[-1][1].__enter__()
        elif kind == "own":
            bucket.per_minute = own = value
        elif present:
            present.pop(int(value or 0) % len(present))[1].__exit__(None, None, None)
        limits = [limit for limit in (own, *(limit for limit, _ in present)) if limit is not None]
        assert bucket.in_force_per_minute == min(limits, default=None)
        assert bucket.per_minute == own


class Story:
    """A bucket on a clock of its own, those who wait at it, and all rates that held."""

    def __init__(self, per_minute: float | None, burst: int = 1) -> None:
        self.clock = Clock()
        self.bucket = TokenBucket(per_minute, burst, clock=self.clock)
        self.rates = [(0.0, per_minute)]
        self.waiting: list[Reservation] = []
        self.let_out_s: list[float] = []

    def go_on(self, gap_s: float) -> None:
        """Time passes, and whose token comes goes out."""
        self.clock.now_s += gap_s
        while self.waiting and (due_s := self.bucket.due_s(self.waiting[0])) <= self.clock.now_s:
            self.let_out_s.append(due_s)
            self.waiting.pop(0)

    def change(self, per_minute: float | None) -> None:
        self.bucket.per_minute = per_minute
        self.rates.append((self.clock.now_s, per_minute))
        self.go_on(0.0)

    def come(self, _: object = None) -> None:
        self.waiting.append(self.bucket.reserve())
        self.go_on(0.0)

    def give_up(self, index: int) -> None:
        if self.waiting:
            self.bucket.give_up(self.waiting.pop(index % len(self.waiting)))
            self.go_on(0.0)

    def end(self) -> None:
        """Nothing changes any more, and all get theirs."""
        self.let_out_s += [self.bucket.due_s(turn) for turn in self.waiting]

    def fell_in(self, begin_s: float, end_s: float) -> float:
        """The tokens of a window."""
        ends_s = [since_s for since_s, _ in self.rates[1:]] + [math.inf]
        sums = [
            math.inf
            if rate is None
            else max(0.0, min(end_s, until_s) - max(begin_s, since_s)) * rate / 60
            for (since_s, rate), until_s in zip(self.rates, ends_s, strict=True)
            if since_s <= end_s + _ROUNDING_S and until_s >= begin_s - _ROUNDING_S
        ]
        return sum(sums)


CALM_RATES = st.floats(1.0, 6000.0)
DOINGS = st.lists(
    st.one_of(
        st.tuples(st.just(Story.come), st.none()),
        st.tuples(st.just(Story.go_on), st.floats(0.0, 10.0)),
        st.tuples(st.just(Story.change), st.one_of(CALM_RATES, CALM_RATES, st.none())),
        st.tuples(st.just(Story.give_up), st.integers(0, 99)),
    ),
    max_size=60,
)


@given(per_minute=st.one_of(CALM_RATES, st.none()), burst=st.integers(1, 4), doings=DOINGS)
def test_no_window_holds_more_tokens_than_the_rates_that_held_in_it_allow(
    per_minute: float | None,
    burst: int,
    doings: list[tuple[Callable[[Story, object], None], object]],
) -> None:
    story = Story(per_minute, burst)
    for do, value in doings:
        do(story, value)
    story.end()
    out_s = story.let_out_s
    assert all(earlier <= later + _ROUNDING_S for earlier, later in pairwise(out_s)), (
        "first come, first served"
    )
    for first, begin_s in enumerate(out_s):
        for count, end_s in enumerate(out_s[first:], 1):
            assert count <= story.fell_in(begin_s, end_s) + burst + 1e-4
    for count, end_s in enumerate(out_s, 1):  # it starts empty
        assert count <= story.fell_in(0.0, end_s) + 1e-4


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just(Story.go_on), st.floats(0.0, 10.0)),
        st.tuples(st.just(Story.change), CALM_RATES),
        st.tuples(st.just(Story.give_up), st.integers(0, 99)),
    ),
    max_size=40,
)


@given(per_minute=CALM_RATES, changes=CHANGES)
def test_no_token_is_lost_to_a_changed_rate_or_to_those_who_give_up(
    per_minute: float, changes: list[tuple[Callable[[Story, object], None], object]]
) -> None:
    story = Story(per_minute)
    for _ in range(60):
        story.come()
    for do, value in changes:
        do(story, value)
    story.end()
    for count, end_s in enumerate(story.let_out_s, 1):
        assert story.fell_in(0.0, end_s) == pytest.approx(count, abs=1e-3)


def test_waiters_who_were_cancelled_cost_the_next_one_nothing() -> None:
    bucket, cancelled = TokenBucket(60, clock=Clock()), threading.Event()
    waiting = [start(lambda: bucket.wait(cancelled)) for _ in range(10)]
    cancelled.set()
    for waiter in waiting:
        assert isinstance(waiter.exception(PATIENCE_S), CallCancelledError)
    bucket.per_minute = 6000
    assert reserved(bucket) == pytest.approx(0.01)


def test_a_token_that_is_given_up_late_goes_to_the_next_one_now_and_not_as_a_second_one() -> None:
    clock = Clock()
    bucket = TokenBucket(60, clock=clock)
    turns = [bucket.reserve() for _ in range(4)]
    clock.now_s = 1.25
    bucket.give_up(turns[0])
    assert [bucket.due_s(turn) for turn in turns[1:]] == [1.25, 2.25, 3.25]
    clock.now_s = 2.5
    bucket.give_up(turns[1])  # the token after it has come, too
    assert [bucket.due_s(turn) for turn in turns[2:]] == [2.25, 3.25]
    assert reserved(bucket) == 4.25


def test_a_call_that_waits_goes_out_once_the_limit_that_held_it_is_gone(
    server: EmbeddedServer,
) -> None:
    with Dispatcher([server.host], rate_limit_per_minute=1e6) as dispatcher:
        with dispatcher.limited(1e-3):
            asked = start(lambda: dispatcher.generate(Call(model="sim-target", prompt="p")))
            gate = dispatcher._fleet._servers[server.host].gate("sim-target")
            wait_until(lambda: gate.in_flight == 1)
            assert dispatcher.rate_limit_per_minute == 1e6
            assert not server.stats()["calls"]
        assert asked.result(PATIENCE_S).error is None
