"""The gate: never more inside than its limit, and whoever came first goes first."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.errors import CallCancelledError
from ollama_utils.gates import Gate
from tests.ollama_utils.threads import PATIENCE_S, start, wait_until


class Visitor:
    """A thread that enters the gate and stays until it is let go."""

    def __init__(self, gate: Gate) -> None:
        self.inside = threading.Event()
        self.may_go = threading.Event()
        self._gate = gate
        self.gone: Future[None] = start(self._visit)

    def _visit(self) -> None:
        self._gate.enter()
        self.inside.set()
        assert self.may_go.wait(PATIENCE_S)
        self._gate.leave()


def arrive(gate: Gate, number: int) -> list[Visitor]:
    """Visitors that came one after another."""
    visitors = []
    for count in range(1, number + 1):
        visitors.append(Visitor(gate))
        wait_until(lambda count=count: gate.in_flight + gate.waiting == count)  # type: ignore[misc]  # a default in a lambda
    return visitors


@settings(max_examples=25)
@given(
    visitors=st.integers(1, 6),
    first=st.integers(1, 3),
    moves=st.lists(st.one_of(st.integers(1, 7), st.none()), max_size=8),
)
def test_those_inside_are_always_the_first_comers_that_the_limit_admits(
    visitors: int, first: int, moves: list[int | None]
) -> None:
    gate = Gate(first)
    all_visitors = arrive(gate, visitors)
    admitted, inside = min(first, visitors), list(range(min(first, visitors)))
    for limit in moves:
        if limit is not None:
            gate.limit = limit
        elif inside:
            leaver = all_visitors[inside.pop(0)]
            leaver.may_go.set()
            leaver.gone.result(PATIENCE_S)
        while admitted < visitors and len(inside) < gate.limit:
            inside.append(admitted)
            admitted += 1
        wait_until(lambda: [v.inside.is_set() for v in all_visitors].count(True) == admitted)  # noqa: B023 - called at once
        assert all(v.inside.is_set() for v in all_visitors[:admitted])
        assert (gate.in_flight, gate.waiting) == (len(inside), visitors - admitted)
        assert gate.has_room == (len(inside) < gate.limit)
    gate.limit = visitors
    for visitor in all_visitors:
        visitor.may_go.set()
        visitor.gone.result(PATIENCE_S)
    assert gate.in_flight == 0


def test_closing_turns_away_those_who_wait_and_those_who_come_but_not_those_inside() -> None:
    gate = Gate(1)
    inside, *waiting = arrive(gate, 4)
    gate.close()
    for visitor in waiting:
        assert isinstance(visitor.gone.exception(PATIENCE_S), CallCancelledError)
    with pytest.raises(CallCancelledError):
        gate.enter()
    inside.may_go.set()
    inside.gone.result(PATIENCE_S)
    assert (gate.in_flight, gate.waiting) == (0, 0)


def test_a_gate_that_is_shut_lets_nobody_in_and_those_inside_out() -> None:
    gate = Gate(2)
    first, second, third = arrive(gate, 3)
    gate.open = False
    first.may_go.set()
    first.gone.result(PATIENCE_S)
    assert (gate.open, gate.in_flight, gate.waiting) == (False, 1, 1)
    gate.limit = 3
    assert (gate.in_flight, third.inside.is_set()) == (1, False)
    gate.open = True
    assert third.inside.wait(PATIENCE_S)
    for visitor in (second, third):
        visitor.may_go.set()
        visitor.gone.result(PATIENCE_S)
    assert (gate.in_flight, gate.waiting) == (0, 0)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_an_error(limit: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Gate(limit)
    with pytest.raises(ValueError, match="at least 1"):
        Gate(1).limit = limit


@pytest.mark.parametrize("shut", [{"open": False}, {"held": True}])
def test_a_gate_that_is_shut_or_held_has_no_room_and_lets_in_whoever_waits_once_it_is_not(
    shut: dict[str, bool],
) -> None:
    gate = Gate(3)
    for name, value in shut.items():
        setattr(gate, name, value)
    assert not gate.has_room
    visitor = Visitor(gate)
    wait_until(lambda: gate.waiting == 1)
    for name, value in shut.items():
        setattr(gate, name, not value)
    assert visitor.inside.wait(PATIENCE_S)
    visitor.may_go.set()
    visitor.gone.result(PATIENCE_S)
