"""The laws of the queue for a server, of outages, and of models that change."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import (
    CallCancelledError,
    CallTimeoutError,
    ModelChangedError,
    OllamaError,
    OutageError,
    ServerFaultError,
)
from ollama_utils.parallel import map_parallel
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.hostile import RawServer, http
from tests.ollama_utils.lying import UnderWay
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, interrupted_once, start, wait_until

NOBODY = "http://127.0.0.1:1"
CALLS = [
    Call(model="sim-target", prompt=f"Why {number}?", options={"seed": number})
    for number in range(24)
]
GONE: tuple[int, Any] = (502, {"error": "nobody is behind me"})
LOADING = (503, {"error": {"code": 503, "message": "Loading model"}})


@pytest.fixture
def own() -> Iterator[EmbeddedServer]:
    """A simulator of the test's own, which takes some 50 ms a reply."""
    with EmbeddedServer(Settings(slots=4, reply_tokens="25", time_scale=0.5)) as server:
        yield server


def quick_to(*hosts: str, **settings: Any) -> tuple[Dispatcher, list[str]]:
    """A dispatcher that loses no time between attempts, and the lines that it reports."""
    lines: list[str] = []
    usual: dict[str, Any] = {"backoff_s": 0.01, "report": lines.append}
    return Dispatcher(hosts, **usual | settings), lines


def texts(dispatcher: Dispatcher) -> list[str]:
    """The replies to the calls, none of which fails."""
    completions = map_parallel(dispatcher.generate, CALLS)
    assert [completion.error for completion in completions] == [None] * len(CALLS)
    return [completion.text for completion in completions]


@pytest.mark.parametrize(("mode", "lanes"), [("hang", 1), ("hang", 24), ("drop", 24)])
def test_calls_outlast_an_outage_and_get_the_replies_that_they_would_have_had(
    own: EmbeddedServer, mode: str, lanes: int
) -> None:
    with Dispatcher([own.host]) as dispatcher:
        expected = texts(dispatcher)
    dispatcher, lines = quick_to(own.host, timeout_s=0.3)
    with dispatcher:
        calls = CALLS if lanes > 1 else CALLS[:4]
        found = start(lambda: map_parallel(dispatcher.generate, calls, lanes))
        wait_until(lambda: dispatcher.completions > 0)
        own.set_outage(mode, at="all")  # type: ignore[arg-type]  # one of those it takes
        wait_until(lambda: len(lines) == 1)
        own.end_outage()
        assert [reply.text for reply in found.result(PATIENCE_S)] == expected[: len(calls)]
        wait_until(lambda: len(lines) == 2)
    assert "is away" in lines[0]
    assert "(--max-outage)" in lines[0]
    assert "answers again" in lines[1]


@pytest.mark.parametrize("most_s", [0, 0.2])
def test_an_outage_that_is_too_long_ends_all_calls_and_all_later_ones(most_s: float) -> None:
    dispatcher, _ = quick_to(NOBODY, max_outage_s=most_s)
    with dispatcher:
        for call in CALLS[:2]:
            with pytest.raises(OutageError, match=rf"there for {most_s} s \(--max-outage\)"):
                dispatcher.generate(call)


def test_of_several_servers_one_that_hangs_gives_its_calls_to_the_others(
    own: EmbeddedServer,
) -> None:
    with EmbeddedServer(own.settings) as other:
        dispatcher, lines = quick_to(own.host, other.host, memory_bytes=0, timeout_s=0.5)
        with dispatcher:
            expected = texts(dispatcher)
            own.set_outage("hang", at="all")
            assert texts(dispatcher) == expected
            wait_until(lambda: len(lines) == 1)
            own.end_outage()
            wait_until(lambda: len(lines) == 2)
        assert "its calls go to the other servers" in lines[0]


@pytest.mark.parametrize("error", [CallTimeoutError, ServerFaultError])
def test_an_error_that_a_server_answers_and_a_first_reply_that_is_late_are_no_absence(
    error: type[OllamaError],
) -> None:
    """Before its first reply a server may load the model, or read a long prompt."""
    go_on = threading.Event()

    def handler(_: dict[str, Any]) -> tuple[int, Any]:
        if error is CallTimeoutError:
            go_on.wait(PATIENCE_S)
        return 500, {"error": "crash"}

    with ScriptedServer(handler) as server:
        dispatcher, lines = quick_to(server.host, timeout_s=0.1, attempts=5)
        with dispatcher:
            completion = dispatcher.generate(CALLS[0])
        go_on.set()
    assert isinstance(completion.error, error)
    assert (completion.attempts, lines) == (5, [])


@pytest.mark.parametrize(
    ("answer", "lanes"), [((0, b""), 1), ((0, b""), 16), ((504, {"error": "too long"}), 16)]
)
def test_calls_that_break_a_server_which_answers_others_fail_alone(
    answer: tuple[int, Any], lanes: int
) -> None:
    """A server that answers a probe is there: it is the call that cannot be answered."""

    def handler(body: dict[str, Any]) -> tuple[int, Any]:
        return answer if "bad" in body.get("prompt", "") else (200, SAID)

    with ScriptedServer(handler) as server:
        dispatcher, lines = quick_to(server.host, backoff_s=0.001)
        with dispatcher:
            calls = [Call(model="m", prompt=f"{'bad' if n % 2 else 'good'} {n}") for n in range(16)]
            replies = map_parallel(dispatcher.generate, calls, lanes)
    assert [reply.error is None for reply in replies] == [True, False] * 8
    assert {reply.attempts for reply in replies[1::2]} == {4}
    assert lines == []


def test_a_server_that_is_up_but_loads_its_model_is_not_back() -> None:
    answers = [GONE]
    with ScriptedServer(lambda _: answers[-1]) as server:
        dispatcher, lines = quick_to(server.host)
        with dispatcher:
            reply = start(lambda: dispatcher.generate(CALLS[0]))
            wait_until(lambda: len(lines) == 1)
            answers.append(LOADING)
            asked = len(server.bodies)
            wait_until(lambda: len(server.bodies) >= asked + 2)
            assert not reply.done()
            answers.append((200, SAID))
            assert reply.result(PATIENCE_S).error is None
    assert "answers again" in lines[-1]


def test_what_a_gateway_says_of_an_absent_server_does_not_end_the_outage() -> None:
    with RawServer(http("502 Bad Gateway", b"<h1>nobody</h1>")) as server:
        dispatcher, lines = quick_to(server.host, max_outage_s=0.5, backoff_s=0.02)
        with dispatcher:
            replies = [start(partial(dispatcher.generate, call)) for call in CALLS[:8]]
            assert {type(reply.exception(PATIENCE_S)) for reply in replies} == {OutageError}
        assert not any("answers again" in line for line in lines)
        assert len(server.requests) < 100


def test_a_report_that_cannot_be_written_ends_the_run() -> None:
    def report(_line: str) -> None:
        raise BrokenPipeError("nobody reads")

    dispatcher, _ = quick_to(NOBODY, report=report)
    with dispatcher:
        for cap in (None, dispatcher.servers.new_cap(1)):
            reply = start(partial(dispatcher.generate, CALLS[0], cap=cap))
            assert isinstance(reply.exception(PATIENCE_S), BrokenPipeError)


def test_ctrl_c_ends_a_call_that_waits_for_a_server_and_leaves_no_place_taken() -> None:
    dispatcher, lines = quick_to(NOBODY)
    with dispatcher:
        with interrupted_once(lambda: wait_until(lambda: bool(lines))):
            dispatcher.generate(CALLS[0])
        assert dispatcher.servers.all[0].limit("sim-target").in_flight == 0
        dispatcher.cancel()
        assert isinstance(dispatcher.generate(CALLS[0]).error, CallCancelledError)


def test_of_a_quick_and_a_slow_server_the_slow_one_gets_calls_of_a_backlog_alone() -> None:
    def slow(_body: dict[str, Any]) -> tuple[int, Any]:
        time.sleep(0.3)
        return 200, SAID

    with ScriptedServer(lambda _body: (200, SAID)) as quick, ScriptedServer(slow) as other:
        with Dispatcher([other.host, quick.host], max_in_flight=2, memory_bytes=0) as dispatcher:
            calls = [Call(model="m", prompt=str(number)) for number in range(40)]
            replies = map_parallel(dispatcher.generate, calls, 3)
        assert not any(reply.error for reply in replies)
        assert len(other.bodies) < len(quick.bodies)


def test_a_server_that_drops_all_its_calls_gets_a_quarter_fewer_at_once() -> None:
    callers, together, under_way, most = 12, threading.Barrier(12), UnderWay(), list[int]()
    full = {"error": {"code": 500, "message": "Context size has been exceeded."}}
    said = {"choices": [{"finish_reason": "stop", "message": {"content": "Yes."}}]}

    def handler(_body: dict[str, Any]) -> tuple[int, Any]:
        """Wait until so many calls are there, drop them all, and answer every later one."""
        if len(server.bodies) <= callers:
            together.wait(PATIENCE_S)
            return 500, full
        with under_way as company:
            most.append(company)
            return 200, said

    with ScriptedServer(handler) as server:
        host = f"openai:{server.host}"
        with Dispatcher([host], max_in_flight=callers, backoff_s=0.001) as dispatcher:
            calls = [Call(model="m", prompt=str(number)) for number in range(48)]
            replies = map_parallel(dispatcher.generate, calls, callers)
            (limit,) = dispatcher.servers.capacities().values()
    assert [reply.text for reply in replies] == ["Yes."] * len(calls)
    assert limit.value == callers - callers // 4  # all fell together: it was lowered once
    assert max(most) <= limit.value


def test_a_model_that_is_another_one_after_an_outage_ends_the_run(own: EmbeddedServer) -> None:
    dispatcher, _ = quick_to(own.host, timeout_s=0.5)
    with dispatcher:
        dispatcher.servers.models()
        texts(dispatcher)
        own.kill()
        late = start(lambda: dispatcher.generate(Call(model="sim-target", prompt="And now?")))
        wait_until(lambda: dispatcher.servers.all[0].is_away)
        with EmbeddedServer(replace(own.settings, seed=1, port=int(own.host.rpartition(":")[2]))):
            with pytest.raises(ModelChangedError, match="its digest changed"):
                late.result(PATIENCE_S)
