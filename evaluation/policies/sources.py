"""From what was asked for to what can be played: sources of policies, and bandits to be fitted first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluation.policies.bandits import UCB1, Bandit, EpsilonGreedy, Exp3
from evaluation.policies.baselines import FixedSource, RoundRobinSource, SampledSource
from evaluation.policies.llm import LLMSource
from evaluation.policies.policy import PolicySource
from evaluation.policies.specs import PolicySpec
from evaluation.policies.user_class import user_source
from ollama_utils.dispatcher import Dispatcher
from records.errors import nearest

_BANDITS: dict[str, Any] = {"epsilon_greedy": EpsilonGreedy, "ucb1": UCB1, "exp3": Exp3}


def make_source(
    spec: PolicySpec, *, mutators: Sequence[str], dispatcher: Dispatcher | None = None, seed: int = 0
) -> PolicySource:
    """The source of a policy that needs no fitting.

    Args:
        spec: which policy; a run's is loaded elsewhere.
        mutators: the names of the mission's mutators.
        dispatcher: where an `llm:` policy sends its calls.
        seed: of those calls.

    Raises:
        ValueError: the mission has no such mutator, a class cannot be used, there is no dispatcher, or the
            policy has to be fitted or loaded first.
    """
    mutators = tuple(mutators)
    match spec.kind:
        case "noop" | "fixed":
            return FixedSource(name=spec.name, action=_number(spec.arg or "noop", spec, mutators))
        case "random":
            return SampledSource(name=spec.name, weights=(1 / len(mutators),) * len(mutators))
        case "round_robin":
            return RoundRobinSource(name=spec.name)
        case "class":
            return user_source(spec.name, spec.arg, mutators, spec.kwargs)
        case "llm" if dispatcher is not None:
            return LLMSource(name=spec.name, model=spec.arg, dispatcher=dispatcher, seed=seed)
    raise ValueError(
        f"policy {spec.name!r} is of kind {spec.kind!r}, which cannot be made from its name alone"
    )


def make_bandit(spec: PolicySpec, *, arms: int, seed: int) -> Bandit:
    """A bandit to be fitted: `epsilon_greedy`, `ucb1` or `exp3`; `best_fixed` is a `BestFixed` of its own.

    Raises:
        ValueError: the spec is of another kind, or an option is out of range.
    """
    if spec.kind not in _BANDITS:
        raise ValueError(f"policy {spec.name!r} is no bandit; {nearest(spec.kind, _BANDITS)}")
    bandit: Bandit = _BANDITS[spec.kind](arms, seed=seed, name=spec.name, **spec.kwargs)
    return bandit


def _number(mutator: str, spec: PolicySpec, mutators: tuple[str, ...]) -> int:
    if mutator not in mutators:
        raise ValueError(f"policy {spec.name!r} needs the mutator {mutator!r}; {nearest(mutator, mutators)}")
    return mutators.index(mutator)
