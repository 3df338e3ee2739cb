"""The policies that `benchmarks.wrappers` steps, in a module that other processes can import."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from search.policies.policy import Policy, View

if TYPE_CHECKING:
    import torch

DIMENSION = 384
"""Entries of an observation, about those of a sentence's embedding."""
MUTATORS = 14
REMEMBERED = 20_000


@dataclass(frozen=True, kw_only=True)
class Source:
    """Makes `make_policy(**arguments)`, whatever the seed."""

    name: str
    make_policy: Callable[..., Policy]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def make(self, seed: int) -> Policy:  # noqa: ARG002 - these policies leave nothing to chance
        """An instance."""
        return self.make_policy(**self.arguments)


@dataclass(frozen=True)
class Waits:
    """Waits, as for a server."""

    wait_s: float

    def step(self, view: View) -> int:
        """Wait."""
        time.sleep(self.wait_s)
        return view.agent % MUTATORS


@dataclass(frozen=True)
class Computes:
    """Computes in pure Python."""

    rounds: int

    def step(self, view: View) -> int:
        """Compute."""
        total = view.step_count
        for number in range(self.rounds):
            total = (total * 31 + number) % 1_000_003
        return total % MUTATORS


class Remembers:
    """Looks up the nearest of many embeddings, and does what was best there."""

    def __init__(self) -> None:
        self._memory = _memory()

    def step(self, view: View) -> int:
        """The action for one."""
        return int(np.argmax(self._memory @ view.observation)) % MUTATORS

    def step_batch(self, views: Sequence[View]) -> Sequence[int]:
        """The actions for several, in one product."""
        shown = np.stack([view.observation for view in views])
        return [int(row) % MUTATORS for row in np.argmax(self._memory @ shown.T, axis=0)]


class Networked:
    """Has a network of the size that PPO trains."""

    def __init__(self) -> None:
        self.network = _network()

    def step(self, view: View) -> int:
        """The action with the highest score; wrappers ask the network themselves."""
        import torch

        with torch.no_grad():
            return int(self.network(torch.from_numpy(view.observation)[None]).argmax())


@cache
def _memory() -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(REMEMBERED, DIMENSION)).astype(np.float32)


@cache
def _network() -> torch.nn.Module:
    import torch

    torch.manual_seed(0)
    widths = (DIMENSION, 64, 64, MUTATORS)
    layers = [
        torch.nn.Sequential(torch.nn.Linear(before, after), torch.nn.Tanh())
        for before, after in pairwise(widths)
    ]
    return torch.nn.Sequential(*layers)
