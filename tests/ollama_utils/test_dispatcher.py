"""The laws of a call: sharing, attempts, routing, cancelling, and the accounts that add up."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
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
    CallCancelledError,
    ModelMissingError,
    ServerFaultError,
    ServerUnreachableError,
)
from ollama_utils.parallel import map_parallel
from ollama_utils.reply_log import ReplyLog, question_of
from ollama_utils.types import Call, Completion, Role
from simulator.process import EmbeddedServer
from tests.ollama_utils.hostile import RawServer, http
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, interrupted_once, start, wait_until

NOBODY = "http://127.0.0.1:1"


def ask(prompt: object) -> Call:
    """A repeatable question to the simulator's target."""
    return Call(model="sim-target", prompt=str(prompt), options={"temperature": 0})


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
    assert stats["max_in_flight"] <= dispatcher.max_in_flight_seen <= min(limit, workers, calls)


@settings(max_examples=15)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.integers(1, 12))
def test_equal_questions_are_one_call_and_get_one_text(
    simulator: EmbeddedServer, prompts: list[int], workers: int
) -> None:
    simulator.reset_stats()
    with Dispatcher([simulator.host]) as dispatcher:
        completions = map_parallel(
            dispatcher.generate, [ask(prompt) for prompt in prompts], workers
        )
        alone = {prompt: dispatcher.generate(ask(prompt)).text for prompt in set(prompts)}
    assert simulator.stats()["calls"] == len(set(prompts))
    assert [completion.text for completion in completions] == [alone[prompt] for prompt in prompts]
    paid = [completion for completion in completions if not completion.cached]
    assert len(paid) == len(set(prompts))
    assert [completion.attempts for completion in completions] == [
        int(not c.cached) for c in completions
    ]
    account = dispatcher.accounts()["sim-target"]
    assert (account.calls, account.cache_hits) == (len(paid), len(prompts))


def test_a_failure_that_is_shared_is_no_hit() -> None:
    answered = threading.Event()

    def handler(_: object) -> tuple[int, object]:
        answered.wait(PATIENCE_S)
        return 500, {"error": "crash"}

    with ScriptedServer(handler) as server, Dispatcher([server.host], attempts=1) as dispatcher:
        asked = [start(lambda: dispatcher.generate(ask("p"))) for _ in range(3)]
        wait_until(lambda: len(server.bodies) == 1)
        time.sleep(0.1)  # for the others to come to wait
        answered.set()
        completions = [call.result(PATIENCE_S) for call in asked]
    assert all(isinstance(completion.error, ServerFaultError) for completion in completions)
    assert not any(completion.cached for completion in completions)
    assert sorted(completion.attempts for completion in completions) == [0, 0, 1]
    account = dispatcher.accounts()["sim-target"]
    assert (account.calls, account.failures, account.cache_hits) == (1, 1, 0)


def test_a_draw_without_a_seed_is_a_new_call_each_time(
    quick: Dispatcher, server: EmbeddedServer
) -> None:
    for _ in range(3):
        assert not quick.generate(Call(model="sim-target", prompt="p")).cached
    assert server.stats()["calls"] == 3


def test_without_a_cache_every_question_is_a_call(server: EmbeddedServer) -> None:
    with Dispatcher([server.host], memory_bytes=0) as dispatcher:
        texts = {completion.text for completion in map_parallel(dispatcher.generate, [ask(1)] * 4)}
    assert len(texts) == 1
    assert server.stats()["calls"] == 4


def test_cancel_wakes_all_who_wait_for_anything_but_the_server() -> None:
    asked, answered = threading.Event(), threading.Event()

    def handler(_: object) -> tuple[int, object]:
        asked.set()
        answered.wait(PATIENCE_S)
        return 200, SAID

    def call(prompt: str) -> Future[Completion]:
        question = Call(model="m", prompt=prompt, options={"temperature": 0})
        return start(lambda: dispatcher.generate(question))

    with (
        ScriptedServer(handler) as server,
        Dispatcher([server.host], max_in_flight=1) as dispatcher,
    ):
        under_way = call("first")
        assert asked.wait(PATIENCE_S)
        waiting = [call("first"), call("first"), call("second"), call("second"), call("third")]
        dispatcher.cancel()
        for other in [*waiting, call("fourth")]:
            completion = other.result(PATIENCE_S)
            assert isinstance(completion.error, CallCancelledError)
            assert (completion.text, completion.attempts) == ("", 0)
        with pytest.raises(CallCancelledError):
            dispatcher.embed("m", ["text"])
        answered.set()
        assert under_way.result(PATIENCE_S).text == "Yes."
    assert dispatcher.accounts()["m"].calls == 1


def test_calls_go_to_the_server_with_the_most_room(server: EmbeddedServer) -> None:
    answered = threading.Event()

    def handler(_: object) -> tuple[int, object]:
        answered.wait(PATIENCE_S)
        return 200, SAID

    with ScriptedServer(handler) as slow, Dispatcher([slow.host, server.host]) as dispatcher:
        held = start(lambda: dispatcher.generate(ask("held")))
        wait_until(lambda: len(slow.bodies) == 1)
        assert dispatcher.generate(ask("free")).text
        answered.set()
        assert held.result(PATIENCE_S).text == "Yes."
    assert server.stats()["calls"] == 1


def test_the_models_are_those_that_every_server_has(server: EmbeddedServer) -> None:
    tags = {
        "models": [{"model": "sim-judge"}, {"model": "llama3.2:1b"}, {"model": "sim-target:latest"}]
    }
    with ScriptedServer(lambda _: (200, tags)) as other:
        with Dispatcher([other.host, server.host]) as dispatcher:
            assert list(dispatcher.servers.models()) == ["sim-judge", "sim-target:latest"]
        with Dispatcher([other.host, NOBODY]) as dispatcher, pytest.raises(ServerUnreachableError):
            dispatcher.servers.models()


def test_the_accounts_add_up_what_the_server_reported(
    quick: Dispatcher, server: EmbeddedServer
) -> None:
    completions = map_parallel(quick.generate, [ask(i) for i in range(10)])
    account = quick.accounts()["sim-target"]
    stats = server.stats()
    assert account.calls == stats["calls_by_model"]["sim-target:latest"] == 10
    assert (account.prompt_tokens, account.completion_tokens) == (
        stats["prompt_tokens"],
        stats["completion_tokens"],
    )
    usages = [completion.usage for completion in completions if completion.usage is not None]
    assert account.busy_s == pytest.approx(
        sum(usage.prefill_s + usage.decode_s for usage in usages)
    )
    assert account.queue_s == pytest.approx(sum(usage.queue_s for usage in usages))


def test_the_two_names_of_a_model_share_one_limit_and_one_account(quick: Dispatcher) -> None:
    assert quick.generate(Call(model="sim-target:latest", prompt="p")).error is None
    assert quick.generate(Call(model="sim-target", prompt="p")).error is None
    assert list(quick.accounts()) == ["sim-target"]
    assert [model for _, model in quick.servers.capacities()] == ["sim-target"]


def test_closing_twice_is_closing_once_and_later_calls_are_cancelled(
    server: EmbeddedServer,
) -> None:
    dispatcher = Dispatcher([server.host])
    dispatcher.close()
    dispatcher.close()
    assert isinstance(dispatcher.generate(ask("p")).error, CallCancelledError)


@pytest.mark.parametrize(
    "arguments", [{"hosts": []}, {"hosts": "http://one"}, {"attempts": 0}, {"max_in_flight": 0}]
)
def test_what_makes_no_dispatcher_is_an_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least"):
        Dispatcher(**{"hosts": [NOBODY]} | arguments)


def test_what_an_embedding_request_reports_is_its_load_and_no_wait_for_a_slot(
    simulator: EmbeddedServer,
) -> None:
    with Dispatcher([simulator.host]) as dispatcher:
        dispatcher.embed("sim-embed", ["a cat"])
        account = dispatcher.accounts()["sim-embed"]
    assert account.prompt_tokens > 0
    assert account.queue_s == account.busy_s == 0


def test_what_is_known_is_found_without_asking(server: EmbeddedServer, tmp_path: Path) -> None:
    drawn = Call(model="sim-target", prompt="p")
    unwritable = replace(ask("p"), options={"temperature": 0, "stop": {1}})
    with ReplyLog(tmp_path / "replies.sqlite", digests={}) as log:
        with Dispatcher([server.host]) as dispatcher:
            dispatcher.keep_in(log)
            assert dispatcher.known(ask("p")) is None
            text = dispatcher.generate(ask("p")).text
            dispatcher.generate(drawn)
            in_memory = dispatcher.known(ask("p"))
            assert dispatcher.known(drawn) is None
            assert dispatcher.known(unwritable) is None
            assert dispatcher.accounts()["sim-target"].cache_hits == 1
        with Dispatcher([server.host], memory_bytes=0) as later:
            later.keep_in(log)
            on_disk = later.known(ask("p"))
    for found in (in_memory, on_disk):
        assert found is not None
        assert (found.text, found.cached, found.attempts) == (text, True, 0)
    assert server.stats()["calls"] == 2


def test_a_run_beside_another_has_its_own_accounts_and_a_whole_log(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    with Dispatcher([server.host]) as dispatcher:
        runs = [dispatcher.beside(), dispatcher.beside()]
        for number, run in enumerate(runs):
            log = ReplyLog(tmp_path / f"{number}.sqlite", digests={})
            run.keep_in(log)
            assert [run.generate(ask(n)).error for n in range(3)] == [None] * 3
            assert all(log.find(question_of(run.with_defaults(ask(n)))) for n in range(3))
            assert log.totals()["calls"] == (0 if number else 3)
            log.close()
        assert [run.accounts()["sim-target"].calls for run in runs] == [3, 0]
    assert server.stats()["calls"] == 3


def test_of_equal_calls_under_way_the_others_live_on_when_one_is_stopped() -> None:
    answered = threading.Event()

    def handler(_: object) -> tuple[int, object]:
        answered.wait(PATIENCE_S)
        return 200, SAID

    with (
        ScriptedServer(handler) as server,
        Dispatcher([server.host], max_in_flight=1) as dispatcher,
    ):
        busy = start(lambda: dispatcher.generate(ask("busy")))
        wait_until(lambda: len(server.bodies) == 1)
        cap = dispatcher.new_cap(1)
        stopped = start(lambda: dispatcher.generate(ask("p"), cap=cap))
        wait_until(lambda: dispatcher.servers.waiting == 1)
        other = start(lambda: dispatcher.generate(ask("p")))
        time.sleep(0.05)  # for it to come to wait
        cap.close()
        assert isinstance(stopped.result(PATIENCE_S).error, CallCancelledError)
        answered.set()
        assert (busy.result(PATIENCE_S).text, other.result(PATIENCE_S).text) == ("Yes.", "Yes.")


def test_ctrl_c_in_a_call_stops_none_that_waits_for_the_same_reply() -> None:
    answered = threading.Event()

    def handler(_: object) -> tuple[int, object]:
        answered.wait(PATIENCE_S)
        return 200, SAID

    with ScriptedServer(handler) as server, Dispatcher([server.host]) as dispatcher:
        others = []

        def is_shared() -> None:
            wait_until(lambda: len(server.bodies) == 1)
            others.append(start(lambda: dispatcher.generate(ask("p"))))
            time.sleep(0.05)  # for it to come to wait

        with interrupted_once(is_shared):
            dispatcher.generate(ask("p"))
        answered.set()
        assert others[0].result(PATIENCE_S).text == "Yes."


@pytest.mark.parametrize(
    "fault",
    [{"kind": "status"}, {"kind": "status", "status": 503}, {"kind": "drop"}, {"kind": "garbage"}],
)
def test_a_passing_fault_costs_attempts_but_changes_no_text(
    server: EmbeddedServer, fault: dict[str, Any]
) -> None:
    calls = [ask(i) for i in range(12)]
    with Dispatcher([server.host]) as dispatcher:
        expected = [dispatcher.generate(call).text for call in calls]
    server.set_faults([fault | {"rate": 0.4}])
    with Dispatcher([server.host], attempts=20, backoff_s=0.001) as dispatcher:
        completions = map_parallel(dispatcher.generate, calls)
        rows = dispatcher.embed("sim-embed", ["text"])
    assert [completion.text for completion in completions] == expected
    assert all(completion.error is None for completion in completions)
    account = dispatcher.accounts()["sim-target"]
    assert account.calls == sum(completion.attempts for completion in completions)
    assert account.retries == account.failures == account.calls - len(calls) > 0
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-6)


def test_when_every_attempt_fails_the_error_stands_in_the_completion(
    quick: Dispatcher, server: EmbeddedServer
) -> None:
    server.set_faults([{"kind": "status", "rate": 1.0}])
    completion = quick.generate(ask("p"))
    assert (completion.text, completion.attempts, completion.usage) == ("", 4, None)
    assert isinstance(completion.error, ServerFaultError)
    with pytest.raises(ServerFaultError):
        quick.embed("sim-embed", ["text"])
    server.set_faults([])
    assert quick.generate(ask("p")).error is None, "errors are not remembered"


def test_an_error_that_will_not_pass_is_not_tried_again(quick: Dispatcher) -> None:
    completion = quick.generate(Call(model="nobody", prompt="p"))
    assert isinstance(completion.error, ModelMissingError)
    assert completion.attempts == quick.accounts()["nobody"].calls == 1


@pytest.mark.parametrize(
    "options", [{"temperature": math.nan}, {"stop": {1, 2}}, {"seed": np.int64(3)}, {"seed": {1}}]
)
def test_a_call_that_cannot_be_written_is_an_error_at_once(options: dict[str, Any]) -> None:
    with ScriptedServer(lambda _: (200, SAID)) as server, Dispatcher([server.host]) as dispatcher:
        for more in ({}, {"temperature": 0}):
            completion = dispatcher.generate(Call(model="m", prompt="p", options=more | options))
            assert isinstance(completion.error, BadRequestError)
            assert completion.attempts <= 1
    assert server.bodies == []


LIMITS: list[tuple[Role, Any, Any, int, Any]] = [
    # The role, whether the call says that it thinks, its limit, and what is sent of the two.
    ("target", None, None, 512, None),
    ("mutator", None, None, 512, False),
    ("judge", None, None, 256 + 100, "low"),
    ("target", True, None, 512 + 100, True),
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
    ("details", "counted", "estimated"),
    [({"reasoning_tokens": 30}, 30, 0), ({}, 0, 75), (None, 0, 75)],
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
            account = dispatcher.accounts()["sim-target"]
    assert account.completion_tokens == 100
    assert (account.thought_tokens, account.estimated_thought_tokens) == (counted, estimated)


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
        waiting = start(lambda: dispatcher.generate(Call(model="m", prompt="p")))
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
        bad = start(lambda: dispatcher.generate(Call(model="m", prompt="bad")))
        wait_until(lambda: dispatcher.accounts() != {} and dispatcher.accounts()["m"].failures == 1)
        assert dispatcher.generate(Call(model="m", prompt="good")).text == "Yes."
        dispatcher.cancel()
        assert isinstance(bad.result(PATIENCE_S).error, CallCancelledError)
        assert bad.result().attempts == 1


def test_a_call_that_failed_at_one_server_is_tried_at_another_which_soon_gets_all(
    server: EmbeddedServer,
) -> None:
    with Dispatcher([NOBODY, server.host], backoff_s=0.001, report=lambda _: None) as dispatcher:
        replies = [dispatcher.generate(ask(f"p{number}")) for number in range(20)]
    assert [reply.error for reply in replies] == [None] * 20
    assert sum(reply.attempts for reply in replies) <= 20 + 3
