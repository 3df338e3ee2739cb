"""What a policy is, and those that mutagym has: it sees an episode and names the mutator to use.

An instance, with a method `step(view) -> action`, plays one agent in one episode, and remembers
nothing of other episodes. A policy may offer more, and is then stepped in a cheaper way where it
can be. Either way it must choose the same.

- `step_batch(views) -> actions` chooses for some agents of an episode, who may be at different
  steps. One instance, made with the first agent's seed, then serves all of them. What it remembers
  is kept by `view.agent`, and chance comes from the view: each action must be what `step` says on
  an instance that sees the views of that agent alone, whatever its seed.
- `network` is a torch module that maps observations (N, size), float32, to scores (N, A). The
  policy is always stepped through it: `choose(scores, view) -> action` is given the scores (A,) of
  a view; without it the highest score wins. The network is put into evaluation mode, and on a GPU
  where there is one. Policies that share a network share its forward passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """Of the last of them, at first of the query as it stands, if it was asked so: answered,
    partly_refused, refused, undetermined; else None."""
    last_reward: float
    """Likewise; else 0."""
    stop: int | None = None
    """The action that ends the episode, where the query was asked as it stands: `noop`."""
    step_count: int
    """Steps taken so far."""
    max_steps: int
    """Steps after which the episode is given up."""
    agent: int
    """The agent's place in its episode, from 0."""


Step = Callable[[View], int]
"""Chooses the actions of one agent in one episode; not to be called after a step that was late.

Raises:
    PolicyError: the step overran its deadline, the action is no mutator's number, the policy
        exited, its process died, or it raised in its process.
    StepperError: the evaluation ended meanwhile.
    Exception: whatever the policy raises.
"""


@dataclass(frozen=True, kw_only=True)
class PolicySource:
    """Makes the instances of a policy, one for each agent of each episode."""

    name: str
    """What the policy is called in results."""
    make: Callable[[int], Any]
    """A new instance, whose chance comes from this seed alone. It can be pickled, but for a policy
    that asks a model."""
    rewords_original: bool = False
    """Each of its steps rewords the original query, not what the steps before made of it."""


@dataclass(frozen=True)
class OrderedPolicy:
    """Mutators in a fixed order, whatever the query is.

    Of one mutator alone: `noop`, `fixed:MUTATOR` and `best_fixed`. Of several, each on the original
    query, the next where one was refused: `cascade`.
    """

    order: tuple[int, ...]
    """The actions; after the last comes the first."""
    seed: int = 0
    """Unused: there is no chance in it."""

    def step(self, view: View) -> int:
        """The mutator of this step."""
        return self.order[view.step_count % len(self.order)]


class RandomPolicy:
    """A mutator drawn at each step, all alike."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def step(self, view: View) -> int:
        """Any of the mutators."""
        actions = _rewording_actions(view)
        return actions[int(self._rng.integers(len(actions)))]


@dataclass(frozen=True)
class RoundRobinPolicy:
    """Mutator (seed + k) mod A in step k: over many seeds all mutators are used alike."""

    seed: int

    def step(self, view: View) -> int:
        """The next mutator."""
        actions = _rewording_actions(view)
        return actions[(self.seed + view.step_count) % len(actions)]


def _rewording_actions(view: View) -> list[int]:
    """All but the one that ends the episode, if there are others."""
    actions = range(len(view.mutators))
    return [action for action in actions if action != view.stop] or [*actions]


@dataclass(frozen=True)
class BestScorePolicy:
    """The mutator that a network scores highest, such as a fitted bandit."""

    network: torch.nn.Module
    seed: int = 0
    """Unused: there is no chance in it."""


@dataclass(frozen=True)
class RunPolicy:
    """The policy of a training run. It is known by a path, so a process loads the network once."""

    weights: Path
    changed_ns: int
    """When the weights were last written."""
    sample: bool
    """Draw actions by their probabilities, as in training; else take the likeliest."""
    seed: int

    @property
    def network(self) -> torch.nn.Module:
        """One for all policies of the run.

        Raises:
            UserError: it cannot be loaded.
        """
        from train.policy import load_network

        return load_network(self.weights, self.changed_ns)

    def choose(self, logits: NDArray[np.float32], view: View) -> int:
        """The action, given the logits (A,)."""
        if not self.sample:
            return int(np.argmax(logits))
        stream = np.random.SeedSequence(self.seed, spawn_key=(view.step_count,))
        return int(np.argmax(logits + np.random.default_rng(stream).gumbel(size=len(logits))))
