"""The gate: never more inside than its limit, and whoever came first goes first."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.errors import CallCancelledError
from ollama_utils.gates import CallQueue, Gate
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


def gates_of_one_line(*limits: int, call_s: Sequence[float] = ()) -> tuple[CallQueue, list[Gate]]:
    """Gates of servers 0, 1, ... that take so many calls at once, each of so many seconds."""
    line = CallQueue()
    gates = [Gate(limit, host=str(place), queue=line) for place, limit in enumerate(limits)]
    for gate, seconds in zip(gates, call_s, strict=False):
        gate.call_s, gate.slots = seconds, gate.limit
    return line, gates


def test_calls_spread_over_the_gates_of_a_line_by_their_places() -> None:
    line, gates = gates_of_one_line(2, 4, 8, 16, call_s=[1.0] * 4)
    for _ in range(30):
        line.enter()
    assert [gate.in_flight for gate in gates] == [2, 4, 8, 16]


def test_who_waits_goes_to_whichever_gate_has_a_place_first() -> None:
    line, (one, other) = gates_of_one_line(1, 1)
    first, second = line.enter(), line.enter()
    assert {first.host, second.host} == {"0", "1"}
    late = start(line.enter)
    wait_until(lambda: line.waiting == 1)
    other.leave()
    assert late.result(PATIENCE_S) is other
    assert one.in_flight == other.in_flight == 1


def test_a_slow_gate_is_left_alone_while_a_quick_one_will_be_free_sooner() -> None:
    line, (quick, slow) = gates_of_one_line(1, 1, call_s=[1.0, 10.0])
    assert line.enter() is quick
    waiting = start(line.enter)
    wait_until(lambda: line.waiting == 1)
    assert slow.in_flight == 0
    quick.leave()
    assert waiting.result(PATIENCE_S) is quick


def test_a_slow_gate_is_used_while_the_backlog_is_longer_than_its_calls_take() -> None:
    line, (quick, slow) = gates_of_one_line(1, 1, call_s=[1.0, 10.0])
    assert line.enter() is quick
    waiting = [start(line.enter) for _ in range(12)]
    wait_until(lambda: slow.in_flight == 1)
    line.close()
    for call in waiting:
        call.exception(PATIENCE_S)


def test_a_slow_gate_is_used_where_the_quick_one_is_away() -> None:
    line, (quick, slow) = gates_of_one_line(1, 1, call_s=[1.0, 10.0])
    quick.held = True
    assert line.enter() is slow


def test_a_host_to_be_avoided_is_used_only_where_there_is_no_other() -> None:
    line, (one, other) = gates_of_one_line(2, 2)
    assert line.enter(avoid=["0"]) is other
    assert line.enter(avoid=["0"]) is other
    late = start(lambda: line.enter(avoid=["0"]))
    wait_until(lambda: line.waiting == 1)
    other.held = True
    assert late.result(PATIENCE_S) is one
    assert line.enter(avoid=["0", "1"]) is one


def test_a_gate_that_leaves_a_line_lets_nobody_in() -> None:
    line, (one, other) = gates_of_one_line(1, 1)
    line.remove(one)
    assert line.enter() is other


def test_a_line_that_ends_with_an_error_raises_it_to_all() -> None:
    line, (gate,) = gates_of_one_line(1)
    gate.held = True
    late = start(line.enter)
    wait_until(lambda: line.waiting == 1)
    line.close(ZeroDivisionError())
    assert isinstance(late.exception(PATIENCE_S), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        line.enter()
