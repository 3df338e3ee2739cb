"""Slots and time: laws that hold however fast the machine is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ollama_utils.simulator.counters import Counters
from ollama_utils.simulator.engine import Engine, Slots, Turn
from ollama_utils.simulator.profiles import PROFILES

SCALE = 0.01


def _run(play: Callable[[Engine, Counters], Awaitable[None]], slots: int = 3) -> None:
    async def scene() -> None:
        clock = asyncio.get_running_loop().time
        counters = Counters(clock)
        engine = Engine(
            slots=slots, profile=PROFILES["ideal"], time_scale=SCALE, counters=counters, clock=clock
        )
        await play(engine, counters)

    asyncio.run(scene())


async def _call(engine: Engine, tokens: int, turns: list[Turn]) -> None:
    arrived_s = engine.clock()
    held = engine.turn("m", prompt_tokens=10, reply_tokens=tokens, arrived_s=arrived_s)
    async with held as turn:
        turns.append(turn)
        await engine.sleep_until(turn.due_s)


def test_no_more_calls_than_slots_are_served_at_once_and_in_the_order_of_arrival() -> None:
    async def play(engine: Engine, _counters: Counters) -> None:
        turns: list[Turn] = []
        await asyncio.gather(*(_call(engine, 20 + 7 * (k % 5), turns) for k in range(20)))
        assert [turn.arrived_s for turn in turns] == sorted(turn.arrived_s for turn in turns)
        for turn in turns:
            together = [other for other in turns if other.started_s <= turn.started_s < other.due_s]
            assert len(together) <= 3

    _run(play)


def test_a_waiting_call_begins_at_the_very_moment_a_slot_was_due_to_be_free() -> None:
    async def play(engine: Engine, _counters: Counters) -> None:
        turns: list[Turn] = []
        await asyncio.gather(*(_call(engine, 30, turns) for _ in range(12)))
        due = {turn.due_s for turn in turns}
        assert all(turn.started_s in due for turn in turns[3:])

    _run(play)


def test_a_queue_on_one_slot_takes_the_sum_of_its_services_however_late_the_loop_wakes() -> None:
    async def play(engine: Engine, counters: Counters) -> None:
        turns: list[Turn] = []
        await asyncio.gather(*(_call(engine, 10, turns) for _ in range(30)))
        service_s = (10 * 4e-3 + 10 * 1e-6) * SCALE
        assert turns[-1].due_s - turns[0].started_s == pytest.approx(30 * service_s)
        assert counters.snapshot()["busy_slot_s"] == pytest.approx(30 * service_s)

    _run(play, slots=1)


def test_a_call_takes_four_milliseconds_a_token_whatever_else_is_served() -> None:
    async def play(engine: Engine, _counters: Counters) -> None:
        turns: list[Turn] = []
        await asyncio.gather(*(_call(engine, 25, turns) for _ in range(3)))
        assert all(turn.due_s - turn.decoding_s == pytest.approx(25 * 4e-3 * SCALE) for turn in turns)

    _run(play)


def test_whoever_gives_up_frees_the_slot_or_the_place_in_line() -> None:
    async def play(engine: Engine, counters: Counters) -> None:
        turns: list[Turn] = []
        holder = asyncio.create_task(_call(engine, 10**9, turns))
        waiter = asyncio.create_task(_call(engine, 10**9, turns))
        await asyncio.sleep(0)
        third = asyncio.create_task(_call(engine, 1, turns))
        await asyncio.sleep(0)
        waiter.cancel()
        holder.cancel()
        await third
        assert len(turns) == 2
        assert counters.snapshot()["busy_slot_s"] < 10**9 * 4e-3 * SCALE

    _run(play, slots=1)


def test_a_waiter_that_is_cancelled_as_it_is_admitted_passes_the_slot_on() -> None:
    async def play() -> None:
        slots = Slots(1, asyncio.get_running_loop().time)
        await slots.take()
        waiter = asyncio.create_task(slots.take())
        await asyncio.sleep(0)
        slots.give_back(0.0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        async with asyncio.timeout(10):
            await slots.take()

    asyncio.run(play())


def test_more_slots_admit_at_once_and_fewer_let_calls_finish() -> None:
    async def play() -> None:
        slots = Slots(1, asyncio.get_running_loop().time)
        tasks = [asyncio.create_task(slots.take()) for _ in range(4)]
        await asyncio.sleep(0)
        assert [task.done() for task in tasks] == [True, False, False, False]
        slots.resize(3)
        await asyncio.sleep(0)
        assert [task.done() for task in tasks] == [True, True, True, False]
        slots.resize(1)
        slots.give_back(0.0)
        slots.give_back(0.0)
        await asyncio.sleep(0)
        assert not tasks[3].done()
        slots.give_back(0.0)
        await asyncio.gather(*tasks)

    asyncio.run(play())


def test_a_reset_counts_only_what_is_served_from_then_on() -> None:
    async def play(engine: Engine, counters: Counters) -> None:
        turns: list[Turn] = []
        task = asyncio.create_task(_call(engine, 10**9, turns))
        await asyncio.sleep(0.01)
        counters.reset()
        snapshot = counters.snapshot()
        assert 0 <= snapshot["busy_slot_s"] <= snapshot["window_s"] < engine.clock() - turns[0].started_s
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    _run(play)
