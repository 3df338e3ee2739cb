"""The law of the limits: whatever they do, each caller gets its own reply, once."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.limits import MaxInFlight
from ollama_utils.types import Call
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, start

milliseconds = st.integers(0, 4)
limits = st.just("auto") | st.integers(1, 5)
calls = st.lists(
    st.fixed_dictionaries(
        {
            "service": milliseconds,
            "pause": milliseconds,
            "model": st.sampled_from("ab"),
            "queued": milliseconds,
            "limit": st.none() | st.integers(1, 6),
        }
    ),
    min_size=1,
    max_size=24,
)


@settings(max_examples=25)
@given(calls=calls, limit=limits)
def test_no_reply_is_lost_doubled_or_given_to_another_caller(
    calls: list[dict[str, Any]], limit: MaxInFlight
) -> None:
    """Whatever the calls take and report, in whatever order they come, wherever the limits are moved."""

    def handler(body: dict[str, Any]) -> tuple[int, object]:
        call = calls[int(body["prompt"])]
        time.sleep(call["service"] / 1000)
        served_ns = call["service"] * 10**6 + 1
        total_ns = served_ns + call["queued"] * 10**6
        timings = {"eval_count": 1, "eval_duration": served_ns, "total_duration": total_ns}
        return 200, SAID | timings | {"response": f"{body['model']} {body['prompt']}"}

    with (
        ScriptedServer(handler) as server,
        Dispatcher([server.host], max_in_flight=limit, cache_size=0) as dispatcher,
    ):
        asked = []
        for number, call in enumerate(calls):
            question = Call(model=call["model"], prompt=str(number))
            asked.append(start(lambda question=question: dispatcher.generate(question)))  # type: ignore[misc]  # a default in a lambda
            if call["limit"]:
                dispatcher._fleet._servers[server.host].gate(call["model"]).limit = call["limit"]
            time.sleep(call["pause"] / 1000)
        texts = [reply.result(PATIENCE_S).text for reply in asked]
    assert texts == [f"{call['model']} {number}" for number, call in enumerate(calls)]
    assert Counter(body["prompt"] for body in server.bodies) == Counter(map(str, range(len(calls))))


def test_the_time_of_a_call_does_not_count_while_those_sent_before_it_are_answered() -> None:
    with (
        EmbeddedServer(Settings(slots=1, reply_tokens="60")) as server,
        Dispatcher([server.host], max_in_flight=10, timeout_s=1.5, attempts=1) as dispatcher,
    ):
        began_s = time.monotonic()
        prompts = [f"Tell me about the number {number}." for number in range(10)]
        calls = [Call(model="sim-target", prompt=prompt) for prompt in prompts]
        asked = [start(partial(dispatcher.generate, call)) for call in calls]
        replies = [reply.result(PATIENCE_S) for reply in asked]
        assert [reply.error for reply in replies] == [None] * 10
        assert time.monotonic() - began_s > 1.5
