"""Models that do not fit together take turns: fewer swaps, nobody starves, nobody waits for ever."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.errors import CallCancelledError
from ollama_utils.swaps import Swaps
from ollama_utils.types import Call, Usage
from simulator.agenda import Agenda
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.alone import Alone
from tests.ollama_utils.roles import Roles, VirtualGate, only, steps
from tests.ollama_utils.threads import PATIENCE_S, start, wait_until
from tests.simulator.virtual import Scene

CALLS = 1000
ROLES = ("mutator", "target", "judge")
SWAP_S = 2.0  # on the profile rtx4090: 1 s until the memory is free, 1 s for 4 GB


def lanes(number: int, **drawn: Any) -> list[Iterator[tuple[str, int]]]:  # noqa: ANN401 - of `steps`
    return [steps(lane, **drawn) for lane in range(number)]


def world(
    lanes: list[Iterator[tuple[str, int]]], *, slots: int = 1, grouped: bool = True, models: int = 1
) -> Roles:
    """Lanes at a server with room for so many models."""
    scene = Scene("rtx4090", max_loaded_models=models, slots=slots)
    return Roles(scene, dict.fromkeys(ROLES, slots), lanes, grouped=grouped)


@pytest.mark.parametrize(
    ("fewer", "slots", "drawn"),
    [
        (8, 1, {}),
        (8, 1, {"rule_share": 0.3}),
        (8, 1, {"judge": True}),
        (6, 16, {"judge": True, "rule_share": 0.3}),
    ],
    ids=["two roles", "some by rule", "three roles", "three roles, 16 slots"],
)
def test_turns_save_most_of_the_swaps_and_two_thirds_of_the_time(
    fewer: int, slots: int, drawn: dict[str, Any]
) -> None:
    plain, turns = (world(lanes(16, **drawn), slots=slots, grouped=each).run(CALLS) for each in (False, True))
    assert plain.scene.counters.swaps >= fewer * turns.scene.counters.swaps
    assert plain.now_s >= 3 * turns.now_s


def test_models_that_fit_together_never_take_turns() -> None:
    played = world(lanes(16, judge=True), slots=4, models=3)
    for calls in range(1, 300):
        played.run(calls)
        assert not played.swaps.taking_turns


def test_a_role_that_is_never_done_lets_another_have_its_turn() -> None:
    played = world([*lanes(4, rule_share=0.3), *(only("target", each) for each in range(4))], slots=2)
    displace(played.swaps)
    for calls in range(1, CALLS):
        played.run(calls)
        assert sum(gate.in_flight > 0 for gate in played.gates.values()) <= 1
    waits_s = played.gates["mutator"].waits_s
    assert len(waits_s) >= 4 * (played.now_s // (42 * SWAP_S))
    assert max(waits_s) < 22 * SWAP_S  # a turn, its last calls, a swap


def test_a_role_with_few_callers_has_its_turn_when_two_with_many_are_never_done() -> None:
    many = [only(role, each) for role in ("mutator", "target") for each in range(12)]
    played = world([*lanes(6, judge=True), *many], slots=4)
    displace(played.swaps, ROLES)
    played.run(3 * CALLS)
    waits_s = played.gates["judge"].waits_s
    assert len(waits_s) >= 2 * 6
    assert max(waits_s) < 44 * SWAP_S


def test_a_few_lanes_that_go_on_do_not_keep_the_slots_from_many_that_wait() -> None:
    played = world([*lanes(13, rule_share=0.3), *(only("target", each) for each in range(3))], slots=16)
    displace(played.swaps)
    played.run(CALLS)
    assert max(played.gates["mutator"].waits_s) < 5 * SWAP_S


def test_a_turn_that_was_too_long_is_followed_by_another_model_s_however_few_call_it() -> None:
    busy = [
        Visitor(model="target", at_s=4.0 * k, service_s=4.0, load_s=0.0, fails=True, patience_s=1e6)
        for k in range(40)
    ]
    first = Visitor(model="target", at_s=0.0, service_s=4.0, load_s=0.0, fails=True, patience_s=1e6)
    late = replace(first, model="mutator", at_s=61.0)
    crowd = Crowd([first, *busy, late], limit=1)
    displace(crowd.swaps)
    crowd.agenda.advance(1e3)
    assert crowd.admitted.index(late) < 20


def test_models_that_turn_out_to_fit_stop_taking_turns() -> None:
    played = world(lanes(16), slots=4, models=2)
    displace(played.swaps)
    played.run(200)
    assert not played.swaps.taking_turns
    assert all(gate.open for gate in played.gates.values())


def displace(swaps: Swaps, models: Sequence[str] = ("mutator", "target")) -> None:
    """Make known that these models do not fit together."""
    for k, model in enumerate([*models, *models]):
        swaps.came(model)
        swaps.left(model, 4.0 * k - 400, 4.0 * k - 396, Usage(load_s=3.0, total_s=4.0, decode_s=1.0))
    assert swaps.taking_turns == set(models)


@dataclass(frozen=True, kw_only=True)
class Visitor:
    """A call, and what comes of it."""

    model: str
    at_s: float
    service_s: float
    load_s: float
    fails: bool
    """Then the server reports nothing."""
    patience_s: float
    """So long it waits to be let in."""


class Crowd:
    """Visitors whose replies say anything, at gates that Swaps opens and shuts."""

    def __init__(self, visitors: Sequence[Visitor], limit: int) -> None:
        self.agenda = Agenda()
        self.gates = {model: VirtualGate(limit) for model in ROLES}
        self.swaps = Swaps(lambda: self.gates, lambda: self.agenda.now_s)
        self.admitted: list[Visitor] = []
        self.ended: list[Visitor] = []
        for visitor in visitors:
            self.agenda.at(visitor.at_s, partial(self._come, visitor))

    def _come(self, visitor: Visitor) -> None:
        gate, admitted = self.gates[visitor.model], partial(self._send, visitor)
        self.swaps.came(visitor.model)
        gate.enter(admitted)
        self.agenda.at(self.agenda.now_s + visitor.patience_s, partial(self._give_up, visitor, admitted))

    def _give_up(self, visitor: Visitor, admitted: Callable[[], None]) -> None:
        if self.gates[visitor.model].withdraw(admitted):
            self.ended.append(visitor)
            self.swaps.left(visitor.model, None, self.agenda.now_s, None)

    def _send(self, visitor: Visitor) -> None:
        self.admitted.append(visitor)
        sent_s = self.agenda.now_s
        self.agenda.at(sent_s + visitor.load_s + visitor.service_s, partial(self._leave, visitor, sent_s))

    def _leave(self, visitor: Visitor, sent_s: float) -> None:
        self.ended.append(visitor)
        self.gates[visitor.model].leave()
        total_s = visitor.load_s + visitor.service_s
        usage = Usage(load_s=visitor.load_s, decode_s=visitor.service_s, total_s=total_s)
        self.swaps.left(visitor.model, sent_s, self.agenda.now_s, None if visitor.fails else usage)


VISITORS = st.lists(
    st.builds(
        Visitor,
        model=st.sampled_from(ROLES),
        at_s=st.floats(0, 100),
        service_s=st.sampled_from([0.0, 0.1, 3.0, 50.0]),
        load_s=st.sampled_from([0.0, 0.02, 2.0, 9.0]),
        fails=st.booleans(),
        patience_s=st.one_of(st.just(1e6), st.floats(0, 50)),
    ),
    max_size=40,
)


@given(visitors=VISITORS, limit=st.integers(1, 4), known=st.booleans())
def test_whatever_replies_say_every_call_has_its_end_in_order_and_turns_do_not_overlap(
    visitors: list[Visitor], limit: int, *, known: bool
) -> None:
    crowd = Crowd(visitors, limit)
    if known:
        displace(crowd.swaps)
    while (moment_s := crowd.agenda.next_s()) < math.inf:
        crowd.agenda.advance(moment_s)
        turns = crowd.swaps.taking_turns
        opened = [model for model in turns if crowd.gates[model].open]
        assert len(opened) <= 1
        # Somebody is served, or nobody waits.
        assert any(gate.in_flight for gate in crowd.gates.values()) or not any(
            gate.queue for gate in crowd.gates.values()
        )
        # No place is idle while a call waits that has its turn.
        assert all(
            gate.in_flight == gate.limit or not gate.queue
            for model, gate in crowd.gates.items()
            if model not in turns or model in opened
        )
    assert sorted(crowd.ended, key=id) == sorted(visitors, key=id)
    for model in ROLES:
        came_s = [visitor.at_s for visitor in crowd.admitted if visitor.model == model]
        assert came_s == sorted(came_s)


def ask(alone: Alone, model: str, prompt: str) -> str:
    with alone.admit(model) as admission:
        reply = alone.server.client.generate(Call(model=model, prompt=prompt))
        admission.usage = reply.usage
    return reply.text


@pytest.mark.soak
def test_lanes_at_a_server_of_one_model_share_its_swaps() -> None:
    """It has one slot, and is so slow that what lanes do between calls is little to a swap."""
    settings = Settings(profile="rtx4090", max_loaded_models=1, time_scale=0.2, reply_tokens="16")
    with EmbeddedServer(settings) as small, Alone(small.host) as alone:

        def lane(number: int) -> None:
            for step in range(4):
                ask(alone, "sim-target", ask(alone, "sim-mutator", f"Paraphrase: why {number}, {step}?"))

        for done in [start(partial(lane, number)) for number in range(8)]:
            done.result(PATIENCE_S)
        assert alone.server.swaps.taking_turns == {"sim-mutator", "sim-target"}
        assert small.stats()["swaps"] <= 64 / 3


def test_cancelling_wakes_those_at_a_gate_that_is_shut() -> None:
    alone = Alone()
    server = alone.server
    models = ("sim-mutator", "sim-target")
    assert all(server.gate(model).open for model in models)
    displace(server.swaps, models)
    with alone.admit("sim-mutator"):
        waiting = start(partial(ask, alone, "sim-target", "Why?"))
        wait_until(lambda: server.gate("sim-target").waiting == 1)
        assert not server.gate("sim-target").open
        alone.fleet.close()
        assert isinstance(waiting.exception(PATIENCE_S), CallCancelledError)
