"""The clock: first come, first served, ends that are exact however late the loop wakes."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine import TOKEN_S, BusyError, Engine, Turn
from simulator.settings import Settings

T = TypeVar("T")

TOKENS = st.integers(0, 200)
MODEL, OTHER, EMBEDS = "a:latest", "b:latest", "e:latest"


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to what is due next, and `late_s` beyond it, as one that is busy."""

    def __init__(self, late_s: float = 0.0) -> None:
        super().__init__()
        self._now_s = 0.0
        select = self._selector.select  # type: ignore[attr-defined]  # the loop's own

        def jump(timeout: float | None) -> list[Any]:
            if timeout:
                self._now_s += timeout + late_s
            return list(select(0))

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now_s


def played(
    main: Callable[[Engine], Coroutine[Any, Any, T]], late_s: float = 0.0, **settings: Any
) -> T:
    """What `main` returns, in virtual time."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(late_s)) as runner:

        async def run() -> T:
            clock = asyncio.get_running_loop().time
            return await main(Engine(Settings(**settings), clock, frozenset({EMBEDS})))

        return runner.run(run())


async def call(
    engine: Engine, tokens: int, arrives_s: float = 0.0, model: str = MODEL, num_ctx: int = 4096
) -> Turn:
    """One call, from its arrival to its end."""
    await asyncio.sleep(arrives_s)
    arrived_s = engine.now_s()
    async with engine.turn(model, num_ctx, 0, tokens, arrived_s) as turn:
        pass
    return turn


async def at_once(*calls: Coroutine[Any, Any, Turn]) -> list[Turn]:
    return await asyncio.gather(*calls)


def expected(slots: int, calls: list[tuple[float, int]]) -> list[tuple[float, float]]:
    """Starts and ends on so many slots, each taken by the call that came first."""
    free = [0.0] * slots
    ends = []
    for arrives_s, tokens in calls:
        started_s = max(arrives_s, heapq.heappop(free))
        ends.append((started_s, started_s + tokens * TOKEN_S))
        heapq.heappush(free, ends[-1][1])
    return ends


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 1000), TOKENS), max_size=12, unique_by=lambda each: each[0]),
)
def test_calls_are_served_first_come_first_served_and_no_slot_idles(
    slots: int, arrivals: list[tuple[int, int]]
) -> None:
    calls = [(arrives_ms / 1e3, tokens) for arrives_ms, tokens in sorted(arrivals)]

    async def main(engine: Engine) -> tuple[list[Turn], float]:
        turns = await at_once(*(call(engine, n, s) for s, n in calls))
        return turns, engine.stats()["busy_slot_s"]

    turns, busy_s = played(main, slots=slots)
    found = [moment for turn in turns for moment in (turn.started_s, turn.due_s)]
    assert found == pytest.approx([m for ends in expected(slots, calls) for m in ends], abs=1e-9)
    assert busy_s == pytest.approx(sum(tokens for _, tokens in calls) * TOKEN_S)
    assert sum(turn.due_s - turn.started_s for turn in turns) == pytest.approx(busy_s)


@given(st.integers(1, 5), st.lists(TOKENS, min_size=1, max_size=12), st.floats(0, 3))
def test_ends_are_exact_however_late_the_loop_wakes(
    slots: int, lengths: list[int], late_s: float
) -> None:
    async def main(engine: Engine) -> list[Turn]:
        return await at_once(*(call(engine, tokens) for tokens in lengths))

    turns = played(main, late_s, slots=slots)
    wanted = expected(slots, [(0.0, tokens) for tokens in lengths])
    assert [turn.due_s for turn in turns] == pytest.approx([end_s for _, end_s in wanted], abs=1e-9)


def test_a_queue_on_one_slot_takes_its_sum_while_the_real_loop_is_blocked_half_of_the_time() -> (
    None
):
    async def main() -> float:
        clock = asyncio.get_running_loop().time
        engine = Engine(Settings(), clock, frozenset())

        async def block() -> None:
            while True:
                time.sleep(0.02)  # noqa: ASYNC251 - that is the point
                await asyncio.sleep(0.02)

        blocking = asyncio.create_task(block())
        turns = await asyncio.gather(*(call(engine, 2) for _ in range(50)))
        blocking.cancel()
        return turns[-1].due_s - turns[0].started_s

    assert asyncio.run(main()) == pytest.approx(50 * 2 * TOKEN_S, abs=1e-9)


def test_who_leaves_frees_the_slot_or_the_place_in_line_at_once() -> None:
    async def main(engine: Engine) -> tuple[float, float, float]:
        held = asyncio.create_task(call(engine, 100))
        waits = asyncio.create_task(call(engine, 100))
        last = asyncio.create_task(call(engine, 10))
        await asyncio.sleep(0.1)
        waits.cancel()
        held.cancel()
        turn = await last
        return turn.started_s, turn.due_s, engine.stats()["busy_slot_s"]

    assert played(main) == pytest.approx((0.1, 0.14, 0.14))


def test_models_load_one_at_a_time_and_the_least_recently_used_goes() -> None:
    async def main(engine: Engine) -> tuple[list[float], int, list[str]]:
        turns = await at_once(
            call(engine, 50), call(engine, 50, model=OTHER), call(engine, 0, model=EMBEDS)
        )
        turns.append(await call(engine, 0))
        loaded = [turn.loaded_s for turn in turns]
        return loaded, engine.stats()["loads"], list(engine.runners)

    # The third waits for the first's end at 1.2 s, whose model makes room; the fourth for a load.
    loaded, loads, there = played(main, load_s=1.0, max_loaded_models=2)
    assert loaded == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert (loads, there) == (4, [EMBEDS, MODEL])


def test_a_busy_model_makes_room_when_its_calls_have_ended() -> None:
    async def main(engine: Engine) -> list[float]:
        turns = await at_once(call(engine, 1000), call(engine, 1, 0.5, OTHER))
        return [turns[0].due_s, turns[1].loaded_s]

    assert played(main, load_s=1.0, max_loaded_models=1) == pytest.approx([5.0, 6.0])


def test_another_context_loads_a_model_anew() -> None:
    async def main(engine: Engine) -> int:
        for num_ctx in (4096, 512, 512, 4096):
            await call(engine, 1, num_ctx=num_ctx)
        return int(engine.stats()["loads"])

    assert played(main) == 3


def test_the_queue_for_loading_takes_so_many_and_refuses_the_next() -> None:
    async def main(engine: Engine) -> list[Any]:
        calls = (call(engine, 1, model=f"m{number}") for number in range(5))
        return await asyncio.gather(*calls, return_exceptions=True)

    ended = played(main, load_s=1.0, max_queue=3)
    assert [isinstance(each, BusyError) for each in ended] == [False] * 3 + [True] * 2


def test_what_stood_still_goes_on_where_it_was() -> None:
    async def main(engine: Engine) -> tuple[list[float], float]:
        calls = [asyncio.create_task(call(engine, 25)) for _ in range(2)]
        await asyncio.sleep(0.05)
        engine.stop()
        await asyncio.sleep(2)
        engine.go_on()
        due_s = [(await each).due_s for each in calls]
        return due_s, asyncio.get_running_loop().time()

    due_s, ended_s = played(main)  # the server's clock stands still, too
    assert due_s == pytest.approx([0.1, 0.2])
    assert ended_s == pytest.approx(2.2)


def test_counting_from_zero_counts_calls_under_way_from_then_on() -> None:
    async def main(engine: Engine) -> tuple[float, float]:
        under_way = asyncio.create_task(call(engine, 50))
        await asyncio.sleep(0.15)
        engine.reset()
        before_s = engine.stats()["busy_slot_s"]
        await under_way
        return before_s, engine.stats()["busy_slot_s"]

    assert played(main) == pytest.approx((0.0, 0.05))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"slots": 0}, "slots must be from 1 to 65536, got 0"),
        ({"time_scale": -1.0}, "time_scale must be from 0"),
        ({"time_scale": float("nan")}, "time_scale must be from 0"),
        ({"port": 70_000}, "port must be from 0 to 65535, got 70000"),
        ({"reply_tokens": "few"}, "reply tokens must be such as '64'"),
        ({"reply_tokens": "lognormal:mean=0,sigma=1"}, "mean from 1"),
        ({"reply_tokens": "lognormal:mean=9"}, "reply tokens must be such as"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Settings(**given)
