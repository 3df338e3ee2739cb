"""Calls under one cap, from tasks and threads: order kept, errors in place, no loop held up."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import BadReplyError, CallCancelledError
from ollama_utils.types import Call, Completion
from search.async_llm import AsyncLLMInterface
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S

MODEL = "sim-target"


class Slow:
    """A server that answers "fast" at once, "broken" with rubbish, and the rest once it may."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()

    def __call__(self, body: dict[str, Any]) -> tuple[int, object]:
        if body["prompt"] == "broken":
            return 200, b"<html>"
        if body["prompt"] != "fast":
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
    paced_server: EmbeddedServer, numbers: list[int], cap: int, tasks: int
) -> None:
    paced_server.reset_stats()
    prompts = [f"prompt {number}" for number in numbers]

    async def all_of_them(llm: AsyncLLMInterface) -> list[list[Completion]]:
        async with llm:
            return await asyncio.gather(*(llm.batch_generate(prompts) for _ in range(tasks)))

    with Dispatcher([paced_server.host]) as dispatcher:
        llm = AsyncLLMInterface(dispatcher, model=MODEL, max_concurrent_requests=cap)
        batches = asyncio.run(all_of_them(llm))
        options = {"temperature": 0, "seed": 0}
        calls = [Call(model=MODEL, prompt=prompt, options=options) for prompt in prompts]
        alone = [dispatcher.generate(call).text for call in calls]
    assert [[reply.text for reply in batch] for batch in batches] == [alone] * tasks
    metrics = llm.metrics
    assert paced_server.stats()["calls"] == len(set(numbers))
    assert paced_server.stats()["max_in_flight"] <= metrics["max_in_flight"] <= cap
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


def test_a_failure_stands_in_its_place() -> None:
    async def main() -> list[Completion]:
        async with AsyncLLMInterface(dispatcher, model="m") as llm:
            replies = await llm.batch_generate(["fast", "broken", "fast"])
            assert (llm.metrics["calls"], llm.metrics["errors"]) == (3, 1)
            assert llm.metrics["retries"] == 1
            return replies

    with (
        ScriptedServer(Slow()) as server,
        Dispatcher([server.host], attempts=2, backoff_s=0.001) as dispatcher,
    ):
        replies = asyncio.run(main())
    assert [reply.text for reply in replies] == ["Yes.", "", "Yes."]
    assert isinstance(replies[1].error, BadReplyError)


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


def test_a_rate_that_is_refused_leaves_no_server_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    stop = EmbeddedServer.stop

    def stop_and_note(server: EmbeddedServer) -> None:
        stop(server)
        ended.append(server.host)

    monkeypatch.setattr(EmbeddedServer, "stop", stop_and_note)
    with pytest.raises(ValueError, match="-1"):
        AsyncLLMInterface(rate_limit_per_minute=-1)
    assert len(ended) == 1


def test_without_a_dispatcher_the_embedded_server_answers_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> list[Completion]:
        async with AsyncLLMInterface(max_concurrent_requests=4) as llm:
            return await llm.batch_generate(["What is 2 + 3?", "What is 4 + 5?"])

    assert all(reply.text for reply in asyncio.run(main()))
    (record,) = caplog.records
    assert "SIMULATED: " in record.getMessage()
