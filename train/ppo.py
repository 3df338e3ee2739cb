"""PPO whose runs depend on the seed alone: not on who else is in a batch, nor on rows that did not happen."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy

from train.random_streams import GLOBAL_RNG_LOCK, Stream, action_streams
from train.rollouts import Choice, MaskedRollouts, in_blocks


def predict_blocks(
    policy: ActorCriticPolicy, observations: NDArray[Any], lanes: Sequence[int] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Values (N,) and normalised logits (N, actions) of N observations, for a policy over discrete actions.

    The policy is left in evaluation mode. See `in_blocks` for the arguments.
    """
    policy.set_training_mode(False)

    def forward(block: NDArray[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        shared, _ = policy.obs_to_tensor(block)
        # A copy in torch's own memory: how an array happens to be aligned can change the bits of a product.
        seen = shared.clone()  # type: ignore[union-attr] # no dict: MaskedRollouts refuses those
        distribution = policy.get_distribution(seen).distribution
        return policy.predict_values(seen).flatten(), distribution.logits  # type: ignore[union-attr] # a Categorical: the actions are Discrete

    values, logits = in_blocks(forward, observations, lanes)
    return values, logits


def action_noise(
    seed: int, lanes: Sequence[int], rows: Sequence[int], num_actions: int
) -> NDArray[np.float64]:
    """Standard Gumbel noise (N, num_actions) for the next actions of N lanes; see `action_streams`."""
    return np.array([stream.gumbel(size=num_actions) for stream in action_streams(seed, lanes, rows)])


def weights_sha256(policy: torch.nn.Module | Mapping[str, torch.Tensor]) -> str:
    """A hash of a policy's weights, or of its `state_dict`: by name, each with dtype, shape and bytes."""
    weights = policy.state_dict() if isinstance(policy, torch.nn.Module) else policy
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class MaskedPPO(MaskedRollouts, PPO):
    """Stable-Baselines3's PPO for steps that may turn out not to have happened; see `MaskedRollouts`.

    - Actions are argmax(logits + Gumbel noise), the noise keyed (seed, lane, row): see `action_noise`.
    - Inference runs in fixed blocks: see `in_blocks`.
    - What the network draws in an update, as dropout does, is keyed (seed, update).

    So a run depends on the seed and on what the environments answer, and on nothing else. The loss and its
    options are SB3's own.
    """

    def choose(self, observations: NDArray[Any], lanes: Sequence[int], rows: Sequence[int]) -> Choice:
        """Draw the next actions of N lanes by their probabilities; see `MaskedRollouts.choose`."""
        values, logits = predict_blocks(self.policy, observations, lanes)
        noise = action_noise(self.rollout_buffer.seed, lanes, rows, logits.shape[1])
        actions = np.argmax(logits + noise, axis=1)
        return Choice(actions, values, logits[np.arange(len(actions)), actions])

    def values(self, observations: NDArray[Any], lanes: Sequence[int] | None = None) -> NDArray[np.float32]:
        """The critic's values (N,)."""
        return predict_blocks(self.policy, observations, lanes)[0]

    def greedy(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """The likeliest actions (N,)."""
        _, logits = predict_blocks(self.policy, observations)
        return np.asarray(np.argmax(logits, axis=1))

    def update(self) -> None:
        """SB3's update."""
        key = np.random.SeedSequence(self.rollout_buffer.seed, spawn_key=(Stream.DROPOUT, self.rollouts))
        with GLOBAL_RNG_LOCK, torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(key.generate_state(1)[0]))
            PPO.train(self)
