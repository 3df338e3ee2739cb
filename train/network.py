"""The actor and critic of `mutagym train`: an MLP, ways around it, much of the embedding hidden.

A plain MLP learns a few hundred training queries by heart. Against that:

- Dropout hides most of the embedding in updates (Srivastava et al., JMLR 15, 2014). Actions are
  chosen with all of it.
- The logits are linear in the observation, plus what the MLP adds to that.
- What was done with a mutator adds to its own logit by weights that all mutators share.
- The embedding is scaled down and the episode's history up, for Adam moves all weights at about the
  same pace, and the embedding has hundreds of entries, the history a few.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from envs.observation import observation_size

Array = NDArray[np.float32]
HIDDEN = 64
"""Units in each of the two layers of actor and critic."""
EMBEDDING_DROPOUT = 0.7
EMBEDDING_SCALE = 0.35
HISTORY_SCALE = 8.0
OWN_SCALE = 20.0
"""The scale of the weights that mutators share."""
OWN_FLAGS = 3
"""Flags of each action at the head of the history: tried, left the query as it was, last."""


class QueryPolicy(ActorCriticPolicy):
    """The policy for observations of `envs/observation.py` and the mutators as actions.

    Updates go through SB3's methods, in batches and with dropout. `score_one` and `scores` compute
    the same without dropout, in numpy and a row at a time: a row's result does not depend on the
    others, and takes a twentieth of the time.
    """

    mlp_extractor: QueryNetwork  # type: ignore[assignment] # what SB3 asks of one
    prior: torch.Tensor
    """(D + 1,): see `train.prior.Prior`; all 0 where nothing is known."""
    _in_numpy: Callable[[Array], tuple[Array, float]] | None = None
    """`score_one` with copies of the weights, until they change."""

    def score_one(self, observation: Array) -> tuple[Array, float]:
        """The normalised logits (A,) and the value of one observation (size,); for any thread."""
        if (score := self._in_numpy) is None:
            score = self._in_numpy = self._copied()
        return score(observation)

    def scores(self, observations: torch.Tensor) -> torch.Tensor:
        """The normalised logits (N, A) of observations (N, size); for any thread."""
        logits = [self.score_one(observation)[0] for observation in observations.cpu().numpy()]
        return torch.from_numpy(np.stack(logits)).to(observations.device)

    def train(self, mode: bool = True) -> QueryPolicy:  # noqa: FBT001, FBT002 - torch's signature
        """Switch dropout on or off; `score_one` copies the weights anew."""
        self._in_numpy = None
        super().train(mode)
        return self

    def _build_mlp_extractor(self) -> None:
        num_actions = int(self.action_space.n)  # type: ignore[attr-defined] # Discrete
        self.mlp_extractor = QueryNetwork(self.features_dim, num_actions)
        size = self.mlp_extractor.dimension + 1
        self.register_buffer("prior", torch.zeros(size, dtype=torch.float64))

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        self.action_net = nn.Identity()  # the network gives logits
        self.init_weights(self.mlp_extractor.head, gain=0.01)
        self.optimizer = self.optimizer_class(
            self.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg] # torch's optimizers have one
            **self.optimizer_kwargs,
        )
        self.register_load_state_dict_post_hook(_copy_anew)  # type: ignore[no-untyped-call] # torch's

    def _copied(self) -> Callable[[Array], tuple[Array, float]]:
        """`score_one` with copies of the weights; the layers that see observations are one."""
        weights = {
            name.removeprefix("mlp_extractor."): weight.detach().cpu().numpy()
            for name, weight in self.named_parameters()
        }
        dimension, actions = self.mlp_extractor.dimension, self.mlp_extractor.num_actions
        scale = np.full(self.features_dim, HISTORY_SCALE, np.float32)
        scale[:dimension] = EMBEDDING_SCALE
        around = weights["head.weight"][:, HIDDEN:] * scale
        own = OWN_SCALE * np.kron(weights["own"], np.eye(actions, dtype=np.float32))
        around[:, dimension : dimension + own.shape[1]] += own
        inner, outer = ("actor.0", "critic.0"), ("actor.2", "critic.2")
        first = np.concatenate([*(weights[f"{name}.weight"] * scale for name in inner), around])
        first_bias = np.concatenate([weights[f"{name}.bias"] for name in (*inner, "head")])
        second = np.stack([weights[f"{name}.weight"] for name in outer])
        second_bias = np.stack([weights[f"{name}.bias"] for name in outer])
        head = weights["head.weight"][:, :HIDDEN].copy()
        last, last_bias = weights["value_net.weight"][0].copy(), float(weights["value_net.bias"][0])

        def score(observation: Array) -> tuple[Array, float]:
            seen = np.vecdot(first, observation) + first_bias
            hidden = np.tanh(seen[: 2 * HIDDEN].reshape(2, 1, HIDDEN))
            actor, critic = np.tanh(np.vecdot(second, hidden) + second_bias)
            logits = np.vecdot(head, actor) + seen[2 * HIDDEN :]
            logits -= logits.max()
            value = float(np.vecdot(last, critic) + last_bias)
            return logits - np.log(np.exp(logits).sum()), value

        return score


class QueryNetwork(nn.Module):
    """From observations (N, size) to logits (N, A), and to what the critic's last layer sees."""

    def __init__(self, size: int, num_actions: int) -> None:
        super().__init__()
        self.actor, self.critic = _layers(size), _layers(size)
        self.hide = nn.Dropout(EMBEDDING_DROPOUT)
        self.head = nn.Linear(HIDDEN + size, num_actions)
        self.own = nn.Parameter(torch.zeros(OWN_FLAGS))
        self.num_actions = num_actions
        self.dimension = size - observation_size(0, num_actions)
        self.latent_dim_pi, self.latent_dim_vf = num_actions, HIDDEN

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits (N, A), and the input of the critic's last layer (N, HIDDEN)."""
        return self.forward_actor(observations), self.forward_critic(observations)

    def forward_actor(self, observations: torch.Tensor) -> torch.Tensor:
        """The logits (N, A)."""
        seen = self._seen(observations)
        flags = observations[:, self.dimension :][:, : OWN_FLAGS * self.num_actions]
        own = (self.own[:, None] * flags.reshape(-1, OWN_FLAGS, self.num_actions)).sum(dim=1)
        logits: torch.Tensor = self.head(torch.cat([self.actor(seen), seen], dim=1))
        return logits + OWN_SCALE * own

    def forward_critic(self, observations: torch.Tensor) -> torch.Tensor:
        """(N, HIDDEN)."""
        hidden: torch.Tensor = self.critic(self._seen(observations))
        return hidden

    def _seen(self, observations: torch.Tensor) -> torch.Tensor:
        embedding, history = observations.tensor_split([self.dimension], dim=1)
        return torch.cat([self.hide(embedding * EMBEDDING_SCALE), history * HISTORY_SCALE], dim=1)


def _layers(size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh())


def _copy_anew(policy: nn.Module, _keys: object) -> None:
    policy.train(policy.training)
