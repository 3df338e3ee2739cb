"""A pool of calls: its cap holds over all models and however it is used, and known replies take no place."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import BadRequestError, CallCancelledError, ModelMissingError, ReplyLogError
from ollama_utils.parallel import map_parallel
from ollama_utils.plans import Plan, play_plans
from ollama_utils.reply_log import ReplyLog
from ollama_utils.types import Call, Completion
from search.call_pool import CallPool
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, start, wait_until

MODELS = ("sim-target", "sim-judge", "sim-mutator")


@pytest.fixture(scope="module")
def server(paced_server: EmbeddedServer) -> EmbeddedServer:
    return paced_server


def ask(prompt: object, model: str = "sim-target", **options: object) -> Call:
    return Call(model=model, prompt=str(prompt), options={"temperature": 0} | options)


def in_flight(dispatcher: Dispatcher) -> int:
    """Calls that have a place at the server, be they sent or waiting for one under the cap."""
    (server,) = dispatcher.servers.all
    return server.limit("sim-target").in_flight


class Held:
    """A handler that answers when it is told to."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()

    def __call__(self, _body: dict[str, Any]) -> tuple[int, object]:
        assert self.may_answer.wait(PATIENCE_S)
        return 200, SAID


@settings(max_examples=20)
@given(
    prompts=st.lists(st.tuples(st.sampled_from(MODELS), st.integers(0, 20)), min_size=1, max_size=40),
    cap=st.integers(1, 12),
    threads=st.integers(1, 30),
    limit=st.none() | st.integers(1, 16),
)
def test_the_server_never_sees_more_calls_at_once_than_the_cap_over_all_models(
    server: EmbeddedServer, prompts: list[tuple[str, int]], cap: int, threads: int, limit: int | None
) -> None:
    server.reset_stats()
    with Dispatcher([server.host], max_in_flight=limit) as dispatcher:
        pool = CallPool(dispatcher, cap)
        calls = [ask(prompt, model) for model, prompt in prompts]
        completions = map_parallel(pool.generate, calls, threads)
    stats, counts = server.stats(), pool.counts()
    distinct = len(set(prompts))
    assert all(completion.error is None for completion in completions)
    assert stats["max_in_flight"] <= counts.max_in_flight <= min(cap, threads, distinct)
    assert stats["calls"] == distinct
    assert (counts.calls, counts.in_flight, counts.errors) == (len(prompts), 0, 0)
    assert counts.hits == counts.saved == len(prompts) - distinct


@settings(max_examples=15)
@given(
    plans=st.lists(st.lists(st.integers(1, 6), max_size=3), min_size=1, max_size=6),
    cap=st.integers(1, 8),
    at_once=st.integers(1, 12),
)
def test_limits_within_limits_never_multiply_past_the_cap(
    server: EmbeddedServer, plans: list[list[int]], cap: int, at_once: int
) -> None:
    """Each item of each plan asks several models side by side, and both levels have limits of their own."""
    server.reset_stats()

    def plan(number: int, sizes: list[int]) -> Plan[tuple[int, int, int], list[str], int]:
        got = 0
        for step, size in enumerate(sizes):
            came = yield [(number, step, i) for i in range(size)]
            got += sum(len(texts) == len(MODELS) for texts in came)
        return got

    with Dispatcher([server.host]) as dispatcher:
        pool = CallPool(dispatcher, cap)

        def do(item: tuple[int, int, int]) -> list[str]:
            return [c.text for c in map_parallel(pool.generate, [ask(item, model) for model in MODELS])]

        results = play_plans([plan(k, sizes) for k, sizes in enumerate(plans)], do, at_once)
    assert results == [sum(sizes) for sizes in plans]
    assert server.stats()["max_in_flight"] <= pool.counts().max_in_flight <= cap
    assert server.stats()["calls"] == len(MODELS) * sum(map(sum, plans))


def test_a_full_cap_is_used_to_the_last_place() -> None:
    handler = Held()
    with ScriptedServer(handler) as slow, Dispatcher([slow.host], max_in_flight=20) as dispatcher:
        pool = CallPool(dispatcher, 7)
        asked = [start(lambda i=i: pool.generate(ask(i, f"m{i % 3}"))) for i in range(15)]  # type: ignore[misc] # defaults
        wait_until(lambda: len(slow.bodies) == 7)
        assert pool.counts().in_flight == 7
        handler.may_answer.set()
        assert [call.result(PATIENCE_S).text for call in asked] == ["Yes."] * 15
    assert pool.counts().max_in_flight == 7


def test_what_is_known_or_under_way_takes_no_place() -> None:
    handler = Held()
    with ScriptedServer(handler) as slow, Dispatcher([slow.host], max_in_flight=4) as dispatcher:
        pool = CallPool(dispatcher, 2)
        handler.may_answer.set()
        known = pool.generate(ask("known"))
        handler.may_answer.clear()
        asked = [start(lambda p=p: pool.generate(ask(p))) for p in ("a", "b", "a", "b", "a")]  # type: ignore[misc] # defaults
        wait_until(lambda: len(slow.bodies) == 3)
        assert pool.counts().in_flight == 2, "both places are taken"
        again = pool.generate(ask("known"))
        assert (again.text, again.cached) == (known.text, True)
        handler.may_answer.set()
        assert sorted(call.result(PATIENCE_S).cached for call in asked) == [False, False, True, True, True]
    counts = pool.counts()
    assert (counts.calls, counts.hits, counts.saved) == (7, 4, 4)
    assert counts.hit_rate == 4 / 7


def test_between_two_attempts_the_place_is_anothers() -> None:
    fails = threading.Event()

    def handler(body: dict[str, Any]) -> tuple[int, object]:
        if body["prompt"] == "fails" and not fails.is_set():
            fails.set()
            return 503, {"error": "busy"}
        return 200, SAID

    with ScriptedServer(handler) as busy, Dispatcher([busy.host], backoff_s=PATIENCE_S) as dispatcher:
        pool = CallPool(dispatcher, 1)
        failing = start(lambda: pool.generate(ask("fails")))
        wait_until(lambda: fails.is_set() and pool.counts().in_flight == 0)
        assert pool.generate(ask("other")).text == "Yes."
        dispatcher.cancel()
        assert isinstance(failing.result(PATIENCE_S).error, CallCancelledError)


def test_errors_and_retries_are_counted(server: EmbeddedServer) -> None:
    server.set_faults([{"kind": "status", "status": 503, "rate": 0.4}])
    try:
        with Dispatcher([server.host], attempts=20, backoff_s=0.001) as dispatcher:
            pool = CallPool(dispatcher, 4)
            completions = map_parallel(pool.generate, [ask(i) for i in range(20)])
            missing = pool.generate(ask("p", "nobody"))
            unwritable = pool.generate(ask("p", stop={1}))
            counts = pool.counts()
            accounts = dispatcher.accounts()
    finally:
        server.set_faults([])
    assert all(completion.error is None for completion in completions)
    assert isinstance(missing.error, ModelMissingError)
    assert isinstance(unwritable.error, BadRequestError)
    assert (counts.calls, counts.errors, counts.saved) == (22, 2, 0)
    assert counts.retries == accounts["sim-target"].retries > 0


def test_a_failure_that_is_shared_saves_a_call_and_is_an_error_to_each() -> None:
    handler = Held()

    def fail(body: dict[str, Any]) -> tuple[int, object]:
        handler(body)
        return 500, {"error": "crash"}

    with ScriptedServer(fail) as server, Dispatcher([server.host], attempts=1) as dispatcher:
        pool = CallPool(dispatcher, 4)
        asked = [start(lambda: pool.generate(ask("p"))) for _ in range(3)]
        wait_until(lambda: len(server.bodies) == 1)
        handler.may_answer.set()
        assert all(call.result(PATIENCE_S).error for call in asked)
    counts = pool.counts()
    assert (counts.calls, counts.errors, counts.hits) == (3, 3, 0)
    assert counts.saved == 3 - len(server.bodies)


def test_cancelling_the_dispatcher_wakes_those_who_wait_for_a_place() -> None:
    handler = Held()
    with ScriptedServer(handler) as slow, Dispatcher([slow.host], max_in_flight=4) as dispatcher:
        pool = CallPool(dispatcher, 1)
        under_way = start(lambda: pool.generate(ask("first")))
        wait_until(lambda: len(slow.bodies) == 1)
        waiting = [start(lambda i=i: pool.generate(ask(i))) for i in range(3)]  # type: ignore[misc] # defaults
        wait_until(lambda: in_flight(dispatcher) == 4)
        dispatcher.cancel()
        for call in waiting:
            assert isinstance(call.result(PATIENCE_S).error, CallCancelledError)
        assert isinstance(CallPool(dispatcher, 1).generate(ask("late")).error, CallCancelledError)
        handler.may_answer.set()
        assert under_way.result(PATIENCE_S).text == "Yes."


def test_a_pool_that_is_cancelled_stops_nobody_else() -> None:
    """Another pool that shares a question of it asks that itself."""
    handler = Held()
    with ScriptedServer(handler) as slow, Dispatcher([slow.host], max_in_flight=4) as dispatcher:
        one, other = CallPool(dispatcher, 1), CallPool(dispatcher, 1)
        under_way = start(lambda: one.generate(ask("first")))
        wait_until(lambda: len(slow.bodies) == 1)
        waiting = start(lambda: one.generate(ask("both")))
        wait_until(lambda: in_flight(dispatcher) == 2)
        sharing = start(lambda: other.generate(ask("both")))
        one.cancel()
        assert isinstance(waiting.result(PATIENCE_S).error, CallCancelledError)
        handler.may_answer.set()
        assert sharing.result(PATIENCE_S).text == "Yes."
        assert under_way.result(PATIENCE_S).text == "Yes."
        assert one.generate(ask("first")).cached, "what is known is still given"
        assert isinstance(one.generate(ask("new")).error, CallCancelledError)


def test_a_pool_that_is_cancelled_sends_nothing_more_whatever_its_calls_wait_for() -> None:
    refused = threading.Event()

    def busy(_body: dict[str, Any]) -> tuple[int, object]:
        refused.set()
        return 503, {"error": "busy"}

    with (
        ScriptedServer(busy) as server,
        Dispatcher([server.host], backoff_s=PATIENCE_S, rate_limit_per_minute=1e6) as dispatcher,
    ):
        one, other = CallPool(dispatcher, 4), CallPool(dispatcher, 4)
        pausing = start(lambda: one.generate(ask("pauses")))
        wait_until(lambda: refused.is_set() and one.counts().in_flight == 0)
        with dispatcher.rate.limited(1e-3):
            late = [start(lambda i=i: one.generate(ask(i))) for i in range(3)]  # type: ignore[misc] # defaults
            others = start(lambda: other.generate(ask("other")))
            wait_until(lambda: one.counts().in_flight == 3 and other.counts().in_flight == 1)
            one.cancel()
            for call in (pausing, *late):
                assert isinstance(call.result(PATIENCE_S / 2).error, CallCancelledError)
            assert not others.done()
            dispatcher.cancel()
    assert len(server.bodies) == 1


def test_a_reply_that_cannot_be_kept_is_raised_and_gives_its_place_back(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    drawn = Call(model="sim-target", prompt="no log is searched for what is drawn at random")
    with Dispatcher([server.host]) as dispatcher:
        pool = CallPool(dispatcher, 1)
        with ReplyLog(tmp_path / "replies.sqlite", digests={}) as closed:
            dispatcher.keep_in(closed)
        with pytest.raises(ReplyLogError):
            pool.generate(drawn)
        dispatcher.keep_in()
        assert pool.generate(drawn).text
    counts = pool.counts()
    assert (counts.calls, counts.errors, counts.in_flight, counts.max_in_flight) == (2, 1, 0, 1)


def test_a_resumed_run_finds_its_replies_while_the_cap_is_full(tmp_path: Path) -> None:
    handler = Held()
    with (
        ScriptedServer(handler) as slow,
        Dispatcher([slow.host]) as dispatcher,
        ReplyLog(tmp_path / "replies.sqlite", digests={}) as log,
    ):
        handler.may_answer.set()
        dispatcher.keep_in(log)
        dispatcher.generate(ask("known"))
        handler.may_answer.clear()
        with Dispatcher([slow.host]) as resumed:
            resumed.keep_in(log)
            pool = CallPool(resumed, 1)
            under_way = start(lambda: pool.generate(ask("new")))
            wait_until(lambda: pool.counts().in_flight == 1)
            assert pool.generate(ask("known")).cached
            handler.may_answer.set()
            assert under_way.result(PATIENCE_S).text == "Yes."


@pytest.mark.parametrize("limit", [0, -1])
def test_a_cap_below_one_is_an_error(limit: int) -> None:
    with (
        Dispatcher(["http://127.0.0.1:1"]) as dispatcher,
        pytest.raises(ValueError, match="max_concurrent must be at least 1"),
    ):
        CallPool(dispatcher, limit)


def test_a_pool_stands_in_for_a_dispatcher(server: EmbeddedServer) -> None:
    with Dispatcher([server.host]) as dispatcher:
        completion: Completion = CallPool(dispatcher, 1).generate(ask("p"))
    assert completion.text
