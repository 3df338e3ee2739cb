"""What a vector environment is made of and called with, read and checked: spaces, seeds, masks, actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space, iterate
from numpy.typing import NDArray

Env = gymnasium.Env[Any, Any]
Space = gymnasium.Space[Any]
Options = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
"""What a reset is told: the same for every lane, or a list with what each lane is told."""


def check_distinct(envs: Sequence[Env]) -> None:
    """Check that no two lanes have the same environment, under whatever wrappers.

    Raises:
        ValueError: two have; their threads would step it at the same time.
    """
    lane_of: dict[int, int] = {}
    for lane, env in enumerate(envs):
        other = lane_of.setdefault(id(env.unwrapped), lane)
        if other != lane:
            raise ValueError(
                f"lanes {other} and {lane} have the same environment object, {env.unwrapped!r}; expected one "
                "of its own in each lane: make a new environment at every call"
            )


def observation_spaces(envs: Sequence[Env], mode: str | tuple[Space, Space]) -> tuple[Space, Space]:
    """The single and the batched observation space, once the environments' spaces have been compared.

    Raises:
        ValueError: an unknown mode.
        TypeError: a pair that is not of spaces.
        RuntimeError: an environment has another action space than the first, or an observation space that
            the mode does not allow.
    """
    first = envs[0].observation_space
    batched, single = _pair(mode) if not isinstance(mode, str) else (None, first)
    if batched is None and mode not in {"same", "different"}:
        raise ValueError(
            f"observation_mode is {mode!r}; expected 'same', 'different' or the pair (batched space, single)"
        )
    for lane, env in enumerate(envs):
        space = env.observation_space
        if not (space == single if mode == "same" else is_space_dtype_shape_equiv(space, single)):
            raise RuntimeError(
                f"lane {lane} has the observation space {space}, not {single}; "
                "observation_mode='different' allows other bounds, and nothing another shape or dtype"
            )
        if env.action_space != envs[0].action_space:
            raise RuntimeError(
                f"lane {lane} has the action space {env.action_space}, not lane 0's {envs[0].action_space}"
            )
    if mode == "same":
        return single, batch_space(single, len(envs))
    return single, batched or batch_differing_spaces([env.observation_space for env in envs])


def _pair(mode: Any) -> tuple[Space, Space]:  # noqa: ANN401 - checked here
    if not (
        isinstance(mode, tuple) and [isinstance(space, gymnasium.Space) for space in mode] == [True, True]
    ):
        raise TypeError(
            f"observation_mode is {mode!r}; expected 'same', 'different' or two spaces, (batched, single)"
        )
    batched, single = mode
    return batched, single


def seed_list(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """A seed a lane: none at all, seed + i, or those of the list.

    Raises:
        ValueError: a list of another length.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + i for i in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(f"expected {num_envs} seeds, one per lane, got {len(seed)}")
    return [None if each is None else int(each) for each in seed]


def reset_lanes(options: Options, num_envs: int) -> tuple[list[int], list[dict[str, Any] | None]]:
    """The lanes that `reset_mask` names (all without one), and the other options of each of the N lanes.

    `options` stays as it is; every lane has a dict of its own.

    Raises:
        TypeError: the mask is no bool array.
        ValueError: it has another shape, or is False everywhere; a list of another length.
    """
    everywhere = list(range(num_envs))
    if options is None:
        return everywhere, [None] * num_envs
    if not isinstance(options, Mapping):
        if len(options) != num_envs:
            raise ValueError(f"expected {num_envs} reset options, one per lane, got {len(options)}")
        return everywhere, [None if each is None else dict(each) for each in options]
    if "reset_mask" not in options:
        return everywhere, [dict(options) for _ in everywhere]
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError(f"options['reset_mask'] must be a bool array of shape ({num_envs},), got {mask!r}")
    if mask.shape != (num_envs,):
        raise ValueError(f"options['reset_mask'] must have shape ({num_envs},), got {mask.shape}")
    if not mask.any():
        raise ValueError("options['reset_mask'] is False everywhere; expected at least one lane to reset")
    rest = {name: value for name, value in options.items() if name != "reset_mask"}
    return np.flatnonzero(mask).tolist(), [dict(rest) for _ in everywhere]


def action_rows(space: Space, actions: NDArray[Any] | Any, count: int) -> list[Any]:  # noqa: ANN401 - a batch
    """The single actions of a batch.

    Raises:
        TypeError: nothing that holds actions.
        ValueError: not `count` of them.
    """
    try:
        rows = list(iterate(space, actions))
    except TypeError as error:
        raise TypeError(f"expected a sequence of {count} actions, got {actions!r}") from error
    if len(rows) != count:
        raise ValueError(f"expected {count} actions, one per lane, got {len(rows)}")
    return rows
