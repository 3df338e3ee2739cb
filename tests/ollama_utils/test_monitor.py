"""What a command says of its calls as they are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.limits import Capacity
from ollama_utils.monitor import FIRST_CALLS, FIRST_S, CallMonitor
from ollama_utils.reply_log import ReplyLog
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from tests.ollama_utils.clock import Clock
from tests.ollama_utils.scripted import ScriptedServer

UNTIMED = {"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}]}
"""A reply that does not say how long it took, as of most servers that speak OpenAI's API."""
HOST = "http://127.0.0.1:11434"


def ask(dispatcher: Dispatcher, *questions: object) -> None:
    for question in questions:
        dispatcher.generate(Call(model="sim-model", prompt=str(question), options={"seed": 1}))


def test_slots_are_named_where_replies_say_how_long_they_were_held(dispatcher: Dispatcher) -> None:
    clock = Clock()
    timed = CallMonitor(dispatcher, clock=clock)
    assert timed.line() == "0 calls/s · - cache hits"
    with (
        ScriptedServer(lambda _: (200, UNTIMED)) as server,
        Dispatcher([f"openai:{server.host}"]) as other,
    ):
        untimed = CallMonitor(other, clock=clock)
        ask(dispatcher, "one", "two", "two")
        ask(other, "one", "two", "two")
        clock.now_s += 24
        assert untimed.line() == "0.0833 calls/s · 33 % cache hits"
        assert timed.line().endswith(" slots busy · 0.0833 calls/s · 33 % cache hits")


def test_slots_that_are_known_are_stated_once_and_bound_those_that_are_busy(
    simulator: EmbeddedServer,
) -> None:
    with Dispatcher([simulator.host], slots=8) as dispatcher:
        monitor = CallMonitor(dispatcher, lanes=16, clock=Clock())
        assert monitor.news() == []
        ask(dispatcher, "one")
        (line,) = monitor.news()
        assert line.startswith(
            f"server {simulator.host} runs 8 slots for 'sim-model', kept busy by "
        )
        assert monitor.news() == []
        assert " of 8 slots busy · " in monitor.line()
        assert CallMonitor(dispatcher).news() == []  # nobody has lanes


def news(
    monkeypatch: pytest.MonkeyPatch, *found: int | None, lanes: int, setting: str = "--slots "
) -> list[list[str]]:
    """What is said as the slots of a server's model become known, and change."""
    with Dispatcher([HOST]) as dispatcher:
        monitor, lines = CallMonitor(dispatcher, lanes=lanes, slots_setting=setting), []
        for slots in found:
            capacity = Capacity(limit=12, slots=slots, service_s=1.0)
            capacities = {(HOST, "llama3.2"): capacity}
            monkeypatch.setattr(dispatcher.servers, "capacities", lambda each=capacities: each)
            lines.append(monitor.news())
    return lines


def test_few_slots_come_with_the_setting_that_gives_more_and_no_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ((line,),) = news(monkeypatch, 1, lanes=16, setting="OLLAMA_NUM_PARALLEL=")
    assert line == (
        f"server {HOST} runs 1 slot for 'llama3.2', and 16 lanes share it: "
        "OLLAMA_NUM_PARALLEL=8 gives it more. What they bring depends on the machine "
        "(much on most GPUs, little on a CPU): compare two runs"
    )
    ((line,),) = news(monkeypatch, 2, lanes=4)
    assert "4 lanes share them: --slots 4 gives it more" in line
    ((line,),) = news(monkeypatch, 2, lanes=2)
    assert line.endswith("runs 2 slots for 'llama3.2', kept busy by 12 calls in flight")


def test_slots_are_stated_again_once_they_are_more_than_twice_as_many_or_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = news(monkeypatch, None, 8, 7, None, 16, 4, 3, 8, lanes=16)
    assert [bool(line) for line in lines] == [False, True, False, False, False, False, True, True]


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
        (line,) = forecasts(monitor, clock, dispatcher)
    assert line == "at the 3.2 calls/s of the first calls, at most 967 more take 5 min"


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
        lines = forecasts(monitor, clock, resumed)
    line = f"at the 3.2 calls/s of the first calls, at most {left} more take 5 min"
    assert lines == ([line] if left else [])
