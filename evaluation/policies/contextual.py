"""Contextual bandits as baselines: they look at the query, are fitted, and then learn no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evaluation.policies.instance import block_scores

if TYPE_CHECKING:
    from evaluation.policies.policy import View
    from train.bandit import LinearBandit


class BanditSource:
    """The policy that takes the mutator which a fitted bandit expects to earn most: a PolicySource.

    Args:
        name: what it is called in results.
        model: the bandit; it learns no more.
    """

    def __init__(self, name: str, model: LinearBandit) -> None:
        self.name = name
        self.model = model

    def make(self, seed: int) -> BanditAgentPolicy:  # noqa: ARG002 - it has no chance
        """A new instance; all share the network."""
        return BanditAgentPolicy(self.model)


class BanditAgentPolicy:
    """What `BanditSource` makes: a NetworkPolicy."""

    def __init__(self, model: LinearBandit) -> None:
        self.network = model

    def step(self, view: View) -> int:
        """The action in this view."""
        return int(np.argmax(block_scores(self.network, [(0, view.observation)])[0]))
