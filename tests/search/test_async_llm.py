"""Calls under one cap, from tasks and threads: order kept, errors in place, no loop held up."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError
from ollama_utils.types import Call, Completion
from search.async_llm import AsyncLLMInterface
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S

MODEL = "sim-target"


class Slow:
    """A server that answers once it may."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()

    def __call__(self, _body: dict[str, Any]) -> tuple[int, object]:
        assert self.may_answer.wait(PATIENCE_S)
        return 200, SAID


async def until(state: Any) -> None:
    """Come back when it holds, while the loop goes on."""
    end_s = time.monotonic() + PATIENCE_S
    while not state():
        assert time.monotonic() < end_s, "the state did not come"
        await asyncio.sleep(0.001)


@settings(max_examples=15)
@given(
    numbers=st.lists(st.integers(0, 12), max_size=30),
    cap=st.integers(1, 10),
    tasks=st.integers(1, 3),
)
def test_replies_are_in_order_under_one_cap_and_equal_prompts_are_one_call(
    simulator: EmbeddedServer, numbers: list[int], cap: int, tasks: int
) -> None:
    simulator.reset_stats()
    prompts = [f"prompt {number}" for number in numbers]

    async def all_of_them(llm: AsyncLLMInterface) -> list[list[Completion]]:
        async with llm:
            return await asyncio.gather(*(llm.batch_generate(prompts) for _ in range(tasks)))

    with Dispatcher([simulator.host]) as dispatcher:
        llm = AsyncLLMInterface(dispatcher, model=MODEL, max_concurrent_requests=cap)
        batches = asyncio.run(all_of_them(llm))
        options = {"temperature": 0, "seed": 0}
        calls = [Call(model=MODEL, prompt=prompt, options=options) for prompt in prompts]
        alone = [dispatcher.generate(call).text for call in calls]
    assert [[reply.text for reply in batch] for batch in batches] == [alone] * tasks
    metrics = llm.metrics
    assert simulator.stats()["calls"] == len(set(numbers))
    assert simulator.stats()["max_in_flight"] <= metrics["max_in_flight"] <= cap
    assert metrics["calls"] == tasks * len(numbers)
    assert metrics["hits"] == metrics["calls"] - len(set(numbers))
    assert (metrics["errors"], metrics["in_flight"]) == (0, 0)


def test_the_event_loop_goes_on_while_servers_are_slow_and_every_place_is_used() -> None:
    slow = Slow()

    async def main() -> list[Completion]:
        async with AsyncLLMInterface(dispatcher, model="m", max_concurrent_requests=40) as llm:
            prompts = ["slow"] * 10 + [f"slow {k}" for k in range(200)]
            batch = asyncio.create_task(llm.batch_generate(prompts))
            await until(lambda: llm.metrics["in_flight"] == 40)
            slow.may_answer.set()
            return await batch

    with ScriptedServer(slow) as server, Dispatcher([server.host], max_in_flight=50) as dispatcher:
        assert [reply.text for reply in asyncio.run(main())] == ["Yes."] * 210


def test_a_cancelled_task_keeps_no_place_and_closing_waits_for_no_server() -> None:
    slow = Slow()

    async def main() -> None:
        llm = AsyncLLMInterface(dispatcher, model="m", max_concurrent_requests=2)
        gone = asyncio.create_task(llm.batch_generate([f"never {k}" for k in range(500)]))
        await until(lambda: len(server.bodies) == 2)
        gone.cancel()
        await asyncio.wait([gone])
        after = asyncio.create_task(llm.generate("after"))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(llm.close)
        assert isinstance((await after).error, CallCancelledError)
        assert len(server.bodies) == 2
        assert isinstance(llm.ask(Call(model="m", prompt="late")).error, CallCancelledError)
        slow.may_answer.set()

    with ScriptedServer(slow) as server, Dispatcher([server.host], max_in_flight=4) as dispatcher:
        asyncio.run(main())
