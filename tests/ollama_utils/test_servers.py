"""The laws of the line for a place at a server, of outages, and of models that change."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import (
    CallCancelledError,
    CallTimeoutError,
    ModelChangedError,
    OutageError,
    ServerFaultError,
)
from ollama_utils.ollama import OllamaClient
from ollama_utils.parallel import map_parallel
from ollama_utils.reply_log import ReplyLog, question_of
from ollama_utils.servers import Place, Servers
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.hostile import RawServer, http
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, interrupted_once, start, wait_until

HOSTS = ("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3")
NEVER = threading.Event()
CALLS = [
    Call(model="sim-target", prompt=f"Why {number}?", options={"seed": number})
    for number in range(24)
]
GONE = (502, {"error": "nobody is behind me"})
LOADING = (503, {"error": {"code": 503, "message": "Loading model"}})


def quiet(_line: str) -> None:
    """Takes what is reported to a user."""


class LineOfCalls(RuleBasedStateMachine):
    """Calls that come, go, and are cancelled, at three servers that take two calls each."""

    def __init__(self) -> None:
        super().__init__()
        clients = [OllamaClient(host, timeout_s=1.0) for host in HOSTS]
        self.servers = Servers(clients, max_in_flight=2, max_outage_s=None)
        self.waiting: list[tuple[Future[Place], Collection[str], threading.Event]] = []
        self.inside: list[Place] = []
        self.answered: set[str] = set()

    @rule(avoid=st.sets(st.sampled_from(HOSTS)))
    def come(self, avoid: Collection[str]) -> None:
        """A call comes."""
        cancelled, before = threading.Event(), self.servers.waiting
        place = start(lambda: self.servers.enter("m", avoid, cancelled))
        wait_until(lambda: place.done() or self.servers.waiting > before)
        self.waiting.append((place, avoid, cancelled))

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), is_answered=st.booleans())
    def leave(self, data: st.DataObject, *, is_answered: bool) -> None:
        """A call is over, with a reply or without being sent."""
        place = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1)))
        if is_answered:
            self.servers.sent(place)
            self.servers.answered(place, None)
            self.answered.add(place.server.host)
        self.servers.leave(place)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Nobody waits for a call any more."""
        index = data.draw(st.integers(0, len(self.waiting) - 1))
        place, _, cancelled = self.waiting.pop(index)
        cancelled.set()
        with suppress(CallCancelledError):  # else it had a place before
            self.servers.leave(place.result(PATIENCE_S))

    @invariant()
    def first_come_first_served(self) -> None:
        """Of those who avoid the same servers, who came first has a place first."""
        wait_until(
            lambda: sum(not place.done() for place, _, _ in self.waiting) == self.servers.waiting
        )
        for number, (place, avoid, _) in enumerate(self.waiting):
            if place.done():
                earlier = [each for each in self.waiting[:number] if each[1] == avoid]
                assert all(each[0].done() for each in earlier)
        self.inside += [place.result() for place, _, _ in self.waiting if place.done()]
        self.waiting = [each for each in self.waiting if not each[0].done()]

    @invariant()
    def no_place_is_lost_or_given_twice(self) -> None:
        """A server takes no more calls than it may, and has room only for those who avoid it."""
        hosts = [place.server.host for place in self.inside]
        for server in self.servers.all:
            most = 2 if server.host in self.answered else 1
            assert hosts.count(server.host) == server.limit("m").in_flight <= most
            if server.limit("m").in_flight < most:
                assert all({server.host} <= {*avoid} < {*HOSTS} for _, avoid, _ in self.waiting)

    def teardown(self) -> None:
        """Everybody is served in the end."""
        while self.inside:
            self.servers.leave(self.inside.pop())
            self.first_come_first_served()
        assert not self.waiting
        self.servers.close()


TestLine = LineOfCalls.TestCase
TestLine.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)


@pytest.fixture
def own() -> Iterator[EmbeddedServer]:
    """A simulator of the test's own, which takes a tenth of a second a reply."""
    with EmbeddedServer(Settings(slots=4, reply_tokens="25")) as server:
        yield server


def texts(dispatcher: Dispatcher) -> list[str]:
    """What comes of the calls, none of which fails."""
    completions = map_parallel(dispatcher.generate, CALLS)
    assert [completion.error for completion in completions] == [None] * len(CALLS)
    return [completion.text for completion in completions]


@pytest.mark.parametrize("lanes", [1, 24])
@pytest.mark.parametrize("mode", ["hang", "drop"])
def test_calls_outlast_an_outage_and_get_the_replies_that_they_would_have_had(
    own: EmbeddedServer, mode: str, lanes: int
) -> None:
    with Dispatcher([own.host]) as dispatcher:
        expected = texts(dispatcher)
    lines: list[str] = []
    with Dispatcher([own.host], timeout_s=0.5, backoff_s=0.01, report=lines.append) as dispatcher:
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


def test_an_outage_that_is_too_long_ends_all_calls_and_all_later_ones(own: EmbeddedServer) -> None:
    own.kill()
    with Dispatcher([own.host], max_outage_s=0.5, backoff_s=0.01, report=quiet) as dispatcher:
        for call in CALLS[:2]:
            with pytest.raises(OutageError, match=r"there for 0.5 s \(--max-outage\)"):
                dispatcher.generate(call)


def test_of_several_servers_one_that_hangs_gives_its_calls_to_the_others(
    own: EmbeddedServer,
) -> None:
    with EmbeddedServer(Settings(slots=4, reply_tokens="25")) as other:
        lines: list[str] = []
        hosts = [own.host, other.host]
        with Dispatcher(hosts, memory_bytes=0, timeout_s=1.0, report=lines.append) as dispatcher:
            expected = texts(dispatcher)
            own.set_outage("hang", at="all")
            assert texts(dispatcher) == expected
            wait_until(lambda: len(lines) == 1)
            own.end_outage()
            wait_until(lambda: len(lines) == 2)
        assert "its calls go to the other servers" in lines[0]


def test_a_timeout_before_the_first_reply_is_no_absence(own: EmbeddedServer) -> None:
    """The model is loaded, or a long prompt read: the call fails, and the server is there."""
    own.set_outage("hang", at="calls")
    lines: list[str] = []
    with Dispatcher(
        [own.host], timeout_s=0.1, attempts=5, backoff_s=0.01, report=lines.append
    ) as dispatcher:
        completion = dispatcher.generate(CALLS[0])
    assert isinstance(completion.error, CallTimeoutError)
    assert completion.attempts == 5
    assert lines == []


@pytest.mark.parametrize("answer", [(0, b""), (504, {"error": "too long"})])
@pytest.mark.parametrize("lanes", [1, 16])
def test_calls_that_break_a_server_which_answers_others_fail_alone(
    answer: tuple[int, Any], lanes: int
) -> None:
    """A server that answers a probe is there: it is the call that cannot be answered."""

    def handler(body: dict[str, Any]) -> tuple[int, Any]:
        return answer if "bad" in body.get("prompt", "") else (200, SAID)

    lines: list[str] = []
    with (
        ScriptedServer(handler) as server,
        Dispatcher([server.host], backoff_s=0.001, report=lines.append) as dispatcher,
    ):
        calls = [Call(model="m", prompt=f"{'bad' if n % 2 else 'good'} {n}") for n in range(32)]
        replies = map_parallel(dispatcher.generate, calls, lanes)
    assert [reply.error is None for reply in replies] == [True, False] * 16
    assert {reply.attempts for reply in replies[1::2]} == {4}
    assert lines == []


class Switch:
    """A server whose answer is changed while it runs."""

    def __init__(self, answer: tuple[int, Any]) -> None:
        self.answer = answer

    def __call__(self, _body: dict[str, Any]) -> tuple[int, Any]:
        return self.answer


def test_a_server_that_is_up_but_loads_its_model_is_not_back() -> None:
    switch, lines = Switch(GONE), list[str]()
    with (
        ScriptedServer(switch) as server,
        Dispatcher([server.host], backoff_s=0.01, report=lines.append) as dispatcher,
    ):
        reply = start(lambda: dispatcher.generate(Call(model="m", prompt="p")))
        wait_until(lambda: len(lines) == 1)
        switch.answer = LOADING
        asked = len(server.bodies)
        wait_until(lambda: len(server.bodies) >= asked + 2)
        assert not reply.done()
        switch.answer = 200, SAID
        assert reply.result(PATIENCE_S).error is None
    assert "answers again" in lines[-1]


def test_what_a_gateway_says_of_an_absent_server_does_not_end_the_outage() -> None:
    lines: list[str] = []
    with (
        RawServer(http("502 Bad Gateway", b"<h1>nobody</h1>")) as server,
        Dispatcher(
            [server.host], max_outage_s=2.0, backoff_s=0.01, report=lines.append
        ) as dispatcher,
    ):
        replies = [start(partial(dispatcher.generate, call)) for call in CALLS[:8]]
        assert {type(reply.exception(PATIENCE_S)) for reply in replies} == {OutageError}
        assert not any("answers again" in line for line in lines)
        assert len(server.requests) < 100


def test_where_nothing_waits_for_a_server_each_call_fails_by_itself(own: EmbeddedServer) -> None:
    own.kill()
    with Dispatcher([own.host], max_outage_s=None, attempts=2, backoff_s=0.01) as dispatcher:
        assert [dispatcher.generate(call).attempts for call in CALLS[:5]] == [2] * 5


@pytest.mark.parametrize("wrong", [BrokenPipeError("nobody reads"), ValueError("closed file")])
def test_a_report_that_cannot_be_written_ends_the_run(wrong: Exception) -> None:
    def report(_line: str) -> None:
        raise wrong

    with (
        ScriptedServer(Switch(GONE)) as server,
        Dispatcher([server.host], backoff_s=0.01, report=report) as dispatcher,
    ):
        reply = start(lambda: dispatcher.generate(Call(model="m", prompt="p")))
        assert reply.exception(PATIENCE_S) is wrong


def test_a_server_that_was_started_here_and_cannot_be_again_ends_the_run_at_once() -> None:
    with Dispatcher(
        [HOSTS[0]], backoff_s=0.01, ensure_running=lambda: "it ended with status 1"
    ) as dispatcher:
        with pytest.raises(OutageError, match="status 1"):
            dispatcher.generate(CALLS[0])


def test_ctrl_c_ends_a_call_that_waits_for_a_server_and_leaves_no_place_taken() -> None:
    lines: list[str] = []
    with (
        ScriptedServer(Switch(GONE)) as server,
        Dispatcher([server.host], backoff_s=0.01, report=lines.append) as dispatcher,
    ):
        servers = dispatcher.servers
        with interrupted_once(lambda: wait_until(lambda: bool(lines) and servers.waiting == 1)):
            dispatcher.generate(Call(model="m", prompt="p"))
        assert servers.waiting == servers.all[0].limit("m").in_flight == 0
        dispatcher.cancel()
        later = dispatcher.generate(Call(model="m", prompt="p"))
        assert isinstance(later.error, CallCancelledError)


def test_of_a_quick_and_a_slow_server_the_slow_one_gets_calls_of_a_backlog_alone() -> None:
    def slow(_body: dict[str, Any]) -> tuple[int, Any]:
        time.sleep(0.5)
        return 200, SAID

    with (
        ScriptedServer(lambda _body: (200, SAID)) as quick,
        ScriptedServer(slow) as other,
        Dispatcher([other.host, quick.host], max_in_flight=2, memory_bytes=0) as dispatcher,
    ):
        calls = [Call(model="m", prompt=str(number)) for number in range(40)]
        replies = map_parallel(dispatcher.generate, calls, 3)
        assert not any(reply.error for reply in replies)
        assert len(other.bodies) < len(quick.bodies)


def test_a_server_that_drops_all_its_calls_gets_a_quarter_fewer_at_once() -> None:
    callers, changed, counts = 12, threading.Condition(), {"calls": 0, "inside": 0, "most": 0}
    full = {"error": {"code": 500, "message": "Context size has been exceeded."}}
    said = {"choices": [{"finish_reason": "stop", "message": {"content": "Yes."}}]}

    def handler(_body: dict[str, Any]) -> tuple[int, Any]:
        """Wait until so many calls are there, drop them all, and answer every later one."""
        with changed:
            counts["calls"] += 1
            counts["inside"] += 1
            falls = counts["calls"] <= callers
            if not falls:
                counts["most"] = max(counts["most"], counts["inside"])
            changed.notify_all()
            assert changed.wait_for(lambda: counts["calls"] >= callers, timeout=PATIENCE_S)
            counts["inside"] -= 1
        return (500, full) if falls else (200, said)

    with (
        ScriptedServer(handler) as server,
        Dispatcher([f"openai:{server.host}"], max_in_flight=callers, backoff_s=0.001) as dispatcher,
    ):
        calls = [Call(model="m", prompt=str(number)) for number in range(48)]
        replies = map_parallel(dispatcher.generate, calls, callers)
        (found,) = dispatcher.servers.capacities().values()
    assert [reply.text for reply in replies] == ["Yes."] * len(calls)
    assert found.limit == callers - callers // 4  # all fell together: it was lowered once
    assert counts["most"] <= found.limit


def test_a_model_that_is_another_one_after_an_outage_ends_the_run_and_its_replies_are_not_found(
    own: EmbeddedServer, tmp_path: Path
) -> None:
    with (
        closing(ReplyLog(tmp_path / "replies.sqlite", digests={})) as log,
        Dispatcher([own.host], timeout_s=0.5, backoff_s=0.01, report=quiet) as dispatcher,
    ):
        beside = dispatcher.beside()
        beside.keep_in(log)
        dispatcher.servers.models()
        texts(beside)
        own.kill()
        late = start(lambda: dispatcher.generate(Call(model="sim-target", prompt="And now?")))
        wait_until(lambda: dispatcher.servers.all[0].is_away)
        with EmbeddedServer(replace(own.settings, seed=1, port=int(own.host.rpartition(":")[2]))):
            with pytest.raises(ModelChangedError, match="its digest changed"):
                late.result(PATIENCE_S)
            wait_until(lambda: log.find(question_of(CALLS[0])) is None)


def test_an_error_that_a_server_answers_is_no_absence() -> None:
    lines: list[str] = []
    with (
        ScriptedServer(Switch((500, {"error": "crash"}))) as server,
        Dispatcher([server.host], attempts=5, backoff_s=0.001, report=lines.append) as dispatcher,
    ):
        completion = dispatcher.generate(Call(model="m", prompt="p"))
    assert isinstance(completion.error, ServerFaultError)
    assert (completion.attempts, lines) == (5, [])
