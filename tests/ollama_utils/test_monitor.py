"""What a command says of its calls as they are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.monitor import FIRST_CALLS, FIRST_S, CallMonitor
from ollama_utils.reply_log import ReplyLog
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from tests.ollama_utils.clock import Clock
from tests.ollama_utils.scripted import ScriptedServer

UNTIMED = {"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}]}
"""A reply of a server that does not tell how long it took, as most of those that speak OpenAI's API."""


def ask(dispatcher: Dispatcher, *questions: object) -> None:
    for question in questions:
        dispatcher.generate(Call(model="sim-model", prompt=str(question), options={"seed": 1}))


def test_slots_are_not_told_where_the_server_does_not_tell_how_long_they_were_held(
    dispatcher: Dispatcher,
) -> None:
    clock = Clock()
    timed = CallMonitor(dispatcher, clock=clock)
    assert timed.line() == "0 calls/s · - cache hits"
    with (
        ScriptedServer(lambda _: (200, UNTIMED)) as server,
        Dispatcher([f"openai:{server.host}"]) as other,
    ):
        untimed = CallMonitor(other, clock=clock)
        ask(dispatcher, "one", "two")
        ask(other, "one", "two")
        clock.now_s += 10
        assert untimed.line() == "0.2 calls/s · 0 % cache hits"
        assert timed.line().endswith(" slots busy · 0.2 calls/s · 0 % cache hits")


def test_a_slow_server_has_a_pace_too(dispatcher: Dispatcher) -> None:
    clock = Clock()
    monitor = CallMonitor(dispatcher, clock=clock)
    ask(dispatcher, "one")
    clock.now_s += 24
    assert " · 0.0417 calls/s · " in monitor.line()


def forecasts(monitor: CallMonitor, clock: Clock, dispatcher: Dispatcher) -> list[str]:
    """What is said after so many new questions in so many seconds."""
    ask(dispatcher, "the model is loaded")
    assert monitor.news() == []
    ask(dispatcher, *range(2 * FIRST_CALLS))
    clock.now_s += FIRST_S
    return monitor.news() + monitor.news()


def test_attempts_that_failed_and_embeddings_are_no_calls_that_a_forecast_counts() -> None:
    def busy_at_first(body: dict[str, Any]) -> tuple[int, Any]:
        if "input" in body:
            return 200, {"data": [{"index": 0, "embedding": [1.0, 0.0]}]}
        return (200, UNTIMED) if server.bodies.count(body) > 1 else (503, {})

    clock = Clock()
    with (
        ScriptedServer(busy_at_first) as server,
        Dispatcher([f"openai:{server.host}"], backoff_s=0) as dispatcher,
    ):
        monitor = CallMonitor(dispatcher, most_calls=1000, clock=clock)
        for number in range(3 * FIRST_CALLS):
            dispatcher.embed("sim-embed", [f"text {number}"])
        (said,) = forecasts(monitor, clock, dispatcher)
        assert dispatcher.accounts()["sim-model"].retries == 2 * FIRST_CALLS + 1
    assert said == "at the 3.2 calls/s of the first calls, at most 967 more take 5 min"


@pytest.mark.parametrize(("most_calls", "left"), [(1000, 867), (133, 0)])
def test_what_a_resumed_run_knows_is_done_and_says_nothing_of_the_pace(
    simulator: EmbeddedServer, tmp_path: Path, most_calls: int, left: int
) -> None:
    path = tmp_path / "replies.sqlite"
    known = [f"known {number}" for number in range(100)]
    with ReplyLog(path, digests={"sim-model": "1"}) as log, Dispatcher([simulator.host]) as first:
        first.keep_in(log)
        ask(first, *known)
    clock = Clock()
    with ReplyLog(path, digests={"sim-model": "1"}) as log, Dispatcher([simulator.host]) as resumed:
        resumed.keep_in(log)
        monitor = CallMonitor(resumed, most_calls=most_calls, clock=clock)
        ask(resumed, *known)
        assert monitor.news() == []
        said = forecasts(monitor, clock, resumed)
    told = f"at the 3.2 calls/s of the first calls, at most {left} more take 5 min"
    assert said == ([told] if left else [])
