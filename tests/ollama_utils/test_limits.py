"""The laws of what bounds calls: a limit found in virtual time, a caller's cap, a rate."""

from __future__ import annotations

import math
import threading
import time
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError
from ollama_utils.limits import Limit, RateLimit
from ollama_utils.parallel import map_parallel
from ollama_utils.types import Call, Usage
from simulator.process import EmbeddedServer
from tests.ollama_utils.threads import PATIENCE_S, start, wait_until
from tests.ollama_utils.traffic import Traffic, VirtualServer

KINDS_OF_CALLS: list[dict[str, float]] = [{}, {"sigma": 0.0}, {"travel_s": 0.02}]
"""Lognormal lengths, equal ones, a server that is far away."""


def ask(prompt: object) -> Call:
    """A repeatable question to the simulator's target."""
    return Call(model="sim-target", prompt=str(prompt), options={"temperature": 0})


@pytest.mark.parametrize(("slots", "kind"), list(product((1, 4, 32), KINDS_OF_CALLS)))
def test_the_limit_comes_near_the_best_fixed_one_and_the_slots_are_exact(
    slots: int, kind: dict[str, float]
) -> None:
    best = Traffic(VirtualServer(slots), Limit(2 * slots), **kind).run(15).rate(3, 15)  # type: ignore[arg-type]
    found = Traffic(VirtualServer(slots), Limit(), **kind).run(15)  # type: ignore[arg-type]
    assert found.limit.slots == slots
    assert slots < found.limit.value <= 2 * slots + 1
    assert found.wait(3) <= 1.5, "calls wait here, not at the server"
    assert found.rate(3, 15) >= 0.95 * best


@settings(max_examples=20)
@given(
    slots=st.integers(1, 12),
    lanes=st.integers(1, 30),
    sigma=st.floats(0, 1.5),
    seed=st.integers(0, 10**6),
)
def test_slots_are_stated_where_calls_wait_and_are_never_off(
    slots: int, lanes: int, sigma: float, seed: int
) -> None:
    server = VirtualServer(slots)
    traffic = Traffic(server, Limit(), lanes=lanes, sigma=sigma, seed=seed, travel_s=0.0)
    for second in range(1, 11):
        traffic.run(second)
        assert traffic.limit.slots in {None, slots}
    assert lanes <= 2 * slots or traffic.limit.slots == slots


def test_the_limit_follows_the_slots_down_and_up() -> None:
    server = VirtualServer(8)
    traffic = Traffic(server, Limit())
    server.at(15, lambda: server.resize(2))
    server.at(35, lambda: server.resize(8))
    traffic.run(60)
    assert traffic.limit.slots == 8
    assert max(traffic.limits_within(25, 35)) <= 6


def test_beside_another_client_all_slots_are_busy() -> None:
    server = VirtualServer(8)
    traffic, other = Traffic(server, Limit()), Traffic(server, Limit(4), seed=1)
    traffic.run(20)
    best = Traffic(VirtualServer(8), Limit(16)).run(20).rate(5, 20)
    assert traffic.rate(5, 20) + other.rate(5, 20) >= 0.97 * best
    assert (traffic.limit.slots or 4) < 8


def test_a_lane_alone_finds_no_slots_and_keeps_the_limit_it_began_with() -> None:
    limit = Limit()
    Traffic(VirtualServer(4), limit, lanes=1).run(20)
    assert (limit.slots, limit.value) == (None, Limit().value)


def test_slots_that_are_known_are_believed_and_a_limit_that_is_given_stays() -> None:
    known = Traffic(VirtualServer(2), Limit(slots=8)).run(20)
    assert (known.limit.slots, known.limit.value) == (8, 12)
    given = Traffic(VirtualServer(2), Limit(5)).run(20)
    assert (given.limit.slots, given.limits_within(0, 20)) == (2, {5})


@pytest.mark.parametrize(
    "usage", [None, Usage(load_s=9.0, prefill_s=0.1, decode_s=0.1, total_s=9.2)]
)
def test_no_timings_or_a_load_of_the_model_are_no_wait_for_a_slot(usage: Usage | None) -> None:
    limit = Limit()
    for second in range(0, 500, 10):
        for number in [limit.send(second) for _ in range(limit.value)]:
            limit.answer(number, second + 9.2, usage)
    assert limit.slots is None
    assert limit.value > Limit().value


durations = st.floats(0, 1e6) | st.sampled_from([0.0, 1e-9, 0.2])
usages = st.none() | st.builds(
    Usage, load_s=durations, prefill_s=durations, decode_s=durations, total_s=durations
)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 100), st.booleans(), usages), max_size=60)
)
def test_whatever_a_server_reports_there_is_a_limit(
    moves: list[tuple[int, float, bool, Usage | None]],
) -> None:
    limit, now_s, under_way = Limit(), 0.0, []
    for calls, wait_s, fails, usage in moves:
        now_s += wait_s
        under_way += [limit.send(now_s) for _ in range(calls)]
        limit.in_flight = len(under_way)
        if under_way and fails:
            limit.fail(under_way.pop(), now_s, is_overload=usage is None)
        elif under_way:
            limit.answer(under_way.pop(0), now_s, usage)
        assert 1 <= limit.value <= 1024
        assert limit.slots is None or limit.slots >= 1


def test_no_more_attempts_are_under_way_than_a_cap_allows(server: EmbeddedServer) -> None:
    server.set_faults([{"kind": "status", "rate": 0.3}])
    with Dispatcher([server.host], attempts=20, backoff_s=0.001) as dispatcher:
        cap = dispatcher.servers.new_cap(3)
        calls = [ask(number) for number in range(60)]
        replies = map_parallel(lambda call: dispatcher.generate(call, cap=cap), calls, 12)
        assert not any(reply.error for reply in replies)
        assert server.stats()["max_in_flight"] <= cap.max_in_flight <= 3
        assert cap.in_flight == 0
        cap.close()
        assert isinstance(dispatcher.generate(ask("p"), cap=cap).error, CallCancelledError)
        server.set_faults([])
        assert dispatcher.generate(ask("p")).error is None
        with pytest.raises(ValueError, match="at least 1"):
            dispatcher.servers.new_cap(0)


@pytest.mark.parametrize("rate", [0, -1.0, math.inf, math.nan])
def test_a_rate_that_is_none_is_an_error(rate: float) -> None:
    with pytest.raises(ValueError, match="above 0 a minute"), RateLimit().limited(rate):
        pass


def test_the_server_never_gets_more_requests_than_the_rate_allows(server: EmbeddedServer) -> None:
    """Retries and embeddings are requests, too; the server counts all from before the first."""
    per_minute = 1200
    server.set_faults([{"kind": "status", "status": 503, "rate": 0.2}])
    with (
        Dispatcher([server.host], attempts=8, backoff_s=0.01) as dispatcher,
        dispatcher.rate.limited(per_minute),
    ):
        asked = start(lambda: map_parallel(dispatcher.generate, [ask(i) for i in range(1000)], 16))
        embedded = start(lambda: dispatcher.embed("sim-embed", ["a text"]))
        for _ in range(6):
            time.sleep(0.05)
            stats = server.stats()
            assert stats["calls"] <= stats["window_s"] * per_minute / 60 + 1
        assert embedded.result(PATIENCE_S).shape[0] == 1
        dispatcher.cancel()
        replies = asked.result(PATIENCE_S)
    assert {type(reply.error) for reply in replies} == {type(None), CallCancelledError}


def test_the_lowest_rate_holds_as_long_as_it_lasts_and_a_cancel_wakes_who_waits() -> None:
    rate, cancelled, never = RateLimit(), threading.Event(), threading.Event()
    with rate.limited(6e6), rate.limited(1.0):
        rate.wait(never)
        waiting = [start(lambda: rate.wait(cancelled)) for _ in range(3)]
        behind = start(lambda: rate.wait(never))
        cancelled.set()
        for each in waiting:
            assert isinstance(each.exception(PATIENCE_S), CallCancelledError)
    behind.result(PATIENCE_S)


def test_a_known_reply_waits_for_no_rate(server: EmbeddedServer) -> None:
    with Dispatcher([server.host]) as dispatcher:
        dispatcher.generate(ask("p"))
        with dispatcher.rate.limited(1e-3):
            assert dispatcher.generate(ask("p")).cached
            waiting = start(lambda: dispatcher.generate(ask("another")))
            wait_until(lambda: dispatcher.servers.all[0].limit("sim-target").in_flight == 1)
            dispatcher.cancel()
            assert waiting.result(PATIENCE_S).attempts == 0
    assert server.stats()["calls"] == 1
