"""Virtual time on an event loop, whose own clock leaps: laws that hold however late it wakes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

import pytest

from simulator.counters import Counters
from simulator.engine import Call, Engine, Limits, Model, Turn
from simulator.profiles import PROFILES, Pace
from tests.simulator.leaping import run
from tests.simulator.virtual import Scene


def _run(
    play: Callable[[Engine, Counters], Awaitable[None]],
    slots: int = 3,
    profile: str = "ideal",
    scale: float = 1.0,
    late_s: float = 0.0,
) -> None:
    async def scene() -> None:
        clock = asyncio.get_running_loop().time
        counters = Counters(clock)
        engine = Engine(
            pace=Pace(profile=PROFILES[profile], time_scale=scale),
            limits=Limits(slots=slots),
            models=defaultdict(Model),
            counters=counters,
            clock=clock,
        )
        await play(engine, counters)

    run(scene(), late_s=late_s)


LATE = pytest.mark.parametrize("late_s", [0.0, 0.3])


async def _call(engine: Engine, tokens: int, turns: list[Turn]) -> None:
    call = Call(model="m", prompt_tokens=10, reply_tokens=tokens)
    async with engine.turn(call, arrived_s=engine.clock()) as turn:
        turns.append(turn)
        await engine.written(turn, tokens)


def test_no_more_calls_than_slots_are_served_at_once_and_in_the_order_of_arrival() -> None:
    async def play(engine: Engine, _counters: Counters) -> None:
        turns: list[Turn] = []
        await asyncio.gather(*(_call(engine, 20 + 7 * (k % 5), turns) for k in range(20)))
        assert [turn.arrived_s for turn in turns] == sorted(turn.arrived_s for turn in turns)
        for turn in turns:
            together = [other for other in turns if other.started_s <= turn.started_s < other.due_s]
            assert len(together) <= 3

    _run(play)


@LATE
def test_a_waiting_call_begins_at_the_very_moment_a_slot_was_due_to_be_free(late_s: float) -> None:
    async def play(engine: Engine, _counters: Counters) -> None:
        turns: list[Turn] = []
        await asyncio.gather(*(_call(engine, 30, turns) for _ in range(12)))
        due = {turn.due_s for turn in turns}
        assert all(turn.started_s in due for turn in turns[3:])

    _run(play, late_s=late_s)


@LATE
def test_a_queue_on_one_slot_takes_the_sum_of_its_services_however_late_the_loop_wakes(
    late_s: float,
) -> None:
    async def play(engine: Engine, counters: Counters) -> None:
        turns: list[Turn] = []
        await asyncio.gather(*(_call(engine, 10, turns) for _ in range(30)))
        service_s = 10 * 4e-3 + 10 * 1e-6
        assert turns[-1].due_s - turns[0].started_s == pytest.approx(30 * service_s)
        assert counters.snapshot()["busy_slot_s"] == pytest.approx(30 * service_s)

    _run(play, slots=1, late_s=late_s)


@LATE
def test_a_call_takes_four_milliseconds_a_token_whatever_else_is_served(late_s: float) -> None:
    async def play(engine: Engine, _counters: Counters) -> None:
        turns: list[Turn] = []
        await asyncio.gather(*(_call(engine, 25, turns) for _ in range(3)))
        assert all(turn.decode_s == pytest.approx(25 * 4e-3) for turn in turns)

    _run(play, late_s=late_s)


@LATE
def test_calls_on_a_machine_share_its_steps(late_s: float) -> None:
    async def play(engine: Engine, _counters: Counters) -> None:
        turns: list[Turn] = []
        await asyncio.gather(*(_call(engine, 40, turns) for _ in range(8)))
        assert [turn.decode_s for turn in turns] == pytest.approx([40 * 8 / 584] * 8)

    _run(play, slots=8, profile="rtx3090", late_s=late_s)


@pytest.mark.parametrize("profile", PROFILES)
def test_without_time_every_call_is_answered_before_the_loop_turns(profile: str) -> None:
    async def play(engine: Engine, counters: Counters) -> None:
        turns: list[Turn] = []
        with pytest.raises(StopIteration):
            _call(engine, 64, turns).send(None)
        assert turns[0].total_s == 0
        assert counters.snapshot()["decode_tokens"] == 64

    _run(play, profile=profile, scale=0)


def test_a_handler_hears_of_the_tokens_it_waits_for_and_more_than_all_is_the_end() -> None:
    async def play(engine: Engine, _counters: Counters) -> None:
        call = Call(model="m", reply_tokens=20)
        async with engine.turn(call, arrived_s=engine.clock()) as turn:
            for tokens in (1, 5, 5, 19.5, 20, 21, 99):
                await engine.written(turn, tokens)
                due_s = turn.decoding_s + min(tokens, 20) * 4e-3
                assert engine.clock() >= due_s - 1e-9
            assert turn.due_s == pytest.approx(due_s, abs=1e-9)

    _run(play)


def test_whoever_gives_up_frees_the_slot_or_the_place_in_line() -> None:
    async def play(engine: Engine, counters: Counters) -> None:
        turns: list[Turn] = []
        holder = asyncio.create_task(_call(engine, 10**9, turns))
        waiter = asyncio.create_task(_call(engine, 10**9, turns))
        await asyncio.sleep(0)
        third = asyncio.create_task(_call(engine, 1, turns))
        await asyncio.sleep(0)
        assert engine.waiting() == {"waiting_for_load": 0, "waiting_for_slot": 2}
        waiter.cancel()
        holder.cancel()
        await third
        assert len(turns) == 2
        assert counters.snapshot()["busy_slot_s"] == pytest.approx(turns[1].total_s)

    _run(play, slots=1)


def test_a_waiter_that_is_cancelled_as_it_is_admitted_passes_the_slot_on() -> None:
    async def play(engine: Engine, _counters: Counters) -> None:
        turns: list[Turn] = []
        first, second, third = (asyncio.create_task(_call(engine, 10**9, turns)) for _ in range(3))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)  # the slot is the second's, which does not know it yet
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert engine.waiting() == {"waiting_for_load": 0, "waiting_for_slot": 0}
        await asyncio.sleep(0)
        assert len(turns) == 2
        third.cancel()
        await asyncio.gather(third, return_exceptions=True)

    _run(play, slots=1)


def test_whoever_gives_up_while_its_model_loads_leaves_nothing_behind() -> None:
    async def play(engine: Engine, counters: Counters) -> None:
        turns: list[Turn] = []
        tasks = [asyncio.create_task(_call(engine, 1, turns)) for _ in range(2)]
        tasks.append(asyncio.create_task(engine.load(Call(model="other"))))
        await asyncio.sleep(0)
        assert engine.waiting() == {"waiting_for_load": 3, "waiting_for_slot": 0}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert engine.waiting() == {"waiting_for_load": 0, "waiting_for_slot": 0}
        assert engine.loaded_models() == []
        assert counters.snapshot()["loads"] == 0

    _run(play, profile="cpu16", scale=1000)


def test_a_model_that_is_loaded_without_words_is_there_and_can_be_sent_away() -> None:
    async def play(engine: Engine, counters: Counters) -> None:
        await engine.load(Call(model="m", keep_alive_s=77))
        (resident,) = engine.loaded_models()
        assert (resident.model, resident.num_ctx) == ("m", 4096)
        assert resident.stays_s == pytest.approx(77)
        engine.unload("m")
        engine.unload("nobody")
        assert engine.loaded_models() == []
        assert counters.snapshot()["loads"] == 1

    _run(play, profile="rtx4090", scale=1e-3)


def test_a_reset_counts_only_what_is_served_from_then_on() -> None:
    async def play(engine: Engine, counters: Counters) -> None:
        turns: list[Turn] = []
        task = asyncio.create_task(_call(engine, 10**9, turns))
        await asyncio.sleep(5)
        counters.reset()
        await asyncio.sleep(7)
        snapshot = counters.snapshot()
        assert [snapshot["busy_slot_s"], snapshot["window_s"]] == pytest.approx([7, 7])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    _run(play)


def test_a_model_that_only_embeds_has_one_slot_whatever_is_set() -> None:
    scene = Scene("rtx3090", slots=8, models={"embed": Model(one_slot=True)})
    for model in ("embed", "words"):
        for _ in range(8):
            scene.call(model, prompt_tokens=1000)
    scene.agenda.at(0.9, lambda: scene.server.resize(16))
    turns = scene.run(60)
    assert len({turn.started_s for turn in turns[:8]}) == 8
    assert len({turn.started_s for turn in turns[8:]}) == 1
