"""Outages that look like something else: behind a gateway, while a model loads, with a deaf terminal."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError, OutageError
from ollama_utils.gates import Gate
from ollama_utils.swaps import _Turn
from ollama_utils.types import Call
from tests.ollama_utils.hostile import RawServer, http
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, interrupted_once, start, wait_until

BAD_GATEWAY = http("502 Bad Gateway", b"<h1>nobody is behind me</h1>")


def call(number: int = 0, model: str = "m") -> Call:
    """A call that no other equals."""
    return Call(model=model, prompt=str(number))


class Switch:
    """A server whose answer is changed while it runs."""

    def __init__(self, answer: tuple[int, Any] = (200, SAID)) -> None:
        self.answer = answer

    def __call__(self, _body: dict[str, Any]) -> tuple[int, Any]:
        return self.answer


def gate_of(dispatcher: Dispatcher, host: str, model: str = "m") -> Gate:
    """A model's gate at a server."""
    return dispatcher._fleet._servers[host].gate(model)


def test_what_a_gateway_says_of_an_absent_server_is_no_word_of_that_server() -> None:
    """Many calls were under way: the answers that come late must not end the outage."""
    barrier = threading.Barrier(8)

    def answer(connection: socket.socket) -> None:
        with suppress(threading.BrokenBarrierError):
            barrier.wait(0.3)
        connection.sendall(BAD_GATEWAY)

    lines: list[str] = []
    with (
        RawServer(answer) as server,
        Dispatcher(
            [server.host], max_outage_s=2.0, backoff_s=0.01, report=lines.append
        ) as dispatcher,
    ):
        replies = [start(partial(dispatcher.generate, call(number))) for number in range(8)]
        assert {type(reply.exception(PATIENCE_S)) for reply in replies} == {OutageError}
        assert any("is away" in line for line in lines)
        assert not any("answers again" in line for line in lines)
        assert len(server.requests) < 100


def test_a_server_that_is_up_but_loads_its_model_is_not_back() -> None:
    switch = Switch((502, {"error": "gone"}))
    lines: list[str] = []
    with (
        ScriptedServer(switch) as server,
        Dispatcher([server.host], backoff_s=0.01, report=lines.append) as dispatcher,
    ):
        reply = start(lambda: dispatcher.generate(call()))
        wait_until(lambda: len(lines) == 1)
        switch.answer = 503, {"error": {"code": 503, "message": "Loading model"}}
        asked = len(server.bodies)
        wait_until(lambda: len(server.bodies) >= asked + 2)
        assert gate_of(dispatcher, server.host).held
        switch.answer = 200, SAID
        completion = reply.result(PATIENCE_S)
    assert completion.error is None
    assert "answers again" in lines[-1]


def test_a_server_that_began_anew_and_loads_its_model_is_waited_for_by_a_single_caller() -> None:
    switch = Switch((502, {"error": "gone"}))

    def handler(body: dict[str, Any]) -> tuple[int, Any]:
        answer = switch(body)
        switch.answer = (503, {"error": "Loading model"}) if answer[0] == 502 else answer
        return answer

    with (
        ScriptedServer(handler) as server,
        Dispatcher([server.host], backoff_s=0.01, report=lambda _line: None) as dispatcher,
    ):
        reply = start(lambda: dispatcher.generate(call()))
        wait_until(lambda: len(server.bodies) >= 5)
        switch.answer = 200, SAID
        assert reply.result(PATIENCE_S).error is None


@pytest.mark.parametrize(
    "wrong", [BrokenPipeError("nobody reads stderr"), ValueError("I/O on closed file")]
)
def test_a_report_that_cannot_be_written_does_not_let_the_run_wait_for_ever(
    wrong: Exception,
) -> None:
    def report(_line: str) -> None:
        raise wrong

    switch = Switch((502, {"error": "gone"}))
    with (
        ScriptedServer(switch) as server,
        Dispatcher([server.host], backoff_s=0.01, report=report) as dispatcher,
    ):
        reply = start(lambda: dispatcher.generate(call()))
        assert reply.exception(PATIENCE_S) is wrong


def test_no_probe_is_more_patient_than_the_longest_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ollama_utils.fleet._FIRST_PROBE_S", 10 * PATIENCE_S)
    asked = itertools.count()
    released = threading.Event()
    patient = {"timeout_s": 9 * PATIENCE_S, "max_outage_s": 1.5, "report": lambda _line: None}

    def answer(connection: socket.socket) -> None:
        if next(asked) < 3:
            connection.sendall(BAD_GATEWAY)
        else:
            released.wait(2 * PATIENCE_S)

    with (
        RawServer(answer) as server,
        Dispatcher([server.host], backoff_s=0.01, **patient) as dispatcher,  # type: ignore[arg-type]  # they fit
    ):
        with pytest.raises(OutageError):
            start(lambda: dispatcher.generate(call())).result(PATIENCE_S)
        released.set()


def test_of_several_servers_those_that_report_no_figures_take_more_than_one_call_at_once() -> None:
    with (
        ScriptedServer(lambda _body: (200, SAID)) as one,
        ScriptedServer(lambda _body: (200, SAID)) as other,
        Dispatcher([one.host, other.host]) as dispatcher,
    ):
        for number in range(4):
            assert dispatcher.generate(call(number)).error is None
        assert [gate_of(dispatcher, server.host).limit > 1 for server in (one, other)] == [
            True,
            True,
        ]


def takes_turns(dispatcher: Dispatcher, host: str, first: str, other: str) -> None:
    """Have two models of a server take turns, as if loads had shown that they do not fit together."""
    swaps = dispatcher._fleet._servers[host].swaps
    with swaps._lock:
        swaps._in_vain, swaps._swap_s = {first: 0, other: 0}, PATIENCE_S
        swaps._turn = _Turn(model=first, began_s=time.monotonic(), seen_s=time.monotonic())
        swaps._arrange(time.monotonic())


def test_a_call_that_avoids_a_server_gets_its_turn_at_another_one() -> None:
    """The turn there is another model's, whose calls all go elsewhere by now: nobody comes to end it."""
    with (
        ScriptedServer(lambda _body: (200, SAID)) as one,
        ScriptedServer(lambda _body: (200, SAID)) as other,
        Dispatcher([one.host, other.host]) as dispatcher,
    ):
        fleet = dispatcher._fleet
        for number, model in enumerate("xyxyxyxy"):
            dispatcher.generate(call(number, model))
        quick, slow = (gate_of(dispatcher, server.host, "x") for server in (one, other))
        wait_until(lambda: quick.in_flight + slow.in_flight == 0)
        quick.limit, quick.call_s, slow.call_s = 1, 10.0, 100.0
        takes_turns(dispatcher, other.host, "x", "y")

        def visit(model: str, avoid: Sequence[str]) -> None:
            with fleet.admit(model, probe=lambda _client, _within_s: None, avoid=avoid):
                pass

        with fleet.admit("x", probe=lambda _client, _within_s: None, avoid=[other.host]):
            late_x = start(lambda: visit("x", []))
            wait_until(lambda: fleet.queue("x").waiting == 1)
            late_y = start(lambda: visit("y", [one.host]))
            wait_until(lambda: fleet.queue("y").waiting == 1)
        late_x.result(PATIENCE_S)
        late_y.result(PATIENCE_S)


@pytest.mark.parametrize("hangs", [False, True])
def test_ctrl_c_ends_a_call_that_is_held_and_leaves_no_place_taken(*, hangs: bool) -> None:
    """While the probe is refused, or is waited for."""
    released = threading.Event()
    gone = threading.Event()

    def answer(connection: socket.socket) -> None:
        if gone.is_set() and hangs:
            released.wait(PATIENCE_S)
        connection.sendall(BAD_GATEWAY)

    with (
        RawServer(answer) as server,
        Dispatcher([server.host], backoff_s=0.01, report=lambda _line: gone.set()) as dispatcher,
    ):

        def is_held() -> None:
            assert gone.wait(PATIENCE_S)
            wait_until(lambda: dispatcher._fleet.queue("m").waiting == 1)

        with interrupted_once(is_held):
            dispatcher.generate(call())
        gate = gate_of(dispatcher, server.host)
        assert (gate.in_flight, gate.waiting, gate.held) == (0, 0, True)
        dispatcher.cancel()
        released.set()
        assert isinstance(dispatcher.generate(call()).error, CallCancelledError)
