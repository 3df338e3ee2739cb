"""A flow of the small world, with a critic and an actor that note what they are told."""

from __future__ import annotations

from typing import Any

from scorers.json_replies import Model
from search.hybrid import HybridOptimizationFlow
from search.optimizing.actors import RandomActor
from search.optimizing.prompts import PromptPopulation
from tests.search.small_world import PROMPTS, SmallModel

Told = tuple[str, str, str, float]


class KnowingCritic:
    """Scores a right reply .8 and a wrong one .1; notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Told] = []

    def score(self, prompt: str, query: str, response: str) -> float:
        del prompt, query
        return 0.8 if response == "right" else 0.1

    def feedback(self, prompt: str, query: str, response: str, value: float) -> None:
        self.told.append((prompt, query, response, value))


class NotingActor(RandomActor):
    """A random actor that notes what it is told."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.told: list[list[float | None]] = []

    def learn(self, choice: Any, rewards: Any) -> None:  # noqa: ANN401, ARG002 - as the actor has it
        self.told.append(list(rewards))


def flow_of(llm: Model | None = None, **settings: Any) -> HybridOptimizationFlow:  # noqa: ANN401 - of the flow
    """A flow with these parts in place of its plain ones."""
    parts: dict[str, Any] = {
        "population": PromptPopulation(PROMPTS, size=6, seed=1),
        "actor": NotingActor(),
        "critic": KnowingCritic(),
        "model": "any",
        "top_k_prompts": 4,
    }
    return HybridOptimizationFlow(llm or SmallModel(), **{**parts, **settings})
