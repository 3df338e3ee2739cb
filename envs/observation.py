"""The observation: a flat float32 vector with a documented layout.

For D embedding dimensions and A mutators, in this order:

    D   embedding of the episode's original query, times sqrt(D): an entry is about 1 in size
    A   1 where the mutator was tried in this episode
    A   1 where it was tried and left the query as it was, the last time it was tried
    A   one-hot of the last action (all 0 at the start)
    1   last reward, clipped to +-REWARD_LIMIT
    3   one-hot of the last outcome: answered, partly refused, refused (all 0: undetermined, none)
    1   steps taken divided by the step limit
    1   how likely the query ought to be refused, by its words (0: that is not known)

What a query calls for stands in its own words, and the history says what was done to them: so the
original is embedded, not the rewording. A mutator that left the query as it was may be worth
another try; one that changed it hardly is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

LABELS = ("answered", "partly_refused", "refused")
REWARD_LIMIT = 1000.0


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What an episode remembers of its earlier steps."""

    tried: frozenset[int] = frozenset()
    idle: frozenset[int] = frozenset()
    """Those of `tried` that left the query as it was, the last time."""
    last_action: int | None = None
    last_reward: float = 0.0
    last_label: str | None = None

    def after(self, action: int, reward: float, label: str, *, changed: bool) -> Memory:
        """The memory once `action` earned `reward` and an outcome `label`, or `undetermined`."""
        return Memory(
            tried=self.tried | {action},
            idle=self.idle - {action} if changed else self.idle | {action},
            last_action=action,
            last_reward=reward,
            last_label=label,
        )


def memory_of_look(stop: int | None, reward: float, label: str) -> Memory:
    """The memory once the query was asked as it stands; `noop`, action `stop`, counts as tried."""
    if stop is None:
        return Memory(last_reward=reward, last_label=label)
    return Memory().after(stop, reward, label, changed=False)


def observation_size(dimension: int, num_mutators: int) -> int:
    """Length of the observation for embeddings of `dimension` and `num_mutators` actions."""
    return dimension + 3 * num_mutators + 3 + len(LABELS)


def observation_space(
    dimension: int, num_mutators: int
) -> gymnasium.spaces.Space[NDArray[np.float32]]:
    """The float32 Box of shape (observation_size,) with the bounds that follow from the layout."""
    high = np.ones(observation_size(dimension, num_mutators), np.float32)
    high[:dimension] = np.sqrt(dimension) + 1e-3  # rounding may take an entry past the length
    high[dimension + 3 * num_mutators] = REWARD_LIMIT
    low = np.where(high > 1, -high, 0).astype(np.float32)
    return cast("gymnasium.spaces.Space[NDArray[np.float32]]", gymnasium.spaces.Box(low, high))


def observation(
    embedding: NDArray[np.float32],
    num_mutators: int,
    memory: Memory,
    fraction: float,
    harmful: float = 0.0,
) -> NDArray[np.float32]:
    """The observation, given the original's unit row (D,) and the fraction of the steps taken."""
    dimension = len(embedding)
    shown = np.zeros(observation_size(dimension, num_mutators), np.float32)
    np.multiply(embedding, np.float32(np.sqrt(dimension)), out=shown[:dimension])
    tail = dimension + 3 * num_mutators
    tried, idle, last = shown[dimension:tail].reshape(3, num_mutators)
    tried[list(memory.tried)] = 1
    idle[list(memory.idle)] = 1
    if memory.last_action is not None:
        last[memory.last_action] = 1
    shown[tail] = min(max(memory.last_reward, -REWARD_LIMIT), REWARD_LIMIT)
    for k, label in enumerate(LABELS, start=tail + 1):
        shown[k] = memory.last_label == label
    shown[-2:] = fraction, harmful
    return shown
