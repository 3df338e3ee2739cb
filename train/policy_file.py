"""The weights of a trained policy as plain tensors: `policy.safetensors` of a run folder.

The format is safetensors' own, which holds names, shapes and numbers and nothing that is executed. The
`policy.zip` beside it, for users of Stable-Baselines3, holds pickled Python and is never read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from envs.observation import observation_size
from records.errors import UserError
from records.outputs import replacing
from train.actor_critic import HIDDEN, QueryPolicy
from train.bandit import BanditPolicy
from train.linear_bandit import OWN, SHARED

WEIGHTS = "policy.safetensors"
FORMAT = "1"
"""Goes up when an older program could not read the file, or the other way round."""
MOST_BYTES = 2**28
"""Bytes of a file that is read: a policy on the longest embeddings there are takes a hundredth of it."""
_PRECISION, _DIRECTIONS = "model.precision", "model.directions"
_INPUT, _OUTPUT = "mlp_extractor.actor.0.weight", "action_net.linear.weight"


def save_weights(policy: QueryPolicy | BanditPolicy, path: Path) -> None:
    """Write a policy's weights whole or not at all."""
    weights = {name: weight.detach().cpu().contiguous() for name, weight in policy.state_dict().items()}
    with replacing(path) as part:
        part.write_bytes(save(weights, metadata={"format": "pt", "mutagym_policy": FORMAT}))


def load_weights(path: Path) -> QueryPolicy | BanditPolicy:
    """The policy of these weights, on the CPU: a network, or a bandit's. Its sizes are those of its tensors.

    Raises:
        UserError: the file is damaged, too long, of another version, or no policy's.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it is over {MOST_BYTES} bytes")  # noqa: TRY301 - said as the others are
        with safe_open(path, framework="pt", device="cpu") as file:
            version = (file.metadata() or {}).get("mutagym_policy")
            weights = {name: file.get_tensor(name) for name in file.keys()} if version == FORMAT else {}  # noqa: SIM118 - no dict
        if version == FORMAT:
            policy = _bandit(weights) if _PRECISION in weights else _network(*_sizes(weights))
            policy.load_state_dict(weights)
            return policy
    except (OSError, SafetensorError, ValueError, LookupError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200]
        raise UserError(f"{str(path)!r} is damaged, or no policy of a run: {why}") from error
    raise UserError(
        f"{str(path)!r} has format {version!r}, this program has {FORMAT!r}: "
        "use it with the version of mutagym that wrote it, or train again"
    )


def _sizes(weights: Mapping[str, torch.Tensor]) -> tuple[int, int]:
    """The length of the observations and the number of mutators: no larger than the file that holds them.

    A tensor without rows may claim any length, and would have a policy made that fills the memory.

    Raises:
        ValueError: the tensors are not of these sizes.
    """
    (rows, size), (num_actions, shown) = weights[_INPUT].shape, weights[_OUTPUT].shape
    if rows != HIDDEN or shown != HIDDEN + size:
        raise ValueError(f"tensors of {rows} x {size} and {num_actions} x {shown} are no policy's")
    return size, num_actions


def _network(size: int, num_actions: int) -> QueryPolicy:
    """A new policy for observations of this size and so many mutators."""
    if size < observation_size(0, num_actions):
        raise ValueError(f"observations of {size} numbers do not hold the history of {num_actions} mutators")
    return QueryPolicy(_shown(size), spaces.Discrete(num_actions), lambda _left: 0.0)


def _bandit(weights: Mapping[str, torch.Tensor]) -> BanditPolicy:
    """A new bandit of the size of these weights.

    Raises:
        ValueError: the tensors are not of a bandit's sizes.
    """
    (dimension, components), (size, _) = weights[_DIRECTIONS].shape, weights[_PRECISION].shape
    own = OWN + components
    num_actions = (isqrt(own**2 + 4 * max(0, size - SHARED)) - own) // 2  # each has `own` and one for each
    if SHARED + num_actions * (own + num_actions) != size or num_actions < 1 or not dimension * components:
        raise ValueError(f"tensors of {dimension} x {components} and {size} are no bandit's")
    shown = _shown(dimension + observation_size(0, num_actions))
    return BanditPolicy(shown, spaces.Discrete(num_actions))


def _shown(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)
