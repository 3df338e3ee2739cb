"""Candidates: one reply for each system prompt, in order, the same at once as one by one."""

from __future__ import annotations

import pytest

from ollama_utils.dispatcher import Dispatcher
from search import generate_candidates, generate_candidates_parallel
from search.task import bundled_task
from simulator.process import EmbeddedServer
from tests.search.small_world import PROMPTS, SmallModel

QUESTION = bundled_task().problems[0].question
MODEL = "sim-solver"


@pytest.mark.parametrize("max_workers", [None, 1, 7, 20])
def test_parallel_candidates_are_those_of_one_call_after_another_whatever_the_cap(
    dispatcher: Dispatcher, server: EmbeddedServer, max_workers: int | None
) -> None:
    prompts = [f"{prompt} Number {number}." for number in range(3) for prompt in PROMPTS]
    one_by_one = generate_candidates(dispatcher, QUESTION, prompts, model=MODEL)
    server.reset_stats()
    with Dispatcher(dispatcher.hosts) as other:
        at_once = generate_candidates_parallel(
            other, QUESTION, prompts, max_workers=max_workers, model=MODEL
        )
    assert server.stats()["max_in_flight"] <= (max_workers or len(prompts))
    assert at_once == one_by_one
    assert generate_candidates(dispatcher, QUESTION, prompts[::-1], model=MODEL) == one_by_one[::-1]
    assert len(set(one_by_one)) > 1


def test_a_failed_reply_is_none_in_its_place_and_spoils_no_other() -> None:
    model = SmallModel(broken=PROMPTS[1:3])
    replies = generate_candidates_parallel(model, "What is 2 plus 2?", PROMPTS, model="any")
    assert [reply is None for reply in replies] == [False, True, True, False]


@pytest.mark.parametrize(("temperature", "draws"), [(0.7, 3), (0.0, 1)])
def test_equal_prompts_draw_replies_of_their_own_unless_nothing_is_drawn(
    temperature: float, draws: int
) -> None:
    model = SmallModel()
    generate_candidates(model, "1 plus 1", ["Same."] * 3, temperature=temperature, model="any")
    assert len({call.options["seed"] for call in model.calls}) == draws
