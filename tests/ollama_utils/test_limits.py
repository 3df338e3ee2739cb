"""The laws of what bounds calls: a limit found in virtual time, a caller's cap, a rate."""

from __future__ import annotations

import math
import time
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError
from ollama_utils.limits import Cap, Limit, RateLimit
from ollama_utils.parallel import map_parallel
from ollama_utils.types import Call, Usage
from simulator.process import EmbeddedServer
from tests.ollama_utils.threads import PATIENCE_S, start
from tests.ollama_utils.traffic import play, rate, wait

KINDS_OF_CALLS: list[dict[str, float]] = [{}, {"sigma": 0.0}, {"travel_s": 0.02}]
"""Lognormal lengths, equal ones, a server that is far away."""


def ask(prompt: object) -> Call:
    """A repeatable question to the simulator's target."""
    return Call(model="sim-target", prompt=str(prompt), options={"temperature": 0})


@pytest.mark.parametrize(("slots", "kind"), list(product((1, 4, 32), KINDS_OF_CALLS)))
def test_the_limit_comes_near_the_best_fixed_one_and_the_slots_are_exact(
    slots: int, kind: dict[str, float]
) -> None:
    limit = Limit()
    best = play(slots, Limit(2 * slots), until_s=15, **kind)  # type: ignore[arg-type]
    found = play(slots, limit, until_s=15, **kind)  # type: ignore[arg-type]
    assert limit.slots == slots
    assert slots < limit.value <= 2 * slots + 1
    assert wait(found, 3) <= 1.5, "calls wait here, not at the server"
    assert rate(found, 3) >= 0.95 * rate(best, 3)


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
    replies = play(slots, Limit(), until_s=10, lanes=lanes, sigma=sigma, seed=seed, travel_s=0.0)
    assert {reply.slots for reply in replies} <= {None, slots}
    assert lanes <= 2 * slots or replies[-1].slots == slots


def test_the_limit_follows_the_slots_down_and_up() -> None:
    replies = play(8, Limit(), until_s=60, resized={15: 2, 35: 8})
    assert replies[-1].slots == 8
    assert max(reply.limit for reply in replies if 25 <= reply.at_s < 35) <= 6


def test_beside_another_client_all_slots_are_busy() -> None:
    limit = Limit()
    both = play(8, limit, Limit(4), until_s=20)
    assert rate(both, 5) >= 0.97 * rate(play(8, Limit(16), until_s=20), 5)
    assert (limit.slots or 4) < 8


@pytest.mark.parametrize(
    ("limit", "lanes", "slots", "value"),
    [
        (Limit(slots=8), 64, 8, 12),  # known: it is believed
        (Limit(5), 64, 2, 5),  # given: it stays
        (Limit(), 1, None, Limit().value),  # a lane alone never waits
    ],
)
def test_a_limit_keeps_to_what_is_known(
    limit: Limit, lanes: int, slots: int | None, value: int
) -> None:
    replies = play(2, limit, until_s=20, lanes=lanes)
    assert (limit.slots, limit.value) == (slots, value)
    assert slots != 2 or {reply.limit for reply in replies} == {value}


@pytest.mark.parametrize(
    "usage", [None, Usage(load_s=9.0, prefill_s=0.1, decode_s=0.1, total_s=9.2)]
)
def test_no_timings_or_a_load_of_the_model_are_no_wait_for_a_slot(usage: Usage | None) -> None:
    limit = Limit()
    for second in range(0, 500, 10):
        at_once = limit.value
        for _ in range(at_once):
            limit.send(second)
        for _ in range(at_once):
            limit.answer(second, second + 9.2, usage)
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
    limit, now_s, under_way = Limit(), 0.0, list[float]()
    for calls, wait_s, fails, usage in moves:
        now_s += wait_s
        for _ in range(calls):
            limit.send(now_s)
        under_way += [now_s] * calls
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
    rate, cancelled, never = RateLimit(), Cap(1), Cap(1)
    with rate.limited(6e6), rate.limited(1.0):
        rate.wait(never)
        waiting = start(lambda: rate.wait(cancelled))
        behind = start(lambda: rate.wait(never))
        cancelled.close()
        assert isinstance(waiting.exception(PATIENCE_S), CallCancelledError)
    behind.result(PATIENCE_S)


def test_a_known_reply_waits_for_no_rate(quick: Dispatcher, server: EmbeddedServer) -> None:
    quick.generate(ask("p"))
    with quick.rate.limited(1e-3):
        assert quick.generate(ask("p")).cached
    assert server.stats()["calls"] == 1
