"""The asyncio face where servers are slow or fail: nobody else waits, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import (
    BadReplyError,
    CallCancelledError,
    CallTimeoutError,
)
from ollama_utils.types import Call, Completion
from search.async_llm import AsyncLLMInterface
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, wait_until


class Slow:
    """A server that answers `Yes.` to "fast" and, once it may, to the rest."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()

    def __call__(self, body: dict[str, Any]) -> tuple[int, object]:
        if body["prompt"] != "fast":
            assert self.may_answer.wait(PATIENCE_S)
        return 200, SAID


async def until(state: Any) -> None:  # noqa: ANN401 - a function without arguments
    """Come back when it holds."""
    end_s = time.monotonic() + PATIENCE_S
    while not state():
        assert time.monotonic() < end_s, "the state did not come"
        await asyncio.sleep(0.001)


def test_the_event_loop_goes_on_while_servers_are_slow_and_each_place_is_used() -> None:
    slow = Slow()

    async def play(llm: AsyncLLMInterface) -> list[Completion]:
        batch = asyncio.create_task(llm.batch_generate([f"slow {i}" for i in range(200)]))
        await until(lambda: len(server.bodies) == 40)
        assert llm.metrics.in_flight == 40
        slow.may_answer.set()
        return await batch

    async def main() -> list[Completion]:
        async with AsyncLLMInterface(dispatcher, model="m", max_concurrent_requests=40) as llm:
            return await play(llm)

    with ScriptedServer(slow) as server, Dispatcher([server.host], max_in_flight=50) as dispatcher:
        assert [completion.text for completion in asyncio.run(main())] == ["Yes."] * 200


def test_what_is_known_or_under_way_waits_behind_nobody() -> None:
    slow = Slow()

    async def main() -> None:
        async with AsyncLLMInterface(dispatcher, model="m", max_concurrent_requests=1) as llm:
            assert (await llm.generate("fast")).attempts == 1
            batch = asyncio.create_task(
                llm.batch_generate(["slow"] * 100 + [f"slow {i}" for i in range(100)])
            )
            await until(lambda: len(server.bodies) == 2)
            again = await llm.generate("fast")
            assert (again.text, again.cached, again.attempts) == ("Yes.", True, 0)
            slow.may_answer.set()
            assert sum(completion.attempts for completion in await batch) == 101

    with ScriptedServer(slow) as server, Dispatcher([server.host], max_in_flight=4) as dispatcher:
        asyncio.run(main())


def test_what_fails_for_good_stands_in_its_place_and_is_counted() -> None:
    def handler(body: dict[str, Any]) -> tuple[int, object]:
        if body["prompt"] == "hang":
            hung.wait(PATIENCE_S)
        return 200, b"<html>" if body["prompt"] == "malformed" else SAID

    async def main() -> list[Completion]:
        async with AsyncLLMInterface(dispatcher, model="m") as llm:
            completions = await llm.batch_generate(["a", "malformed", "hang", "b", "hang", "malformed"])
            metrics = llm.metrics
            assert (metrics.calls, metrics.errors) == (6, 4)
            # An equal call shares the failure of one that is under way, and comes to one of its own after it.
            assert metrics.retries + metrics.saved == 4
            return completions

    hung = threading.Event()
    with (
        ScriptedServer(handler) as server,
        Dispatcher([server.host], attempts=2, backoff_s=0.001, timeout_s=0.5) as dispatcher,
    ):
        completions = asyncio.run(main())
        hung.set()
    errors = [type(completion.error) for completion in completions]
    none = type(None)
    assert errors == [none, BadReplyError, CallTimeoutError, none, CallTimeoutError, BadReplyError]
    assert [completion.text for completion in completions] == ["Yes.", "", "", "Yes.", "", ""]


def test_a_task_that_is_cancelled_harms_no_other_and_keeps_no_place() -> None:
    slow = Slow()

    async def main() -> None:
        async with AsyncLLMInterface(dispatcher, model="m", max_concurrent_requests=2) as llm:
            alone = asyncio.create_task(llm.generate("alone"))
            first = asyncio.create_task(llm.generate("both"))
            await until(lambda: len(server.bodies) == 2)
            second = asyncio.create_task(llm.generate("both"))
            batch = asyncio.create_task(llm.batch_generate([f"never {i}" for i in range(500)]))
            await asyncio.sleep(0.05)
            for task in (alone, first, batch):
                task.cancel()
            await asyncio.wait((alone, first, batch))
            assert all(task.cancelled() for task in (alone, first, batch))
            slow.may_answer.set()
            assert (await second).text == "Yes."
            assert (await llm.generate("after")).text == "Yes."
            await until(lambda: llm.metrics.in_flight == 0)
            assert len(server.bodies) < 100, "most of what nobody waits for is not sent"

    with ScriptedServer(slow) as server, Dispatcher([server.host], max_in_flight=4) as dispatcher:
        asyncio.run(main())


def test_closing_waits_for_no_server_and_tells_those_who_wait() -> None:
    slow = Slow()

    def threads() -> int:
        return sum(thread.name.startswith("async-") for thread in threading.enumerate())

    async def main() -> list[Completion]:
        async with AsyncLLMInterface(dispatcher, model="m", max_concurrent_requests=2) as llm:
            batch = asyncio.create_task(llm.batch_generate([f"slow {i}" for i in range(50)]))
            await until(lambda: len(server.bodies) == 2)
        late = await llm.generate("late")
        return [*await batch, late]

    wait_until(lambda: threads() == 0)
    with ScriptedServer(slow) as server, Dispatcher([server.host], max_in_flight=4) as dispatcher:
        for completion in asyncio.run(main()):
            assert isinstance(completion.error, CallCancelledError)
        wait_until(lambda: threads() <= 2)
        assert len(server.bodies) == 2
        slow.may_answer.set()
        wait_until(lambda: threads() == 0)
        assert dispatcher.generate(Call(model="m", prompt="fast")).text == "Yes.", "the dispatcher goes on"
