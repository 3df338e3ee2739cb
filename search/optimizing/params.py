"""The numbers of the hybrid search in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ollama_utils.encoders import Encoder
from search.candidates import MAX_TOKENS, TEMPERATURE
from search.optimizing.policy_actor import ENTROPY, LEARNING_RATE, PolicyActor
from search.optimizing.population import PromptPopulation, Reword
from search.optimizing.rewards import RewardWeights
from search.optimizing.sections import PromptSections


@dataclass(frozen=True, kw_only=True)
class ActorCriticParams:
    """What `HybridOptimizationFlow.from_params` builds a flow from; a number is checked where it is used."""

    num_candidates: int = 5
    """How many prompts are tried for a query (the flow's `top_k_prompts`)."""
    update_interval: int = 10
    """The population evolves after so many steps that brought a reward."""
    exploration: float = 0.1
    """The share of the actor's draws that pay no heed to its policy."""
    parallel_eval: bool = False
    """Whether candidates are generated and scored, and children made, at once."""
    max_workers: int | None = None
    """The most of these at once; None: as many as there are, as far as the model's gate admits them."""
    max_tokens: int = MAX_TOKENS
    """A candidate is cut after so many."""
    temperature: float = TEMPERATURE
    """Of the candidates."""
    feedback_for_all: bool = False
    """Whether a feedback function is called for each scored candidate, and not for the chosen one alone."""
    weights: RewardWeights = field(default_factory=RewardWeights)
    """Of the parts of a reward."""
    learning_rate: float = LEARNING_RATE
    """Of the actor."""
    entropy: float = ENTROPY
    """What the entropy of the actor's policy is worth beside a reward."""
    population_size: int = 10
    """How many prompts there are, always."""
    elite_size: int = 2
    """How many of the best stay unchanged in a generation."""
    mutation_rate: float = 0.3
    """The chance that a section of a child is mutated."""
    crossover_rate: float = 0.5
    """The chance that a child has two parents."""
    model_share: float = 0.5
    """The share of mutations that a model makes, where one is given."""
    seed: int = 0
    """Of all chance."""

    def actor(self, encoder: Encoder) -> PolicyActor:
        """The actor that learns."""
        return PolicyActor(
            encoder,
            seed=self.seed,
            exploration=self.exploration,
            learning_rate=self.learning_rate,
            entropy=self.entropy,
        )

    def population(
        self, prompts: Sequence[str | PromptSections], reword: Reword | None = None
    ) -> PromptPopulation:
        """The population that begins with these prompts."""
        return PromptPopulation(
            prompts,
            size=self.population_size,
            elite_size=self.elite_size,
            mutation_rate=self.mutation_rate,
            crossover_rate=self.crossover_rate,
            seed=self.seed,
            reword=reword,
            model_share=self.model_share,
        )
