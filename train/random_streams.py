"""The random streams that a run's seed is split into, by name."""

from __future__ import annotations

from enum import IntEnum, unique


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
    KEPT = 5
    """The order of the kept queries."""
