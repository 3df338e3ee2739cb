"""A linear model of what each mutator earns next: what the contextual bandits learn.

The reward of a step is taken for linear in features of the query, of the episode's history and of the
mutator, plus noise. That is Bayesian ridge regression, the hybrid model of Li et al. 2010, "A
contextual-bandit approach to personalized news article recommendation" (arXiv 1003.0146, algorithm 2): its
mean is what a mutator is expected to earn, its standard deviation how little that is known.

A mutator's features, in this order:

    8   whose weights all mutators share: 1; whether it was tried and changed the query; whether it was tried
        and left it as it was; whether that was the last step; the last outcome (3); the share of steps taken
    2   its own: 1; whether it was tried and left the query as it was
    m   its own: the principal components of the query's embedding
    A   its own: of every mutator, whether it was tried and changed the query: what did not help says which
        kind of query this is, and what is to be tried next

The constants below were tuned in the simulated worlds `cautious` and `wary`. The means say what a mutator is:
what changed the query and did not help will not help a second time, and a rule that changed nothing never
will. There are some A squared weights, and a solution takes time with their third power: 14 mutators have
456 weights, 60 have 4,700.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from envs.observation import LABELS

if TYPE_CHECKING:
    from mutators.mutator import Mutator

SHARED = 5 + len(LABELS)
OWN = 2
COMPONENTS = 16
"""Principal components of the training queries' embeddings, at most."""
NOISE_VARIANCE = 0.1
"""Of a reward around what is expected."""
SHARED_MEANS = (0.25, -0.5, -0.1, *(0.0,) * (SHARED - 3))
SHARED_VARIANCES = (1.0, *(0.05,) * (SHARED - 1))
RULE_MEAN = -0.4
"""Of a rule's own flag that it left the query as it was."""
OWN_VARIANCES = (0.01, 0.05)
QUERY_VARIANCE = 0.15
"""Of the weights of components; these are scaled so that all of them together have a mean square of 1."""
TRIED_VARIANCE = 0.02
"""Of the weights of what was tried."""
PARTIAL_CREDIT = 0.3
"""Counted to the reward of a step that was partly refused: the next mutator may do the rest, and a bandit
looks no further than one step. With it the greedy choice is the optimum in `cautious`; without, .88 of it."""


def credit(info: Mapping[str, Any]) -> float:
    """What counts to a step's reward, by its info: `PARTIAL_CREDIT` where the reply was partly refused."""
    return PARTIAL_CREDIT if info.get("partial") else 0.0


def rule_actions(mutators: Sequence[Mutator]) -> list[int]:
    """The actions whose mutator is a rule."""
    return [action for action, mutator in enumerate(mutators) if mutator.kind == "rule"]


class Expected(NamedTuple):
    """What is known of the mutators in N situations."""

    means: torch.Tensor
    """(N, A): the reward that each is expected to earn in the next step."""
    deviations: torch.Tensor
    """(N, A): the standard deviations of these expectations."""


class LinearBandit(nn.Module):
    """Learns what each mutator earns, from observations as `envs/observation.py` has them; in float64.

    Args:
        dimension: D, of the embedding at the head of an observation.
        num_actions: A, the mutators.
        rules: the actions whose mutator is a rule.
    """

    centre: torch.Tensor
    directions: torch.Tensor
    precision: torch.Tensor
    moments: torch.Tensor

    def __init__(self, dimension: int, num_actions: int, rules: Sequence[int] = ()) -> None:
        super().__init__()
        self.dimension = dimension
        self.num_actions = num_actions
        components = min(COMPONENTS, dimension)
        own = OWN + components + num_actions
        size = SHARED + num_actions * own
        own_variances = (
            *OWN_VARIANCES,
            *(QUERY_VARIANCE,) * components,
            *(TRIED_VARIANCE,) * num_actions,
        )
        variances = [*SHARED_VARIANCES, *own_variances * num_actions]
        means = torch.zeros(size, dtype=torch.float64)
        means[:SHARED] = torch.tensor(SHARED_MEANS, dtype=torch.float64)
        means[[SHARED + action * own + 1 for action in rules]] = RULE_MEAN
        precisions = 1 / torch.tensor(variances, dtype=torch.float64)
        self.register_buffer("centre", torch.zeros(dimension, dtype=torch.float64))
        self.register_buffer("directions", torch.zeros(dimension, components, dtype=torch.float64))
        self.register_buffer("precision", torch.diag(precisions))
        self.register_buffer("moments", precisions * means)
        shared = torch.arange(SHARED).expand(num_actions, SHARED)
        each = SHARED + torch.arange(num_actions * own).reshape(num_actions, own)
        self._places = torch.cat([shared, each], dim=1)  # (A, G): where a mutator's features stand among all
        self.register_load_state_dict_post_hook(_solve)  # type: ignore[no-untyped-call] # torch's
        self.solve()

    @property
    def has_learned(self) -> bool:
        """Whether it knows more than its prior, in which all weights are independent."""
        return not torch.equal(self.precision, torch.diag(self.precision.diagonal()))

    def fit_components(self, embeddings: NDArray[np.float32]) -> None:
        """Find the principal components of the training queries' embeddings (queries, D), unit rows.

        Raises:
            ValueError: something was learned already.
        """
        if self.has_learned:
            raise ValueError("the bandit has learned already; its features cannot change any more")
        rows = torch.from_numpy(np.asarray(embeddings, np.float64))
        self.centre.copy_(rows.mean(dim=0))
        spread = rows - self.centre
        axes = torch.linalg.svd(spread, full_matrices=False)[2][: self.directions.shape[1]]
        largest = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True))
        scale = max(float(spread.square().sum(dim=1).mean().sqrt()), 1e-6)  # one query, or equal ones
        self.directions[:, : len(axes)] = (axes * largest.sign()).T / scale

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """The expected rewards (N, A), float32, of observations (N, size)."""
        return self.expect(observations).means.float()

    def expect(self, observations: torch.Tensor) -> Expected:
        """What each mutator is expected to earn, and how little that is known."""
        features = self._features(observations)
        means = (features * self._weights).sum(dim=2)
        variances = (torch.einsum("nag,agh->nah", features, self._covariances) * features).sum(dim=2)
        return Expected(means, variances.clamp(min=0).sqrt())

    def learn(self, observations: torch.Tensor, actions: torch.Tensor, rewards: torch.Tensor) -> None:
        """Learn from steps.

        Args:
            observations: (N, size), before the steps.
            actions: (N,), int64.
            rewards: (N,), what each step earned, its `credit` counted to it.
        """
        features = self._features(observations)[torch.arange(len(actions)), actions]
        seen = torch.zeros(len(actions), len(self.moments), dtype=torch.float64)
        seen.scatter_(1, self._places[actions], features)
        self.precision += seen.T @ seen / NOISE_VARIANCE
        self.moments += seen.T @ rewards.double() / NOISE_VARIANCE
        self.solve()

    def solve(self) -> None:
        """Find weights (A, G) and covariances (A, G, G), after the buffers were changed from outside."""
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(self.precision))
        places = self._places
        self._weights = (covariance @ self.moments)[places]
        self._covariances = covariance[places[:, :, None], places[:, None, :]]

    def _features(self, observations: torch.Tensor) -> torch.Tensor:
        """(N, A, G)."""
        num_actions, head = self.num_actions, self.dimension
        history = observations[:, head:].double()
        tried, idle, last = history[:, : 3 * num_actions].reshape(-1, 3, num_actions).unbind(dim=1)
        rest = torch.cat([history[:, -1 - len(LABELS) : -1], history[:, -1:]], dim=1)
        query = (observations[:, :head].double() / math.sqrt(head) - self.centre) @ self.directions
        one = torch.ones_like(tried)
        flags = torch.stack([one, tried - idle, idle, last * idle], dim=2)
        own = torch.stack([one, idle], dim=2)
        alike = torch.cat([query, tried - idle], dim=1)
        return torch.cat([flags, _beside(rest, num_actions), own, _beside(alike, num_actions)], dim=2)


def _solve(module: nn.Module, _incompatible: object) -> None:
    """What was loaded is used from now on."""
    cast("LinearBandit", module).solve()


def _beside(rows: torch.Tensor, num_actions: int) -> torch.Tensor:
    """The same features (N, k) for every action: (N, A, k)."""
    return rows[:, None, :].expand(-1, num_actions, -1)
