"""Policies that learn nothing within an episode: always one mutator, a draw by weights, or each in turn."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from evaluation.policies.policy import View


@dataclass(frozen=True, kw_only=True)
class FixedPolicy:
    """Always the same mutator: `noop`, `fixed:<mutator>`, and what `best_fixed` and `ucb1` come to."""

    name: str
    action: int
    """The mutator's number."""

    def make(self, seed: int) -> FixedPolicy:  # noqa: ARG002 - it leaves nothing to chance
        """The policy itself: it remembers nothing."""
        return self

    def step(self, view: View) -> int:  # noqa: ARG002 - whatever it sees
        """The one mutator."""
        return self.action


@dataclass(frozen=True, kw_only=True)
class SampledSource:
    """A mutator drawn at each step: `random`, and what `epsilon_greedy` and `exp3` come to."""

    name: str
    weights: tuple[float, ...]
    """The probability of each mutator; they sum to 1."""

    def make(self, seed: int) -> Sampled:
        """An instance with its own stream of chance."""
        return Sampled(self.weights, seed)


@dataclass(frozen=True, kw_only=True)
class RoundRobinSource:
    """Each mutator in turn: `round_robin`."""

    name: str = field(default="round_robin")

    def make(self, seed: int) -> RoundRobin:
        """An instance that starts where its seed says."""
        return RoundRobin(seed)


class Sampled:
    """Draws a mutator at each step, and a new one when a step is tried again."""

    def __init__(self, weights: tuple[float, ...], seed: int) -> None:
        self._weights = weights
        self._chance = np.random.default_rng(seed)

    def step(self, view: View) -> int:  # noqa: ARG002 - whatever it sees
        """A mutator drawn by the weights."""
        return int(self._chance.choice(len(self._weights), p=self._weights))


@dataclass(frozen=True)
class RoundRobin:
    """Plays mutator (seed + k) mod A in step k: over many seeds all mutators are used alike."""

    seed: int

    def step(self, view: View) -> int:
        """The next mutator; the same again when a step is tried again."""
        return (self.seed + view.step_count) % len(view.mutators)
