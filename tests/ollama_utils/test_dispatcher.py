"""The laws of a call: sharing, attempts, cancelling, and the accounts that add up."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    BrokenReplyError,
    CallCancelledError,
    CallTimeoutError,
    ModelMissingError,
    OllamaError,
    ReplyLogError,
    ServerBusyError,
    ServerFaultError,
    ServerUnreachableError,
)
from ollama_utils.parallel import map_parallel
from ollama_utils.reply_log import ReplyLog
from ollama_utils.types import Call, Completion, Role
from simulator.process import EmbeddedServer
from tests.ollama_utils.hostile import RawServer, http
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, SlowServer, interrupted_once, start, wait_until

NOBODY = "http://127.0.0.1:1"


def ask(prompt: object, **options: Any) -> Call:
    """A question to the simulator's target, repeatable unless the options say otherwise."""
    return Call(model="sim-target", prompt=str(prompt), options=options or {"temperature": 0})


@settings(max_examples=15)
@given(calls=st.integers(1, 24), limit=st.integers(1, 6), workers=st.integers(1, 12))
def test_the_server_never_sees_more_calls_at_once_than_the_limit(
    simulator: EmbeddedServer, calls: int, limit: int, workers: int
) -> None:
    simulator.reset_stats()
    with Dispatcher([simulator.host], max_in_flight=limit) as dispatcher:
        completions = map_parallel(dispatcher.generate, [ask(i) for i in range(calls)], workers)
    stats = simulator.stats()
    assert all(completion.error is None for completion in completions)
    assert stats["calls"] == calls
    assert stats["max_in_flight"] <= min(limit, workers, calls)


def test_a_failure_that_is_shared_is_no_hit() -> None:
    with SlowServer(500) as server, Dispatcher([server.host], attempts=1) as dispatcher:
        asked = [start(lambda: dispatcher.generate(ask("p"))) for _ in range(3)]
        wait_until(lambda: len(server.bodies) == 1)
        time.sleep(0.1)  # for the others to come to wait
        server.go_on.set()
        completions = [call.result(PATIENCE_S) for call in asked]
    assert {type(completion.error) for completion in completions} == {ServerFaultError}
    assert not any(completion.cached for completion in completions)
    assert sorted(completion.attempts for completion in completions) == [0, 0, 1]
    spent = dispatcher.totals()
    assert (spent["calls"], spent["failures"], spent["cache_hits"]) == (1, 1, 0)


def test_what_ends_the_run_is_raised_in_all_who_wait_for_the_same_reply(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path / "replies.sqlite", digests={})
    with SlowServer() as server, Dispatcher([server.host]) as dispatcher:
        dispatcher.keep_in(log)
        asked = [start(lambda: dispatcher.generate(ask("p"))) for _ in range(3)]
        wait_until(lambda: len(server.bodies) == 1)
        time.sleep(0.1)  # for the others to come to wait
        log.close()
        server.go_on.set()
        assert {type(call.exception(PATIENCE_S)) for call in asked} == {ReplyLogError}


def test_cancel_wakes_all_who_wait_for_anything_but_the_server() -> None:
    with SlowServer() as server, Dispatcher([server.host], max_in_flight=1) as dispatcher:
        under_way = start(lambda: dispatcher.generate(ask("first")))
        wait_until(lambda: len(server.bodies) == 1)
        waiting = [
            start(partial(dispatcher.generate, ask(prompt)))
            for prompt in ("first", "first", "second", "second", "third")
        ]
        dispatcher.cancel()
        for other in [*waiting, start(lambda: dispatcher.generate(ask("fourth")))]:
            completion = other.result(PATIENCE_S)
            assert isinstance(completion.error, CallCancelledError)
            assert (completion.text, completion.attempts) == ("", 0)
        with pytest.raises(CallCancelledError):
            dispatcher.embed("m", ["text"])
        server.go_on.set()
        assert under_way.result(PATIENCE_S).text == "Yes."
    assert dispatcher.totals()["calls"] == 1


def test_of_equal_calls_under_way_the_others_live_on_when_one_is_stopped() -> None:
    with SlowServer() as server, Dispatcher([server.host], max_in_flight=1) as dispatcher:
        others: list[Future[Completion]] = []

        def is_shared() -> None:
            wait_until(lambda: len(server.bodies) == 1)
            cap = dispatcher.servers.new_cap(1)
            stopped = start(lambda: dispatcher.generate(ask("q"), cap=cap))
            time.sleep(0.05)  # for it to come to wait
            others.extend(start(partial(dispatcher.generate, ask(prompt))) for prompt in "pq")
            time.sleep(0.05)  # for them to come to wait
            cap.close()
            assert isinstance(stopped.result(PATIENCE_S).error, CallCancelledError)

        with interrupted_once(is_shared):
            dispatcher.generate(ask("p"))
        server.go_on.set()
        assert [other.result(PATIENCE_S).text for other in others] == ["Yes.", "Yes."]


def test_the_accounts_add_up_what_the_server_reported(
    quick: Dispatcher, server: EmbeddedServer
) -> None:
    completions = map_parallel(quick.generate, [ask(i) for i in range(10)])
    spent, stats = quick.totals(), server.stats()
    usages = [completion.usage for completion in completions if completion.usage is not None]
    expected = {
        "calls": stats["calls"],
        "prompt_tokens": stats["prompt_tokens"],
        "completion_tokens": stats["completion_tokens"],
        "busy_s": pytest.approx(sum(usage.prefill_s + usage.decode_s for usage in usages)),
        "queue_s": pytest.approx(sum(usage.queue_s for usage in usages)),
    }
    assert {name: spent[name] for name in expected} == expected
    assert quick.generate(Call(model="sim-target:latest", prompt="p")).error is None
    assert [model for _, model in quick.servers.capacities()] == ["sim-target"]


@pytest.mark.parametrize(
    "arguments", [{"hosts": []}, {"hosts": "http://one"}, {"attempts": 0}, {"max_in_flight": 0}]
)
def test_what_makes_no_dispatcher_is_an_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least"):
        Dispatcher(**{"hosts": [NOBODY]} | arguments)


FAULTS: list[tuple[dict[str, Any], type[OllamaError]]] = [
    ({"kind": "status"}, ServerFaultError),
    ({"kind": "status", "status": 502}, ServerUnreachableError),
    ({"kind": "status", "status": 503}, ServerBusyError),
    ({"kind": "hang", "at": "body"}, CallTimeoutError),
    *(({"kind": "drop", "at": at}, BrokenReplyError) for at in ("start", "body", "end")),
    *(({"kind": "garbage", "what": what}, BadReplyError) for what in ("cut", "html", "wrong_type")),
]


@pytest.mark.parametrize(("fault", "error"), FAULTS)
def test_a_fault_that_passes_changes_no_reply_and_one_that_stays_is_its_error(
    server: EmbeddedServer, fault: dict[str, Any], error: type[OllamaError]
) -> None:
    timeout_s = 0.1 if error is CallTimeoutError else 20.0
    with Dispatcher(
        [server.host], max_outage_s=None, attempts=2, timeout_s=timeout_s, backoff_s=0.001
    ) as dispatcher:
        server.set_faults([fault | {"rate": 1}])
        failed = dispatcher.generate(ask("p"))
        with pytest.raises(error):
            dispatcher.embed("sim-embed", ["a"])
        assert (failed.text, failed.attempts, type(failed.error)) == ("", 2, error)
        assert server.host in str(failed.error)
        server.set_faults([fault | {"rate": 1, "first": 1}])
        passed, rows = dispatcher.generate(ask("p")), dispatcher.embed("sim-embed", ["a"])
        server.set_faults([])
        assert passed.error is None, "errors are not remembered"
        assert passed.text == dispatcher.generate(ask("p")).text
        assert np.array_equal(rows, dispatcher.embed("sim-embed", ["a"]))


def test_retries_are_counted_and_keep_the_order(server: EmbeddedServer) -> None:
    calls = [ask(i) for i in range(12)]
    with Dispatcher([server.host]) as dispatcher:
        expected = [dispatcher.generate(call).text for call in calls]
    server.set_faults([{"kind": "status", "rate": 0.4}])
    with Dispatcher([server.host], attempts=20, backoff_s=0.001) as dispatcher:
        completions = map_parallel(dispatcher.generate, calls)
        spent = dispatcher.totals()
    assert [completion.text for completion in completions] == expected
    assert spent["calls"] == sum(completion.attempts for completion in completions)
    assert spent["retries"] == spent["failures"] == spent["calls"] - len(calls) > 0


def test_an_error_that_will_not_pass_is_not_tried_again(quick: Dispatcher) -> None:
    completion = quick.generate(Call(model="nobody", prompt="p"))
    assert isinstance(completion.error, ModelMissingError)
    assert completion.attempts == quick.totals()["calls"] == 1


@pytest.mark.parametrize(
    "call",
    [
        ask("p", temperature=math.nan),
        ask("p", temperature=0, stop={1, 2}),
        ask("p", seed=np.int64(3)),
        Call(model="sim\ud800", prompt="p"),
    ],
)
def test_a_call_that_cannot_be_written_is_an_error_at_once(call: Call) -> None:
    with ScriptedServer(lambda _: (200, SAID)) as server, Dispatcher([server.host]) as dispatcher:
        completion = dispatcher.generate(call)
    assert isinstance(completion.error, BadRequestError)
    assert completion.attempts <= 1
    assert server.bodies == []


LIMITS: list[tuple[Role, Any, Any, int, Any]] = [
    # The role, whether the call says that it thinks, its limit, and what is sent of the two.
    ("target", None, None, 512, None),
    ("mutator", None, None, 512, False),
    ("judge", None, None, 256 + 100, "low"),
    ("mutator", "high", None, 512 + 100, "high"),
    ("judge", False, None, 256, False),
    ("target", "medium", 40, 40 + 100, "medium"),
    ("target", None, 40, 40, None),
    ("target", True, -1, -1, True),
]


@pytest.mark.parametrize(("role", "think", "most", "sent", "thinks"), LIMITS)
def test_every_call_has_a_limit_and_one_that_thinks_a_budget_beside_it(
    role: Role, think: Any, most: int | None, sent: int, thinks: Any
) -> None:
    options = {} if most is None else {"num_predict": most}
    call = Call(model="m", prompt="p", role=role, think=think, options=options)
    choice = {"message": {"content": "Yes."}, "finish_reason": "stop"}
    with ScriptedServer(lambda _: (200, SAID | {"choices": [choice]})) as server:
        for host in (server.host, f"openai:{server.host}"):
            settings: dict[str, Any] = {"think": {"mutator": False, "judge": "low"}}
            with Dispatcher([host], think_budget=100, **settings) as dispatcher:
                assert dispatcher.generate(call).error is None
    ollama, openai = server.bodies
    assert (ollama["options"]["num_predict"], ollama.get("think")) == (sent, thinks)
    assert openai.get("max_tokens") == (None if sent < 0 else sent)


@pytest.mark.parametrize(
    ("details", "counted", "estimated"), [({"reasoning_tokens": 30}, 30, 0), (None, 0, 75)]
)
def test_thoughts_are_counted_where_the_server_counts_them_and_else_estimated(
    details: Any, counted: int, estimated: int
) -> None:
    message = {"content": "<think>" + 50 * "a" + "</think>" + 50 * "b", "reasoning": 100 * "c"}
    usage = {"completion_tokens": 100, "completion_tokens_details": details}
    reply = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
    with ScriptedServer(lambda _: (200, reply)) as server:
        with Dispatcher([f"openai:{server.host}"]) as dispatcher:
            assert dispatcher.generate(ask("p")).text == 50 * "b"
            spent = dispatcher.totals()
    assert spent["completion_tokens"] == 100
    assert (spent["thought_tokens"], spent["estimated_thought_tokens"]) == (counted, estimated)


@pytest.mark.parametrize(
    ("options", "attempts"), [({}, 4), ({"temperature": 0}, 1), ({"seed": 3}, 1)]
)
def test_an_empty_reply_is_asked_for_again_only_where_it_may_differ(
    options: dict[str, Any], attempts: int
) -> None:
    with (
        ScriptedServer(lambda _: (200, SAID | {"response": ""})) as server,
        Dispatcher([server.host], backoff_s=0.001) as dispatcher,
    ):
        completion = dispatcher.generate(Call(model="m", prompt="p", options=options))
    assert isinstance(completion.error, BadReplyError)
    assert completion.attempts == len(server.bodies) == attempts


def test_a_busy_server_is_not_asked_again_before_it_wants_to_be() -> None:
    busy = http("503 Busy", b'{"error": "busy"}', Retry_After="60")
    with RawServer(busy) as server, Dispatcher([server.host], backoff_s=0.001) as dispatcher:
        waiting = start(lambda: dispatcher.generate(ask("p")))
        wait_until(lambda: len(server.requests) == 1)
        time.sleep(0.2)
        assert len(server.requests) == 1
        dispatcher.cancel()
        assert isinstance(waiting.result(PATIENCE_S).error, CallCancelledError)


def test_a_call_that_backs_off_holds_no_place() -> None:
    def handler(body: dict[str, Any]) -> tuple[int, object]:
        return (500, {"error": "crash"}) if body["prompt"] == "bad" else (200, SAID)

    with (
        ScriptedServer(handler) as server,
        Dispatcher([server.host], max_in_flight=1, backoff_s=600.0) as dispatcher,
    ):
        bad = start(lambda: dispatcher.generate(ask("bad")))
        wait_until(lambda: dispatcher.totals()["failures"] == 1)
        assert dispatcher.generate(ask("good")).text == "Yes."
        dispatcher.cancel()
        assert isinstance(bad.result(PATIENCE_S).error, CallCancelledError)
        assert bad.result().attempts == 1
