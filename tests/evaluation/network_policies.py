"""Policies with a torch network; apart, so that a process without one need not import torch."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from evaluation.policies.policy import View
from tests.evaluation.policies_for_tests import DIMENSION


class ReplicaNetwork(torch.nn.Module):
    """Two layers and a dropout, which evaluation mode turns off; it counts the rows of its passes."""

    def __init__(self, actions: int = 7) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(DIMENSION, 64),
            torch.nn.Tanh(),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(64, actions),
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        if bool((observations > 1e6).any()):
            raise ValueError("an observation out of all bounds")
        self.rows.append(len(observations))
        scores: torch.Tensor = self.layers(observations)
        return scores


@cache
def network(kind: int) -> ReplicaNetwork:
    """One network in a process."""
    torch.manual_seed(kind)
    return ReplicaNetwork()


class Networked:
    """Draws by the scores, with its own stream of chance: the bits of a score decide."""

    def __init__(self, seed: int, kind: int = 0) -> None:
        self.network = network(kind)
        self.chance = np.random.default_rng(seed)
        self.memory = 0

    def step(self, view: View) -> int:  # noqa: ARG002 - not called
        raise AssertionError("a policy with a network is stepped through it")

    def choose(self, scores: NDArray[np.float32], view: View) -> int:
        bits = int(scores.view(np.uint32).sum(dtype=np.uint64))
        self.memory = (self.memory * 31 + bits + int(self.chance.integers(1000))) % 10007
        return self.memory % len(view.mutators)


class Likeliest:
    """Has a network and nothing else to say."""

    def __init__(self, seed: int) -> None:  # noqa: ARG002 - as all are made
        self.network = network(0)

    def step(self, view: View) -> int:  # noqa: ARG002 - not called
        raise AssertionError("a policy with a network is stepped through it")
