"""What a policy is: something that sees an episode before a step and names the mutator to use.

A policy may offer more than `step`, and is then stepped in a cheaper way where it can be:

- `step_batch(views)`: see `BatchPolicy`.
- `network`, a torch module: see `NetworkPolicy`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """(D,), in the layout of `envs/observation.py`."""
    original: str
    """The query as it was."""
    query: str
    """The query as it is now."""
    mutators: tuple[str, ...]
    """Their names; action k is the k-th."""
    tried: tuple[int, ...]
    """The actions of this episode so far, oldest first."""
    last_outcome: str | None
    """How the last of them ended: answered, partly_refused, refused, undetermined; None before the first."""
    last_reward: float
    """What it brought; 0 before the first."""
    step_count: int
    """Steps taken so far; one that could not be scored did not happen."""
    max_steps: int
    """Steps after which the episode is given up."""
    attempt: int
    """How often this step was tried before and could not be scored."""
    agent: int
    """The agent's place in its episode, from 0."""


class Policy(Protocol):
    """Chooses the actions of one agent in one episode; what it remembers is of this episode alone."""

    def step(self, view: View) -> int:
        """The number of the mutator to use next."""
        ...


class BatchPolicy(Policy, Protocol):
    """A policy of which one instance can serve all agents of an episode.

    Where it does, it was made with the first agent's seed. So that it chooses the same either way,
    `step_batch(views)[i]` must be what `step` says on an instance that sees the views of that agent alone,
    whatever its seed: what it remembers is kept by `view.agent`, and chance comes from the view.
    """

    def step_batch(self, views: Sequence[View]) -> Sequence[int]:
        """The actions for some agents' views, in their order."""
        ...


class NetworkPolicy(Policy, Protocol):
    """A policy with a torch network, which maps observations (N, D), float32, to scores (N, mutators).

    It is stepped through its network however it is run, so that it chooses the same either way: `step` is
    not called. The network is put into evaluation mode, and on a GPU where there is one. Policies that share
    one network object share its forward passes. `choose(scores, view) -> int`, given the scores
    (mutators,) of a view, is optional: without it the highest score wins.
    """

    network: torch.nn.Module


class PolicySource(Protocol):
    """Makes the instances of a policy, one for each agent of each episode; it can be pickled."""

    @property
    def name(self) -> str:
        """What the policy is called in results."""
        ...

    def make(self, seed: int) -> Policy:
        """A new instance, whose chance comes from `seed` alone."""
        ...
