"""What is kept of a server: a gate a model, who hears of its calls, and what was found of its capacity."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ollama_utils.capacity import START
from ollama_utils.errors import CallCancelledError
from ollama_utils.swaps import Swaps
from ollama_utils.types import Usage
from tests.ollama_utils.alone import Alone
from tests.ollama_utils.threads import PATIENCE_S, start

SERVED = Usage(completion_tokens=5, decode_s=1e-6, total_s=1e-6)


@pytest.fixture
def one() -> Iterator[Alone]:
    """A server, where nobody listens, that takes one call at once to a model."""
    with Alone() as alone:
        yield alone


class Diary(Swaps):
    """Writes down what it hears, with the calls then inside the model's gate."""

    def __init__(self, alone: Alone) -> None:
        super().__init__(lambda: alone.server.gates)
        self.heard: list[tuple[Any, ...]] = []
        self._server = alone.server
        alone.server.swaps = self

    def came(self, model: str) -> None:
        self.heard.append(("came", model, self._server.gates[model].in_flight))

    def look(self) -> None:
        self.heard.append(("look",))

    def left(self, model: str, sent_s: float | None, now_s: float, usage: Usage | None) -> None:
        sent = sent_s is not None and sent_s <= now_s
        self.heard.append(("left", model, self._server.gates[model].in_flight, sent, usage))


def test_swaps_hear_of_a_call_that_has_a_place_and_again_when_the_place_is_free(one: Alone) -> None:
    diary = Diary(one)
    with one.admit("m:latest") as admission:
        assert diary.heard == [("came", "m", 1)]
        admission.usage = SERVED
    assert diary.heard[1:] == [("left", "m", 0, True, SERVED), ("look",)]


def test_swaps_hear_of_a_call_that_failed_and_not_of_one_that_was_never_let_in(one: Alone) -> None:
    diary = Diary(one)
    with pytest.raises(ZeroDivisionError), one.admit("m"):
        raise ZeroDivisionError
    one.fleet.close()
    with pytest.raises(CallCancelledError), one.admit("m"):
        pass
    assert diary.heard == [("came", "m", 1), ("left", "m", 0, True, None), ("look",)]


def test_swaps_hear_of_a_call_that_waits_at_a_gate_that_is_shut(one: Alone) -> None:
    class Doorkeeper(Diary):
        def look(self) -> None:
            self.heard.append(("look", self._server.gate("m").waiting))
            self._server.gate("m").open = True

    doorkeeper = Doorkeeper(one)
    one.server.gate("m").open = False
    with one.admit("m"):
        assert doorkeeper.heard == [("look", 1), ("came", "m", 1)]


def test_each_model_has_its_gate_and_a_tag_that_goes_without_saying_makes_no_other(
    one: Alone,
) -> None:
    with one.admit("a"), one.admit("b:latest"):
        assert {name: gate.in_flight for name, gate in one.server.gates.items()} == {"a": 1, "b": 1}
    assert one.server.gate("a") is one.server.gate("a:latest") is not one.server.gate("b")


def test_a_gate_made_after_the_end_is_shut_for_good(one: Alone) -> None:
    one.fleet.close()
    with pytest.raises(CallCancelledError), one.admit("new"):
        pass


def test_a_limit_that_is_given_stays_and_the_slots_are_found_all_the_same(one: Alone) -> None:
    for _ in range(20):
        with one.admit("m") as admission:
            admission.usage = SERVED
    assert one.server.gate("m").limit == one.server.capacities()["m"].limit == 1
    assert one.server.capacities()["m"].service_s == pytest.approx(1e-6)


def test_a_limit_that_is_found_grows_while_full_gates_make_nobody_wait() -> None:
    alone = Alone(max_in_flight="auto")
    server = alone.server
    for most in range(START, START + 5):
        # A reply that a busy machine was slow to hand over says nothing of the server: the next one will.
        while (limit := server.gate("m").limit) <= most:
            together = threading.Barrier(limit)

            def visit(together: threading.Barrier = together) -> None:
                with alone.admit("m") as admission:
                    together.wait(PATIENCE_S)
                    admission.usage = SERVED

            for gone in [start(visit) for _ in range(limit)]:
                gone.result(PATIENCE_S)
        assert server.gate("m").limit == server.capacities()["m"].limit
    alone.fleet.close()
