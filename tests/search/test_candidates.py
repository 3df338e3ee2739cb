"""Candidates: one reply for each system prompt, in order, the same at once as one by one."""

from __future__ import annotations

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import make_encoder
from ollama_utils.parallel import score_batch_parallel
from scorers.judge import LLMCritic
from search.actors import RidgeCritic
from search.candidates import generate_candidates, generate_candidates_parallel
from search.task import bundled_task
from tests.search.small_world import PROMPTS, SmallModel

QUESTION = bundled_task().problems[0].question
MODEL = "sim-solver"


@pytest.mark.parametrize("max_workers", [None, 1, 7, 20])
def test_parallel_candidates_are_those_of_one_call_after_another_whatever_the_cap(
    dispatcher: Dispatcher, max_workers: int | None
) -> None:
    prompts = [f"{prompt} Number {number}." for number in range(3) for prompt in PROMPTS]
    one_by_one = generate_candidates(dispatcher, QUESTION, prompts, model=MODEL)
    with Dispatcher(dispatcher.hosts) as other:
        at_once = generate_candidates_parallel(
            other, QUESTION, prompts, max_workers=max_workers, model=MODEL
        )
        assert other.max_in_flight_seen <= (max_workers or len(prompts))
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


def test_a_call_carries_what_was_asked_for() -> None:
    model = SmallModel()
    generate_candidates(model, "1 plus 1", ["P"], 64, 0.2, model="m", options={"num_ctx": 512})
    (call,) = model.calls
    assert (call.model, call.prompt, call.system) == ("m", "1 plus 1", "P")
    sent = {name: call.options[name] for name in ("num_predict", "temperature", "num_ctx")}
    assert sent == {"num_predict": 64, "temperature": 0.2, "num_ctx": 512}


def test_a_critic_scores_a_batch_as_it_scores_one_reply_after_another(
    dispatcher: Dispatcher,
) -> None:
    queries = [problem.question for problem in bundled_task().problems[:3]]
    items = [
        (prompt, query, reply)
        for query in queries
        for prompt, reply in zip(
            PROMPTS,
            generate_candidates_parallel(dispatcher, query, PROMPTS, model=MODEL),
            strict=True,
        )
        if reply is not None
    ]
    assert len(items) == len(queries) * len(PROMPTS)
    for critic in (LLMCritic(dispatcher, "sim-judge"), RidgeCritic(make_encoder("hashing"))):
        scores = score_batch_parallel(critic.score, items, max_workers=8)
        assert scores == [critic.score(*item) for item in items]
        assert all(0 <= score <= 1 for score in scores)
