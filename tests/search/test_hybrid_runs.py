"""Whole runs of the hybrid search in a small world: reproducible, and a learning actor pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ollama_utils.encoders import Encoder
from scorers.critic import RidgeCritic
from search.hybrid import ActorCriticParams, HybridOptimizationFlow, StepResult
from search.optimizing.actors import Actor, FixedActor, PolicyActor, RandomActor
from tests.search.small_world import PROMPTS, SmallModel, chance_of, is_right, questions

QUESTION = "What is 2 plus 2?"


def run(flow: HybridOptimizationFlow, steps: int = 25) -> list[StepResult]:
    return [flow.step(question, is_right) for _, question in questions(steps, seed=2)]


def test_at_once_or_one_after_another_every_bit_is_the_same(encoder: Encoder) -> None:
    def params(**settings: Any) -> ActorCriticParams:  # noqa: ANN401 - of the parameters
        return ActorCriticParams(update_interval=5, seed=3, **settings)

    flows = [
        HybridOptimizationFlow.from_params(each, SmallModel(), model="any", prompts=PROMPTS, encoder=encoder)
        for each in (params(), params(parallel_eval=True), params(parallel_eval=True, max_workers=3))
    ]
    one, at_once, by_three = [run(flow) for flow in flows]
    assert one == at_once == by_three
    assert flows[0].population.members == flows[1].population.members
    odds = [flow.actor.choose(QUESTION, PROMPTS, 1, 0).probabilities for flow in flows]
    assert odds[0] == odds[1] == odds[2]


def test_another_seed_is_another_run(encoder: Encoder) -> None:
    flows = [
        HybridOptimizationFlow.from_params(
            ActorCriticParams(seed=seed), SmallModel(), model="any", prompts=PROMPTS, encoder=encoder
        )
        for seed in (1, 1, 2)
    ]
    one, again, other = [run(flow, 8) for flow in flows]
    assert one == again != other


def held_out(flow: HybridOptimizationFlow) -> float:
    """How likely the actor's best prompt is right, on questions it has not seen."""
    fresh = [question for _, question in questions(60, seed=77)]
    return sum(chance_of(question, flow.best_prompt(question)) for question in fresh) / len(fresh)


def actors(seed: int) -> dict[str, Callable[[Encoder], Actor]]:
    return {
        "random": lambda _: RandomActor(seed),
        "fixed": lambda _: FixedActor(PROMPTS[0]),
        "learning": lambda encoder: PolicyActor(encoder, seed=seed),
    }


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_a_learning_actor_beats_a_random_one_and_a_fixed_prompt(encoder: Encoder, seed: int) -> None:
    rewards = {}
    for name, make in actors(seed).items():
        flow = HybridOptimizationFlow.from_params(
            ActorCriticParams(num_candidates=2, population_size=6, update_interval=1000, seed=seed),
            SmallModel(),
            model="any",
            prompts=PROMPTS,
            encoder=encoder,
            actor=make(encoder),
            critic=RidgeCritic(encoder, sketch=24),
        )
        results = [flow.step(question, is_right) for _, question in questions(200, seed)]
        rewards[name] = sum(result.response == "right" for result in results[100:])
        if name == "learning":
            assert held_out(flow) > 0.75
    assert rewards["learning"] > rewards["random"] + 15
    assert rewards["learning"] > rewards["fixed"] + 15
