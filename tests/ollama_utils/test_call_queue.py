"""The laws of a line, whatever happens to its gates: nobody waits for nothing, and nobody is passed over."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ollama_utils.gates import _SLOWER, CallQueue, Gate, _Waiter

HOSTS = "abcd"
hosts = st.sampled_from(HOSTS)


class LineOfCalls(RuleBasedStateMachine):
    """A line whose gates come, go and change while calls come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.line = CallQueue()
        self.gates: dict[str, Gate] = {}
        self.waiting: list[_Waiter] = []
        self.inside: list[Gate] = []
        self.gone: list[_Waiter] = []
        self.add_gate("a", 1)

    @rule(host=hosts, limit=st.integers(1, 3))
    def add_gate(self, host: str, limit: int) -> None:
        """A server joins."""
        if host not in self.gates:
            self.gates[host] = Gate(limit, host=host, queue=self.line)

    @precondition(lambda self: len(self.gates) > 1)
    @rule(host=hosts)
    def remove_gate(self, host: str) -> None:
        """A server leaves; its calls go on."""
        if host in self.gates:
            self.line.remove(self.gates.pop(host))

    @rule(avoid=st.sets(hosts))
    def come(self, avoid: Collection[str]) -> None:
        """A call comes, as in `CallQueue.enter`, but for the thread that waits."""
        self.waiting.append(_Waiter(avoid))
        with self.line.changed():
            self.line._waiters.append(self.waiting[-1])

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A call is over."""
        self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1))).leave()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def interrupt(self, data: st.DataObject) -> None:
        """Whoever waits is interrupted."""
        self.line._forget(self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1))))

    @rule(
        host=hosts,
        change=st.one_of(
            st.tuples(st.just("limit"), st.integers(1, 3)),
            st.tuples(st.sampled_from(["open", "held"]), st.booleans()),
            st.tuples(st.just("call_s"), st.sampled_from([0.0, 1.0, 3.0, 100.0])),
            st.tuples(st.just("slots"), st.sampled_from([None, 1, 4])),
        ),
    )
    def change(self, host: str, change: tuple[str, object]) -> None:
        """Something about a gate changes; the figures of its calls do so just before one of them leaves."""
        if host in self.gates:
            with self.line.changed():
                setattr(
                    self.gates[host],
                    f"_{change[0]}" if change[0] in _PROPERTIES else change[0],
                    change[1],
                )

    @invariant()
    def first_come_first_served(self) -> None:
        """Among those who would go to the same gates, who came first is served first."""
        for place, waiter in enumerate(self.waiting):
            if waiter.done():
                earlier = [each for each in self.waiting[:place] if each.avoid == waiter.avoid]
                assert all(each.done() for each in earlier)
        served = [waiter for waiter in self.waiting if waiter.done()]
        gates = [waiter.result() for waiter in served]
        assert all(gate in self.gates.values() and gate.open and not gate.held for gate in gates)
        assert all(gate.in_flight <= gate.limit for gate in gates)
        self.inside += gates
        self.waiting = [waiter for waiter in self.waiting if not waiter.done()]
        assert list(self.line._waiters) == self.waiting

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """Who waits found no room, or has a much quicker gate whose calls end soon."""
        there = [gate for gate in self.gates.values() if not gate.held]
        for waiter in self.line._waiters:
            allowed = [gate for gate in there if gate.host not in waiter.avoid] or there
            for gate in allowed:
                quicker = [
                    each
                    for each in allowed
                    if each.in_flight and 0 < _SLOWER * each.call_s < gate.call_s
                ]
                assert not gate.has_room or quicker

    @invariant()
    def all_are_counted(self) -> None:
        """Each gate counts who is inside, and lets in no more than it may."""
        inside = {*self.gates.values(), *self.inside}
        places = self.inside + [waiter.result() for waiter in self.waiting if waiter.done()]
        assert {gate: gate.in_flight for gate in inside} == {
            gate: places.count(gate) for gate in inside
        }

    def teardown(self) -> None:
        """Once all gates are open, everybody is served."""
        for gate in self.gates.values():
            gate.open, gate.held = True, False
        self.first_come_first_served()
        while self.inside:
            self.inside.pop().leave()
            self.first_come_first_served()
        assert not self.waiting


_PROPERTIES = {"limit", "open", "held"}

TestLine = LineOfCalls.TestCase
TestLine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
