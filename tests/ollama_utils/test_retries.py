"""Attempts: what is tried again, how long, and what it costs."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np
import pytest

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
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, start, wait_until

NOBODY = "http://127.0.0.1:1"


def ask(prompt: object) -> Call:
    """A repeatable question to the simulator's target."""
    return Call(model="sim-target", prompt=str(prompt), options={"temperature": 0})


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


def test_an_error_that_will_not_pass_is_not_tried_again(
    quick: Dispatcher, server: EmbeddedServer
) -> None:
    completion = quick.generate(Call(model="nobody", prompt="p"))
    assert isinstance(completion.error, ModelMissingError)
    assert completion.attempts == 1
    assert quick.accounts()["nobody"].calls == 1
    del server


@pytest.mark.parametrize(
    "options", [{"temperature": math.nan}, {"stop": {1, 2}}, {"seed": np.int64(3)}, {"seed": {1}}]
)
def test_a_call_that_cannot_be_written_is_an_error_at_once(options: dict[str, Any]) -> None:
    with ScriptedServer(lambda _: (200, SAID)) as server, Dispatcher([server.host]) as dispatcher:
        for call in (
            Call(model="m", prompt="p", options={"temperature": 0} | options),
            Call(model="m", prompt="p", options=options),
        ):
            completion = dispatcher.generate(call)
            assert isinstance(completion.error, BadRequestError)
            assert completion.attempts <= 1
    assert server.bodies == []


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


def test_no_attempt_starts_when_the_back_off_ends_after_the_deadline() -> None:
    with Dispatcher([NOBODY], max_outage_s=None, backoff_s=60.0, deadline_s=30.0) as dispatcher:
        completion = dispatcher.generate(ask("p"))
    assert completion.attempts == 1
    assert isinstance(completion.error, ServerUnreachableError)


def test_the_wait_at_our_own_gate_is_no_part_of_the_deadline() -> None:
    deadline_s = 0.5
    held = threading.Event()

    def handler(body: dict[str, Any]) -> tuple[int, object]:
        if body["prompt"] == "held":
            held.wait(PATIENCE_S)
            return 200, SAID
        if len(server.bodies) > 1:
            return 200, SAID
        wait_until(lambda: gate.waiting == 1)
        return 500, {"error": "crash"}

    with (
        ScriptedServer(handler) as server,
        Dispatcher(
            [server.host], max_in_flight=1, backoff_s=0.001, deadline_s=deadline_s
        ) as dispatcher,
    ):
        gate = dispatcher._fleet._servers[server.host].gate("m")
        late = start(lambda: dispatcher.generate(Call(model="m", prompt="late")))
        wait_until(lambda: len(server.bodies) == 1)
        other = start(lambda: dispatcher.generate(Call(model="m", prompt="held")))
        wait_until(lambda: len(server.bodies) == 2 and gate.waiting == 1)
        time.sleep(deadline_s)
        held.set()
        assert late.result(PATIENCE_S).text == other.result(PATIENCE_S).text == "Yes."
    assert late.result().attempts == 2
    assert [body["prompt"] for body in server.bodies] == ["late", "held", "late"]


def test_a_host_where_nobody_answers_is_soon_left_alone() -> None:
    with (
        ScriptedServer(lambda _body: (200, SAID)) as server,
        Dispatcher([NOBODY, server.host], backoff_s=0.001, cache_size=0) as dispatcher,
    ):
        attempts = [dispatcher.generate(ask(f"p{n}")).attempts for n in range(20)]
    assert sum(attempts) <= 20 + 3


def test_a_call_that_backs_off_holds_no_place_in_the_gate() -> None:
    def handler(body: dict[str, Any]) -> tuple[int, object]:
        return (500, {"error": "crash"}) if body["prompt"] == "bad" else (200, SAID)

    with (
        ScriptedServer(handler) as server,
        Dispatcher([server.host], max_in_flight=1, backoff_s=600.0, deadline_s=1e6) as dispatcher,
    ):
        bad = start(lambda: dispatcher.generate(Call(model="m", prompt="bad")))
        wait_until(lambda: dispatcher.accounts() != {} and dispatcher.accounts()["m"].failures == 1)
        assert dispatcher.generate(Call(model="m", prompt="good")).text == "Yes."
        dispatcher.cancel()
        assert isinstance(bad.result(PATIENCE_S).error, CallCancelledError)
        assert bad.result().attempts == 1


def test_a_call_that_failed_at_one_server_is_tried_at_another(server: EmbeddedServer) -> None:
    with Dispatcher([NOBODY, server.host], backoff_s=0.001) as dispatcher:
        completion = dispatcher.generate(ask("p"))
    assert completion.error is None
    assert completion.attempts == 2
