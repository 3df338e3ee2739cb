"""The actor and critic of `mutagym train`: an MLP, ways around it, much of the embedding hidden.

There are a few hundred training queries, so a plain MLP learns each by heart, and for a query that it has not
seen it has no second choice. Against that:

- Dropout hides most of the embedding in updates (Srivastava et al., JMLR 15, 2014). Actions are chosen with
  all of it.
- The logits are linear in the observation, plus what the MLP adds to that.
- What was done with a mutator adds to its own logit by weights that all mutators share, so what a repetition
  is worth is learned once and not for each.
- The embedding is scaled down and the episode's history up: Adam moves every weight at about one pace, and
  the query speaks through hundreds of entries, the history through a few.
"""

from __future__ import annotations

import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from envs.observation import observation_size

HIDDEN = 64
"""Units in each of the two layers of actor and critic."""
EMBEDDING_DROPOUT = 0.7
"""The share of the embedding's entries that an update does not see."""
EMBEDDING_SCALE = 0.35
HISTORY_SCALE = 8.0
OWN_SCALE = 20.0
"""What the shared weights are multiplied by, so that they learn in time."""
OWN_FLAGS = 3
"""Flags of each action at the head of the history: tried, left the query as it was, last."""


class QueryPolicy(ActorCriticPolicy):
    """The policy for observations of `envs/observation.py` and the mutators as actions."""

    action_net: nn.Module

    def _build_mlp_extractor(self) -> None:
        dimension = self.features_dim - observation_size(0, self._num_actions)
        self.mlp_extractor = Latents(self.features_dim, dimension)  # type: ignore[assignment] # what SB3 asks of one

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        self.action_net = Logits(self.action_net, observation_size(0, self._num_actions), self._num_actions)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg] # torch's optimizers have one

    def scores(self, observations: torch.Tensor) -> torch.Tensor:
        """The normalised logits (N, A), on any number of threads at once.

        Not by `get_distribution`: it puts them into an object that all its callers share.
        """
        features = self.extract_features(observations, self.pi_features_extractor)
        logits: torch.Tensor = self.action_net(self.mlp_extractor.forward_actor(features))  # type: ignore[arg-type] # no tuple: one extractor is given
        return logits.log_softmax(dim=-1)

    @property
    def _num_actions(self) -> int:
        return int(self.action_space.n)  # type: ignore[attr-defined] # Discrete


class Latents(nn.Module):
    """From observations (N, size) to what the last layers of actor and critic see.

    Args:
        size: of an observation.
        dimension: of the embedding at its head.
    """

    def __init__(self, size: int, dimension: int) -> None:
        super().__init__()
        self.actor, self.critic = _layers(size), _layers(size)
        self.hide = nn.Dropout(EMBEDDING_DROPOUT)
        self.dimension = dimension
        self.latent_dim_pi = HIDDEN + size
        self.latent_dim_vf = HIDDEN

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both latents."""
        return self.forward_actor(observations), self.forward_critic(observations)

    def forward_actor(self, observations: torch.Tensor) -> torch.Tensor:
        """(N, HIDDEN + size): the MLP's output beside its input."""
        seen = self._seen(observations)
        return torch.cat([self.actor(seen), seen], dim=1)

    def forward_critic(self, observations: torch.Tensor) -> torch.Tensor:
        """(N, HIDDEN)."""
        hidden: torch.Tensor = self.critic(self._seen(observations))
        return hidden

    def _seen(self, observations: torch.Tensor) -> torch.Tensor:
        embedding, history = observations[:, : self.dimension], observations[:, self.dimension :]
        return torch.cat([self.hide(embedding * EMBEDDING_SCALE), history * HISTORY_SCALE], dim=1)


class Logits(nn.Module):
    """A linear layer, plus what each action's own flags say to it.

    Args:
        linear: from the latent to the logits.
        history: length of the history at the end of the latent; it begins with the flags.
        num_actions: A.
    """

    def __init__(self, linear: nn.Module, history: int, num_actions: int) -> None:
        super().__init__()
        self.linear = linear
        self.own = nn.Parameter(torch.zeros(OWN_FLAGS))
        self.history = history
        self.num_actions = num_actions

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        """The logits (N, A)."""
        history = latent[:, latent.shape[1] - self.history :] / HISTORY_SCALE
        flags = history[:, : OWN_FLAGS * self.num_actions].reshape(-1, OWN_FLAGS, self.num_actions)
        own = (self.own[:, None] * flags).sum(dim=1)
        logits: torch.Tensor = self.linear(latent) + OWN_SCALE * own
        return logits


def _layers(size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
