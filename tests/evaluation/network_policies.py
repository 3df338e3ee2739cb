"""Policies with a torch network; apart, so that a process without one need not import torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evaluation.policies import View
from tests.evaluation.policies_for_tests import DIMENSION, view


class Network(torch.nn.Module):
    """Has a dropout, which evaluation mode turns off; it notes the rows of its passes."""

    def __init__(self, seed: int, refused: View | None = None) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.rows: list[int] = []
        self.refused = refused
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(DIMENSION, 64),
            torch.nn.Tanh(),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(64, 7),
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        if self.refused and any(
            np.array_equal(self.refused.observation, row) for row in observations
        ):
            raise ValueError("an observation out of all bounds")
        self.rows.append(len(observations))
        time.sleep(0.002)  # gives way, so that others may come in
        scores: torch.Tensor = self.layers(observations)
        return scores


NETWORKS = (Network(0), Network(1, refused=view(1, 2)))
"""The same in every process; the second takes no observation of agent 1 in step 2."""


class Likeliest:
    """Has a network and nothing else to say."""

    def __init__(self, seed: int, kind: int = 0) -> None:  # noqa: ARG002 - as all are made
        self.network: torch.nn.Module = NETWORKS[kind]


class Networked(Likeliest):
    """Draws by the scores, with its own stream of chance: the bits of a score decide."""

    def __init__(self, seed: int, kind: int = 0, fault: Callable[[], Any] | None = None) -> None:
        super().__init__(seed, kind)
        self.chance = np.random.default_rng(seed)
        self.memory = 0
        self.fault = fault

    def choose(self, scores: NDArray[np.float32], view: View) -> Any:
        if self.fault and (view.agent, view.step_count) == (0, 1):
            return self.fault()
        bits = int(scores.view(np.uint32).sum(dtype=np.uint64))
        self.memory = (self.memory * 31 + bits + int(self.chance.integers(1000))) % 10007
        return self.memory % len(view.mutators)
