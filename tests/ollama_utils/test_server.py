"""What is kept of a server: a gate a model, who hears of its calls, and what was found of its capacity."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ollama_utils.capacity import START
from ollama_utils.client import OllamaClient
from ollama_utils.errors import CallCancelledError
from ollama_utils.limits import Server
from ollama_utils.swaps import Swaps
from ollama_utils.types import Usage
from tests.ollama_utils.threads import PATIENCE_S, start, wait_until

SERVED = Usage(completion_tokens=5, decode_s=1e-6, total_s=1e-6)


@pytest.fixture
def one() -> Iterator[Server]:
    """A server, where nobody listens, that takes one call at once to a model."""
    server = Server(OllamaClient("http://127.0.0.1:1"), max_in_flight=1)
    yield server
    server.close()


class Diary(Swaps):
    """Writes down what it hears, with the calls then inside the model's gate."""

    def __init__(self, server: Server) -> None:
        super().__init__(lambda: server.gates)
        self.heard: list[tuple[Any, ...]] = []
        self._server = server
        server.swaps = self

    def came(self, model: str) -> None:
        self.heard.append(("came", model, self._server.gates[model].in_flight))

    def left(self, model: str, sent_s: float | None, now_s: float, usage: Usage | None) -> None:
        sent = sent_s is not None and sent_s <= now_s
        self.heard.append(("left", model, self._server.gates[model].in_flight, sent, usage))


def test_swaps_hear_of_a_call_before_it_is_let_in_and_after_its_place_is_free(one: Server) -> None:
    diary = Diary(one)
    with one.admit("m:latest") as admission:
        assert diary.heard == [("came", "m", 0)]
        admission.usage = SERVED
    assert diary.heard[1:] == [("left", "m", 0, True, SERVED)]


def test_swaps_hear_of_a_call_that_failed_and_of_one_that_was_never_let_in(one: Server) -> None:
    diary = Diary(one)
    with pytest.raises(ZeroDivisionError), one.admit("m"):
        raise ZeroDivisionError
    one.cancel()
    with pytest.raises(CallCancelledError), one.admit("m"):
        pass
    assert [heard for heard in diary.heard if heard[0] == "left"] == [
        ("left", "m", 0, True, None),
        ("left", "m", 0, False, None),
    ]


def test_swaps_may_shut_a_gate_before_the_call_that_comes_is_let_in(one: Server) -> None:
    class Doorkeeper(Diary):
        def came(self, model: str) -> None:
            one.gates[model].open = False

    Doorkeeper(one)
    inside = threading.Event()

    def visit() -> None:
        with one.admit("m"):
            inside.set()

    gone = start(visit)
    wait_until(lambda: one.gate("m").waiting == 1)
    assert not inside.is_set()
    one.gate("m").open = True
    gone.result(PATIENCE_S)
    assert inside.is_set()


def test_each_model_has_its_gate_and_a_tag_that_goes_without_saying_makes_no_other(one: Server) -> None:
    with one.admit("a"), one.admit("b:latest"):
        assert {name: gate.in_flight for name, gate in one.gates.items()} == {"a": 1, "b": 1}
    assert one.gate("a") is one.gate("a:latest") is not one.gate("b")


def test_a_gate_made_after_the_end_is_shut_for_good(one: Server) -> None:
    one.cancel()
    with pytest.raises(CallCancelledError), one.admit("new"):
        pass


def test_a_limit_that_is_given_stays_and_the_slots_are_found_all_the_same(one: Server) -> None:
    for _ in range(20):
        with one.admit("m") as admission:
            admission.usage = SERVED
    assert one.gate("m").limit == one.capacities()["m"].limit == 1
    assert one.capacities()["m"].service_s == pytest.approx(1e-6)


def test_a_limit_that_is_found_grows_while_full_gates_make_nobody_wait() -> None:
    server = Server(OllamaClient("http://127.0.0.1:1"), max_in_flight="auto")
    for most in range(START, START + 5):
        # A reply that a busy machine was slow to hand over says nothing of the server: the next one will.
        while (limit := server.gate("m").limit) <= most:
            together = threading.Barrier(limit)

            def visit(together: threading.Barrier = together) -> None:
                with server.admit("m") as admission:
                    together.wait(PATIENCE_S)
                    admission.usage = SERVED

            for gone in [start(visit) for _ in range(limit)]:
                gone.result(PATIENCE_S)
        assert server.gate("m").limit == server.capacities()["m"].limit
    server.close()
