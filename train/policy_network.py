"""The network of a trained policy as a plain torch module, loaded from a policy.zip."""

from __future__ import annotations

from pathlib import Path

import torch
from stable_baselines3.common.policies import ActorCriticPolicy

from train.errors import UserError
from train.ppo import MaskedPPO

ONE_LANE = {"n_envs": 1}
"""In place of the lanes of the training: their rollout buffer is not needed."""


class PolicyNetwork(torch.nn.Module):
    """Maps observations (N, observation size), float32, to normalised logits (N, actions)."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__()
        self.policy = policy
        """What Stable-Baselines3 made."""
        self.eval()

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """The logits of a batch, on any number of threads at once.

        Not by `get_distribution`: it puts them into an object that all its callers share.
        """
        policy = self.policy
        features = policy.extract_features(observations, policy.pi_features_extractor)
        scores: torch.Tensor = policy.action_net(policy.mlp_extractor.forward_actor(features))  # type: ignore[arg-type] # no tuple: one extractor is given
        return scores.log_softmax(dim=-1)


def load_network(path: Path) -> PolicyNetwork:
    """The network in a policy.zip, on the CPU.

    Raises:
        UserError: it cannot be loaded.
    """
    try:
        model = MaskedPPO.load(path, device="cpu", custom_objects=ONE_LANE)
    except Exception as error:  # it is unpickled: whatever class is missing there comes up
        raise UserError(
            f"{str(path)!r} cannot be loaded ({type(error).__name__}: {error}): "
            "load it with the version of mutagym that wrote it, or train anew"
        ) from error
    return PolicyNetwork(model.policy)
