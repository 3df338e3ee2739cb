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


@pytest.mark.parametrize(
    ("slots", "lanes", "says"),
    [
        (1, 16, "runs 1 slot for 'sim-model', and 16 lanes share it: --slots 8 gives it more"),
        (2, 4, "runs 2 slots for 'sim-model', and 4 lanes share them: --slots 4 gives it more"),
        (2, 2, "runs 2 slots for 'sim-model', kept busy by "),
    ],
)
def test_few_slots_come_with_the_setting_that_gives_more(
    simulator: EmbeddedServer, slots: int, lanes: int, says: str
) -> None:
    with Dispatcher([simulator.host], slots=slots) as dispatcher:
        ask(dispatcher, "one")
        (line,) = CallMonitor(dispatcher, lanes=lanes, slots_setting="--slots ").news()
    assert says in line


def test_of_several_models_the_first_line_alone_names_the_setting(
    simulator: EmbeddedServer,
) -> None:
    with Dispatcher([simulator.host], slots=1) as dispatcher:
        ask(dispatcher, "one")
        dispatcher.generate(Call(model="sim-target", prompt="one"))
        lines = CallMonitor(dispatcher, lanes=16).news()
    assert ["gives it more" in line for line in lines] == [True, False]
