"""The flags of `mutagym optimize`: the fields of `search.hybrid.ActorCriticParams`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from search.optimizing.params import ActorCriticParams
from search.optimizing.rewards import RewardWeights
from train.settings import Count, NotNegative, Share

CountOrNone = Annotated[int, Parameter(validator=Number(gte=0))]
"""A whole number, 0 included."""
Weight = Annotated[float, Parameter(validator=Number(gt=-inf, lt=inf))]
"""A finite number."""
_WEIGHT = "weight_"
_PYTHON = ActorCriticParams()
"""Whose defaults are those of the flags, but for two that cost nothing here."""


@Parameter(name="*", group="Hybrid search")
@dataclass(frozen=True, kw_only=True)
class HybridFlags:
    """How candidates are drawn, and how actor and population learn."""

    num_candidates: Count = _PYTHON.num_candidates
    """Prompts that are tried for a question."""
    update_interval: Count = _PYTHON.update_interval
    """The prompts evolve after so many steps that brought a reward."""
    exploration: Share = _PYTHON.exploration
    """The share of the actor's draws that pay no heed to what it learned."""
    parallel_eval: bool = True
    """Candidates are drawn and scored side by side; the results are the same either way."""
    max_workers: Count | None = _PYTHON.max_workers
    """The most calls at once [as many as keep the server busy]."""
    max_tokens: Count = _PYTHON.max_tokens
    """A candidate is cut after so many, thoughts included, as by --num-predict elsewhere."""
    temperature: NotNegative = _PYTHON.temperature
    """Of the candidates; the final comparison is made at 0."""
    feedback_for_all: bool = True
    """The scorer of the task judges every candidate, not the chosen one alone; that costs no call. (In Python
    the default is no: there feedback may come from people.)"""
    weight_feedback: Weight = _PYTHON.weights.feedback
    """What the scorer's judgement weighs in the reward."""
    weight_critic: Weight = _PYTHON.weights.critic
    """What the critic's score weighs in the reward."""
    weight_tokens: Weight = _PYTHON.weights.tokens
    """What a token weighs in the reward."""
    learning_rate: NotNegative = _PYTHON.learning_rate
    """Of the actor."""
    entropy: NotNegative = _PYTHON.entropy
    """What the entropy of the actor's policy is worth beside a reward."""
    population_size: Count = _PYTHON.population_size
    """How many prompts there are, always."""
    elite_size: CountOrNone = _PYTHON.elite_size
    """The best prompts, kept as they are."""
    mutation_rate: Share = _PYTHON.mutation_rate
    """The chance that a section of a child is mutated."""
    crossover_rate: Share = _PYTHON.crossover_rate
    """The chance that a child has two parents."""
    model_share: Share = _PYTHON.model_share
    """The share of mutations that the mutator model makes; the others are by rule."""

    def params(self, seed: int) -> ActorCriticParams:
        """As the flow takes them."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        names = [name for name in given if name.startswith(_WEIGHT)]
        weights = {name.removeprefix(_WEIGHT): given.pop(name) for name in names}
        return ActorCriticParams(**given, weights=RewardWeights(**weights), seed=seed)
