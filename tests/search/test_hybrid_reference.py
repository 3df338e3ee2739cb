"""The usage examples of the document that the hybrid search re-does, on the embedded simulator."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from ollama_utils.parallel import map_parallel, run_parallel, score_batch_parallel
from scorers.critic import LLMCritic, RidgeCritic
from search.candidates import generate_candidates, generate_candidates_parallel
from search.hybrid import ActorCriticParams, HybridOptimizationFlow
from search.optimizing.actors import PolicyActor
from search.optimizing.prompts import PromptPopulation
from search.task import SEED_INSTRUCTIONS, bundled_task

MODEL = "sim-solver"
PROBLEMS = bundled_task().problems


def test_a_flow_with_parallel_evaluation(dispatcher: Dispatcher, encoder: Encoder) -> None:
    flow = HybridOptimizationFlow(
        dispatcher,
        PromptPopulation([SEED_INSTRUCTIONS]),
        PolicyActor(encoder),
        LLMCritic(dispatcher, "sim-judge"),
        parallel_eval=True,
        max_workers=4,
        model=MODEL,
    )
    result = flow.step(
        PROBLEMS[0].question, human_feedback=1.0, coherence=0.5, tokens_used=30, safety_penalty=0.0
    )
    assert len(result.candidates) == 5
    assert None not in result.candidates
    assert result.reward is not None
    assert 1 < dispatcher.max_in_flight_seen <= 4


def test_the_configuration_is_passed_through(dispatcher: Dispatcher) -> None:
    params = ActorCriticParams(parallel_eval=True, max_workers=4)
    assert (params.num_candidates, params.update_interval, params.exploration) == (5, 10, 0.1)
    flow = HybridOptimizationFlow.from_params(params, dispatcher, model=MODEL)
    assert len(flow.step(PROBLEMS[0].question).candidates) == 5
    assert 1 < dispatcher.max_in_flight_seen <= 4


@pytest.mark.parametrize("max_workers", [None, 1, 4])
def test_parallel_generation_has_the_order_of_the_system_prompts(
    dispatcher: Dispatcher, max_workers: int | None
) -> None:
    system_prompts = PromptPopulation([SEED_INSTRUCTIONS], size=8).prompts
    query = PROBLEMS[0].question
    assert generate_candidates_parallel(
        dispatcher, query, system_prompts, max_workers=max_workers, model=MODEL
    ) == generate_candidates(dispatcher, query, system_prompts, model=MODEL)


def test_the_utilities_keep_the_order_and_every_none() -> None:
    assert map_parallel(lambda item: item * 2 if item % 3 else None, range(7)) == [
        None,
        2,
        4,
        None,
        8,
        10,
        None,
    ]
    assert run_parallel(lambda a, b: a + b, [(1, 2), (3, 4)], max_workers=2) == [3, 7]


def test_the_whole_population_is_scored_on_many_queries(dispatcher: Dispatcher, encoder: Encoder) -> None:
    prompts, queries = (
        PromptPopulation([SEED_INSTRUCTIONS], size=4).prompts,
        [p.question for p in PROBLEMS[:3]],
    )
    responses = [generate_candidates_parallel(dispatcher, query, prompts, model=MODEL) for query in queries]
    items = [
        (prompts[i], query, response)
        for query, replies in zip(queries, responses, strict=True)
        for i, response in enumerate(replies)
        if response is not None
    ]
    for critic in (LLMCritic(dispatcher, "sim-judge"), RidgeCritic(encoder)):
        scores = score_batch_parallel(critic.score, items, max_workers=8)
        assert scores == [critic.score(*item) for item in items]
        fitness: Sequence[float] = [sum(scores[i::4]) / 3 for i in range(4)]
        assert all(0 <= value <= 1 for value in fitness)
