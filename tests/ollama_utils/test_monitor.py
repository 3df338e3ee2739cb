"""What a command says of its calls as they are made."""

from __future__ import annotations

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.monitor import CallMonitor
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from tests.ollama_utils.clock import Clock
from tests.ollama_utils.scripted import ScriptedServer

UNTIMED = {"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}]}
"""A reply that does not say how long it took, as of most servers that speak OpenAI's API."""


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


@pytest.mark.parametrize(
    ("slots", "lanes", "says"),
    [
        (1, 16, "runs 1 slot for 'sim-model', and 16 lanes share it: --slots 8 gives it more"),
        (2, 4, "runs 2 slots for 'sim-model', and 4 lanes share them: --slots 4 gives it more"),
        (2, 2, "runs 2 slots for 'sim-model', kept busy by "),
    ],
)
def test_few_slots_are_stated_once_with_the_setting_that_gives_more(
    simulator: EmbeddedServer, slots: int, lanes: int, says: str
) -> None:
    with Dispatcher([simulator.host], slots=slots) as dispatcher:
        monitor = CallMonitor(dispatcher, lanes=lanes, slots_setting="--slots ", clock=Clock())
        assert monitor.news() == []
        ask(dispatcher, "one")
        dispatcher.generate(Call(model="sim-target", prompt="one"))
        first, second = monitor.news()
        assert first.startswith(f"server {simulator.host} {says}")
        assert "gives it more" not in second
        assert monitor.news() == []
        assert f" of {2 * slots} slots busy · " in monitor.line()
