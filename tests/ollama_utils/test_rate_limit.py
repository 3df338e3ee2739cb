"""The bucket: never more tokens in any window than rate and burst allow; first come, first served."""

from __future__ import annotations

import math
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError
from ollama_utils.parallel import map_parallel
from ollama_utils.rate import TokenBucket
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from tests.ollama_utils.clock import Clock, reserved
from tests.ollama_utils.threads import PATIENCE_S, start, wait_until

_ROUNDING_S = 1e-6


def ask(prompt: object) -> Call:
    return Call(model="sim-target", prompt=str(prompt), options={"temperature": 0})


RATES = st.floats(0.1, 1e5)
GAPS = st.lists(st.one_of(st.just(0.0), st.floats(0.0, 100.0)), min_size=1, max_size=60)


@given(per_minute=RATES, burst=st.integers(1, 20), gaps_s=GAPS, began_s=st.floats(-1e4, 1e4))
def test_no_window_holds_more_tokens_than_rate_and_burst_allow(
    per_minute: float, burst: int, gaps_s: list[float], began_s: float
) -> None:
    clock = Clock(began_s)
    bucket = TokenBucket(per_minute, burst, clock=clock)
    due_s = []
    for gap_s in gaps_s:
        clock.now_s += gap_s
        due_s.append(reserved(bucket))
        assert due_s[-1] >= clock.now_s
    assert all(earlier <= later for earlier, later in pairwise(due_s)), "first come, first served"
    for first, begin_s in enumerate(due_s):
        for count, end_s in enumerate(due_s[first:], 1):
            assert count <= (end_s - begin_s + _ROUNDING_S) * per_minute / 60 + burst
    for count, end_s in enumerate(due_s, 1):  # it starts empty
        assert count <= (end_s - began_s + _ROUNDING_S) * per_minute / 60


@given(
    per_minute=RATES, burst=st.integers(1, 20), number=st.integers(1, 100), idle_s=st.floats(0, 1e4)
)
def test_no_token_is_lost_while_somebody_waits(
    per_minute: float, burst: int, number: int, idle_s: float
) -> None:
    """After a pause the bucket holds what fell in, its burst at most; then one comes each interval."""
    clock = Clock()
    bucket = TokenBucket(per_minute, burst, clock=clock)
    clock.now_s = idle_s
    interval_s = 60 / per_minute
    level = min(float(burst), idle_s / interval_s)
    for k in range(1, number + 1):
        expected = idle_s + max(0.0, k - level) * interval_s
        assert reserved(bucket) == pytest.approx(expected, rel=1e-9, abs=_ROUNDING_S)


def test_six_hundred_a_minute_are_three_hundred_in_thirty_seconds_from_the_first_call() -> None:
    bucket = TokenBucket(600, clock=Clock(100.0))
    due_s = [reserved(bucket) for _ in range(1000)]
    assert due_s[0] == pytest.approx(100.1)
    assert sum(moment_s <= 130.0 + _ROUNDING_S for moment_s in due_s) == 300


def test_without_a_rate_nobody_waits() -> None:
    clock = Clock(5.0)
    bucket = TokenBucket(clock=clock)
    assert [reserved(bucket) for _ in range(100)] == [5.0] * 100
    assert bucket.per_minute is None


@pytest.mark.parametrize("rate", [0, -1.0, math.inf, math.nan])
def test_a_rate_that_is_none_is_an_error(rate: float) -> None:
    with pytest.raises(ValueError, match="above 0 a minute"):
        TokenBucket(rate)
    with pytest.raises(ValueError, match="above 0 a minute"):
        TokenBucket().limited(rate)
    with pytest.raises(ValueError, match="above 0 a minute"):
        Dispatcher(["http://127.0.0.1:1"], rate_limit_per_minute=rate)


def test_a_burst_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="burst"):
        TokenBucket(60, 0)


def test_who_waits_is_woken_by_a_cancel_and_a_late_one_does_not_wait() -> None:
    bucket, cancelled = TokenBucket(1), threading.Event()
    waiting = [start(lambda: bucket.wait(cancelled)) for _ in range(3)]
    cancelled.set()
    for waiter in waiting:
        assert isinstance(waiter.exception(PATIENCE_S), CallCancelledError)
    with pytest.raises(CallCancelledError):
        bucket.wait(cancelled)


def test_a_wait_is_over_no_sooner_than_its_token_is_there() -> None:
    bucket, never = TokenBucket(60_000), threading.Event()
    for _ in range(20):
        assert bucket.wait(never) <= time.monotonic()


def test_cancelling_a_dispatcher_wakes_who_waits_for_a_token_and_frees_the_place(
    server: EmbeddedServer,
) -> None:
    with Dispatcher([server.host], rate_limit_per_minute=1) as dispatcher:
        asked = start(lambda: dispatcher.generate(ask("p")))
        gate = dispatcher._fleet._servers[server.host].gate("sim-target")
        wait_until(lambda: gate.in_flight == 1)
        dispatcher.cancel()
        completion = asked.result(PATIENCE_S)
        assert isinstance(completion.error, CallCancelledError)
        assert completion.attempts == 0
        assert gate.in_flight == 0
    assert server.stats()["calls"] == 0


def test_the_wait_for_a_token_is_no_part_of_the_deadline(server: EmbeddedServer) -> None:
    """Its third attempt starts more than the deadline after its first, by what it waited for tokens."""
    server.set_faults([{"kind": "status", "status": 503, "rate": 1.0, "first": 2}])
    with Dispatcher(
        [server.host], rate_limit_per_minute=180, deadline_s=0.5, backoff_s=0.001
    ) as dispatcher:
        completion = dispatcher.generate(ask("p"))
    assert (completion.error, completion.attempts) == (None, 3)


def test_a_known_reply_takes_no_token(server: EmbeddedServer) -> None:
    with Dispatcher([server.host]) as dispatcher:
        dispatcher.generate(ask("p"))
        dispatcher.rate_limit_per_minute = 1e-3
        assert dispatcher.rate_limit_per_minute == 1e-3
        assert dispatcher.generate(ask("p")).cached
    assert server.stats()["calls"] == 1


def test_the_server_never_gets_more_requests_than_the_rate_allows(server: EmbeddedServer) -> None:
    """Retries and embeddings are requests, too; the server counts all of them from before the first."""
    per_minute = 1200
    server.set_faults([{"kind": "status", "status": 503, "rate": 0.2}])
    with Dispatcher(
        [server.host], rate_limit_per_minute=per_minute, attempts=8, backoff_s=0.01
    ) as dispatcher:
        asked = start(lambda: map_parallel(dispatcher.generate, [ask(i) for i in range(1000)], 16))
        encoded = start(lambda: map_parallel(lambda i: _embedded(dispatcher, i), range(1000), 2))
        for _ in range(12):
            time.sleep(0.05)
            stats = server.stats()
            # `window_s` is read with the counts, and began before the dispatcher did.
            assert stats["calls"] <= stats["window_s"] * per_minute / 60 + 1
        dispatcher.cancel()
        completions = asked.result(PATIENCE_S)
        encoded.result(PATIENCE_S)
    done = [c for c in completions if not isinstance(c.error, CallCancelledError)]
    assert done
    assert all(completion.error is None for completion in done)


def _embedded(dispatcher: Dispatcher, number: int) -> bool:
    try:
        return len(dispatcher.embed("sim-embed", [f"text {number}"])) == 1
    except CallCancelledError:
        return False
