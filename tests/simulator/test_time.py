"""The clock: first come, first served, ends that are exact however late the loop wakes."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine import TOKEN_S, Engine, Turn
from simulator.settings import Settings, reply_length

T = TypeVar("T")
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
    async with engine.turn(model, num_ctx, 0, tokens, engine.now_s()) as turn:
        pass
    return turn


@given(
    st.integers(1, 5),
    st.dictionaries(st.integers(0, 1000), st.integers(0, 200), min_size=1, max_size=12),
    st.just(0.0) | st.floats(0, 3),
)
def test_calls_take_slots_in_their_order_and_end_exactly_however_late_the_loop_wakes(
    slots: int, tokens_at_ms: dict[int, int], late_s: float
) -> None:
    calls = sorted(tokens_at_ms.items())

    async def main(engine: Engine) -> tuple[list[Turn], float]:
        waiting = [call(engine, tokens, at_ms / 1e3) for at_ms, tokens in calls]
        return await asyncio.gather(*waiting), engine.stats()["busy_slot_s"]

    turns, busy_s = played(main, late_s, slots=slots)
    free_s = [0.0] * slots
    for turn, (_, tokens) in zip(turns, calls, strict=True):
        started_s = max(turn.arrived_s, heapq.heappop(free_s))
        ends = (started_s, started_s + tokens * TOKEN_S)
        assert (turn.started_s, turn.due_s) == pytest.approx(ends, abs=1e-9)
        heapq.heappush(free_s, ends[1])
    assert busy_s == pytest.approx(sum(tokens for _, tokens in calls) * TOKEN_S)


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


def test_models_load_one_at_a_time_and_the_least_recently_used_goes_once_its_calls_ended() -> None:
    async def main(engine: Engine) -> tuple[list[float], list[str]]:
        at_once = await asyncio.gather(
            call(engine, 500), call(engine, 50, model=OTHER), call(engine, 0, model=EMBEDS)
        )
        later = [await call(engine, 0, num_ctx=num_ctx) for num_ctx in (4096, 4096, 512)]
        loaded = [turn.loaded_s for turn in (*at_once, *later)]
        return loaded, list(engine.runners)

    # The third waits for the first's end at 3 s, whose model makes room; the fourth for a load, the
    # fifth for nothing, and the sixth for its model with another context.
    loaded, there = played(main, load_s=1.0, max_loaded_models=2)
    assert loaded == pytest.approx([1.0, 2.0, 4.0, 5.0, 5.0, 6.0])
    assert there == [EMBEDS, MODEL]


def test_a_load_that_waits_for_calls_comes_sooner_when_their_client_leaves() -> None:
    async def main(engine: Engine) -> list[tuple[float, float]]:
        held = asyncio.create_task(call(engine, 2500))
        waiting = [
            asyncio.create_task(call(engine, 5, arrives_s, model))
            for arrives_s, model in ((0.05, OTHER), (0.1, EMBEDS))
        ]
        await asyncio.sleep(0.25)
        held.cancel()
        return [(turn.loaded_s, turn.due_s) for turn in await asyncio.gather(*waiting)]

    ends = played(main, load_s=0.02, max_loaded_models=1)
    assert [*ends[0], *ends[1]] == pytest.approx([0.27, 0.29, 0.31, 0.33])


def test_calls_that_are_due_while_nothing_is_answered_end_when_that_is_over() -> None:
    async def main(engine: Engine) -> float:
        under_way = asyncio.create_task(call(engine, 25))
        await asyncio.sleep(0.05)
        engine.answers.clear()
        await asyncio.sleep(2)
        assert not under_way.done()
        engine.answers.set()
        await under_way
        return engine.now_s()

    assert played(main) == pytest.approx(2.05)


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
        ({"slots": 0}, "slots must be from 1 to 65,536, got 0"),
        ({"slots": 10**9}, "slots must be from 1 to 65,536, got 1000000000"),
        ({"time_scale": float("nan")}, "time_scale must be from 0 to 1,000,000,000, got nan"),
        ({"reply_tokens": "few"}, "reply tokens must be such as '64'"),
        ({"reply_tokens": "6 4"}, "reply tokens must be such as '64'"),
        ({"reply_tokens": "lognormal:mean=0,sigma=1"}, "mean from 1"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Settings(**given)


def test_a_distribution_of_reply_lengths_has_its_parts_in_any_order() -> None:
    drawn = [
        reply_length(spec)(0.3)
        for spec in ("lognormal:mean=64,sigma=0.5", " lognormal: sigma=.5, mean=64.0")
    ]
    assert drawn[0] == drawn[1] < 64
