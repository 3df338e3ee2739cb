"""The random streams that a run's seed is split into, by name."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from enum import IntEnum, unique

import numpy as np

GLOBAL_RNG_LOCK = threading.Lock()
"""Held by who seeds the generators of the process (torch's, numpy's, Python's) and draws from them: trainings
may go side by side on threads."""


@unique
class Stream(IntEnum):
    """What a stream decides. Its value is the first number of its key: `SeedSequence(seed, spawn_key=...)`.

    A value never changes: runs of the same seed would differ from then on.
    """

    NOISE = 0
    """The noise of actions, keyed (lane, row)."""
    SHUFFLE = 1
    """The shuffles of minibatches, keyed (update, epoch)."""
    LANE = 2
    """The seeds of lanes, keyed (lane,)."""
    DROPOUT = 3
    """What dropout hides, keyed (rollout,)."""
    AUDIT = 4
    """The steps that the audit judge sees, keyed (rollout,)."""
    WARM_START = 5
    """What PPO's network is fitted on, where a bandit learned before it: keyed () and, for dropout, (0,)."""
    KEPT = 6
    """The order of the kept queries."""


def action_streams(seed: int, lanes: Sequence[int], rows: Sequence[int]) -> list[np.random.Generator]:
    """The streams that the next actions of N lanes are drawn from, which took `rows` (N,) actions before.

    Each lane has one of its own for each action: counters are all that a resumed run needs.
    """
    keys = [(Stream.NOISE, lane, row) for lane, row in zip(lanes, rows, strict=True)]
    return [np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key)) for key in keys]
