"""What a policy is, and those that mutagym has: it sees an episode and names the mutator to use.

A policy may offer more than `step`, and is then stepped in a cheaper way where it can be:

- `step_batch(views)`: see `BatchPolicy`.
- `network`, a torch module: see `NetworkPolicy`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """What a policy sees before a step; it can be pickled."""

    observation: NDArray[np.float32]
    """(size,), in the layout of `envs/observation.py`."""
    original: str
    """The query as it was."""
    query: str
    """The query as it is now."""
    mutators: tuple[str, ...]
    """Their names; action k is the k-th."""
    tried: tuple[int, ...]
    """The actions of this episode so far, oldest first."""
    last_outcome: str | None
    """Of the last of them: answered, partly_refused, refused, undetermined; None at first."""
    last_reward: float
    """Of the last of them; 0 before the first."""
    step_count: int
    """Steps taken so far."""
    max_steps: int
    """Steps after which the episode is given up."""
    agent: int
    """The agent's place in its episode, from 0."""


class Policy(Protocol):
    """Chooses the actions of one agent in one episode; it remembers nothing of other episodes."""

    def step(self, view: View) -> int:
        """The number of the mutator to use next."""
        ...


class BatchPolicy(Policy, Protocol):
    """A policy of which one instance can serve all agents of an episode.

    It is made with the first agent's seed then. So that it chooses the same either way,
    `step_batch(views)[i]` must be what `step` says on an instance that sees the views of that agent
    alone, whatever its seed: what it remembers is kept by `view.agent`, and chance comes from the
    view. Agents may be at different steps.
    """

    def step_batch(self, views: Sequence[View]) -> Sequence[int]:
        """The actions for some agents' views, in their order."""
        ...


class NetworkPolicy(Protocol):
    """A policy with a torch network that maps observations (N, size), float32, to scores (N, A).

    It is stepped through its network however it is run, so that it chooses the same either way:
    `step` is not called. The network is put into evaluation mode, and on a GPU where there is one.
    Policies that share a network share its forward passes. `choose(scores, view) -> int`, given the
    scores (A,) of a view, is optional: without it the highest score wins.
    """

    @property
    def network(self) -> torch.nn.Module:
        """The same object for all policies that share it."""
        ...


class PolicySource(Protocol):
    """Makes the instances of a policy, one for each agent of each episode; it can be pickled.

    Where it has `rewords_original = True`, each of the policy's steps rewords the original query,
    not what the steps before made of it.
    """

    @property
    def name(self) -> str:
        """What the policy is called in results."""
        ...

    def make(self, seed: int) -> Policy | NetworkPolicy:
        """A new instance, whose chance comes from `seed` alone."""
        ...


@dataclass(frozen=True, kw_only=True)
class OrderedPolicy:
    """Mutators in a fixed order, whatever the query is.

    Of one mutator alone: `noop`, `fixed:MUTATOR` and `best_fixed`. Of several, each on the original
    query, the next where one was refused: `cascade`.
    """

    name: str
    order: tuple[int, ...]
    """The actions; after the last comes the first."""
    rewords_original: bool = False

    def make(self, seed: int) -> OrderedPolicy:  # noqa: ARG002 - it has no chance
        """The policy itself: it remembers nothing."""
        return self

    def step(self, view: View) -> int:
        """The mutator of this step."""
        return self.order[view.step_count % len(self.order)]


@dataclass(frozen=True, kw_only=True)
class SeededSource:
    """Makes a policy for each agent from its seed alone: `random` and `round_robin`."""

    name: str
    policy: Callable[[int], Policy]

    def make(self, seed: int) -> Policy:
        """A new instance."""
        return self.policy(seed)


class RandomPolicy:
    """A mutator drawn at each step, all alike."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def step(self, view: View) -> int:
        """Any of the mutators."""
        return int(self._rng.integers(len(view.mutators)))


@dataclass(frozen=True)
class RoundRobinPolicy:
    """Mutator (seed + k) mod A in step k: over many seeds all mutators are used alike."""

    seed: int

    def step(self, view: View) -> int:
        """The next mutator."""
        return (self.seed + view.step_count) % len(view.mutators)
