"""The asyncio face: order kept, errors in place, one cap, an event loop that is never held up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import (
    CallCancelledError,
    ModelMissingError,
    ReplyLogError,
)
from ollama_utils.reply_log import ReplyLog
from ollama_utils.types import Call, Completion
from search.async_llm import AsyncLLMInterface
from simulator.process import EmbeddedServer

MODEL = "sim-target"


@pytest.fixture
def server(paced_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    paced_server.reset_stats()
    yield paced_server
    paced_server.set_faults([])


@settings(max_examples=15)
@given(
    numbers=st.lists(st.integers(0, 12), max_size=40),
    cap=st.integers(1, 10),
    tasks=st.integers(1, 3),
)
def test_replies_come_in_order_under_one_cap_and_equal_prompts_are_one_call(
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
        alone = [
            dispatcher.generate(Call(model=MODEL, prompt=prompt, options=options)).text for prompt in prompts
        ]
    assert [[completion.text for completion in batch] for batch in batches] == [alone] * tasks
    stats, metrics = paced_server.stats(), llm.metrics
    assert stats["calls"] == len(set(numbers))
    assert stats["max_in_flight"] <= metrics.max_in_flight <= cap
    assert metrics.calls == tasks * len(numbers)
    assert metrics.hits == metrics.saved == metrics.calls - len(set(numbers))
    assert (metrics.errors, metrics.in_flight) == (0, 0)
    paid = sum(completion.attempts for batch in batches for completion in batch)
    assert paid == len(set(numbers))


def test_a_system_prompt_and_a_seed_make_another_call(server: EmbeddedServer) -> None:
    async def main() -> list[Completion]:
        async with AsyncLLMInterface(dispatcher, model=MODEL, options={"temperature": 1.0}) as llm:
            first = await llm.generate("p")
            same = await llm.generate("p", None, 0)
            assert (same.text, same.cached) == (first.text, True)
            return [
                await llm.generate("p", seed=1),
                *await llm.batch_generate(["p", "p"], ["Be brief.", None]),
            ]

    with Dispatcher([server.host]) as dispatcher:
        assert [completion.cached for completion in asyncio.run(main())] == [False, False, True]
    assert server.stats()["calls"] == 3


@pytest.mark.parametrize(
    "faults",
    [
        [{"kind": "status", "status": 503, "rate": 0.15, "first": 3}],
        *(
            pytest.param(faults, marks=pytest.mark.soak)
            for faults in (
                [{"kind": "garbage", "rate": 0.3}, {"kind": "garbage", "what": "cut", "rate": 0.2}],
                [{"kind": "hang", "rate": 0.1}],
                [
                    {"kind": "drop", "rate": 0.2, "at": "body"},
                    {"kind": "garbage", "what": "wrong_type", "rate": 0.2},
                ],
            )
        ),
    ],
)
def test_faults_that_pass_cost_retries_and_nothing_else(
    server: EmbeddedServer, faults: list[dict[str, object]]
) -> None:
    prompts = [f"prompt {i}" for i in range(40)]

    async def ask(dispatcher: Dispatcher) -> tuple[list[Completion], AsyncLLMInterface]:
        async with AsyncLLMInterface(dispatcher, model=MODEL) as llm:
            return await llm.batch_generate(prompts), llm

    with Dispatcher([server.host]) as dispatcher:
        expected, _ = asyncio.run(ask(dispatcher))
    server.set_faults(faults)
    with Dispatcher([server.host], attempts=30, backoff_s=0.001, timeout_s=2.0) as dispatcher:
        completions, llm = asyncio.run(ask(dispatcher))
        retries = dispatcher.accounts()[MODEL].retries
    assert [completion.text for completion in completions] == [completion.text for completion in expected]
    assert llm.metrics.errors == 0
    assert llm.metrics.retries == retries > 0


def test_it_goes_from_one_event_loop_to_the_next_and_threads_ask_too(server: EmbeddedServer) -> None:
    with Dispatcher([server.host]) as dispatcher:
        llm = AsyncLLMInterface(dispatcher, model=MODEL, max_concurrent_requests=3)
        texts = [asyncio.run(llm.generate("p")).text for _ in range(2)]
        with ThreadPoolExecutor(4) as pool:
            loops = [pool.submit(asyncio.run, llm.batch_generate(["p", f"{i}"])) for i in range(4)]
            asked = pool.submit(llm.ask, Call(model="nobody", prompt="p"))
        assert {loop.result()[0].text for loop in loops} == set(texts)
        assert isinstance(asked.result().error, ModelMissingError)
        llm.close()
        llm.close()
        assert isinstance(llm.ask(Call(model=MODEL, prompt="p")).error, CallCancelledError)
    assert server.stats()["calls"] == 5
    assert server.stats()["max_in_flight"] <= 3


def test_a_reply_that_cannot_be_kept_is_raised_to_each_who_waits(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    with Dispatcher([server.host]) as dispatcher:
        with ReplyLog(tmp_path / "replies.sqlite", digests={}) as closed:
            dispatcher.keep_in(closed)
        llm = AsyncLLMInterface(dispatcher, model=MODEL)
        with pytest.raises(ReplyLogError):
            asyncio.run(llm.batch_generate(["p", "p", "q"]))
        dispatcher.keep_in()
        assert asyncio.run(llm.generate("p")).text
        llm.close()


def test_the_rate_holds_for_the_dispatcher_until_the_end_and_never_raises_its_own(
    server: EmbeddedServer,
) -> None:
    with Dispatcher([server.host], rate_limit_per_minute=1e6) as dispatcher:
        rate = dispatcher.rate
        with pytest.raises(ValueError, match="above 0 a minute"):
            AsyncLLMInterface(dispatcher, model=MODEL, rate_limit_per_minute=0)
        slow, slower, fast = (
            AsyncLLMInterface(dispatcher, model=MODEL, rate_limit_per_minute=most) for most in (5e5, 4e5, 6e6)
        )
        assert rate.per_minute == 4e5
        slow.close()
        assert rate.per_minute == 4e5
        assert asyncio.run(slower.generate("p")).text
        slower.close()
        assert rate.per_minute == 1e6
        fast.close()
        assert rate.per_minute == 1e6


def test_a_rate_that_is_none_is_refused_before_the_embedded_server_starts() -> None:
    with pytest.raises(ValueError, match="above 0 a minute"):
        AsyncLLMInterface(rate_limit_per_minute=-1)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({}, "the model's name"),
        ({"model": "m", "max_concurrent_requests": 0}, "at least 1"),
        ({"model": "m", "timeout_s": 3.0}, "its own timeout_s"),
    ],
)
def test_what_cannot_be_is_an_error_at_once(given_: dict[str, Any], expected: str) -> None:
    with Dispatcher(["http://127.0.0.1:1"]) as dispatcher, pytest.raises(ValueError, match=expected):
        AsyncLLMInterface(dispatcher, **given_)


def test_a_batch_needs_as_many_system_prompts_as_prompts(server: EmbeddedServer) -> None:
    with Dispatcher([server.host]) as dispatcher:
        llm = AsyncLLMInterface(dispatcher, model=MODEL)
        with pytest.raises(ValueError, match="expected 2 system prompts"):
            asyncio.run(llm.batch_generate(["a", "b"], ["c"]))
        with pytest.raises(ValueError, match="a list of prompts"):
            asyncio.run(llm.batch_generate("ab"))
        assert asyncio.run(llm.batch_generate([])) == []
        llm.close()


def test_without_a_dispatcher_the_embedded_server_answers_and_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> Dispatcher:
        async with AsyncLLMInterface(max_concurrent_requests=4, timeout_s=30.0) as llm:
            assert llm.metrics.calls == 0
            completions = await llm.batch_generate(["What is 2 + 3?", "What is 4 + 5?"])
            assert all(completion.text for completion in completions)
            assert llm.metrics.calls == 2
            assert llm._pool is not None
            return llm._pool.dispatcher

    with caplog.at_level(logging.WARNING, "search"):
        dispatcher = asyncio.run(main())
    (record,) = caplog.records
    assert "embedded server at http://127.0.0.1" in record.getMessage()
    assert record.getMessage().endswith("answers, at 0.1 of its time")
    completion = dispatcher.generate(Call(model="sim-solver", prompt="p"))
    assert isinstance(completion.error, CallCancelledError)


def test_what_was_never_used_starts_nothing_and_closes() -> None:
    async def main() -> Completion:
        async with AsyncLLMInterface() as llm:
            pass
        return await llm.generate("late")

    assert isinstance(asyncio.run(main()).error, CallCancelledError)
