"""How a training began and ended: its first and its last rollouts, an eighth of all each, or one at least.

An episode belongs to the row in which it began: the quick ones end well, so counting those that end in the
first rollouts would flatter them. The last rows, in which an episode may not have had the time to end, begin
none: for episodes the end of the training lies before them.
"""

from __future__ import annotations

from dataclasses import dataclass

ENDS = ("start", "end")
_PART = 8


@dataclass(frozen=True)
class End:
    """The rows of one end of a training; in a short one both have the same."""

    steps: range
    episodes: range
    """Those whose episodes count, where they begin there."""


def ends_of(rows: int, rollout: int, max_steps: int) -> dict[str, End]:
    """The two ends, by name.

    Args:
        rows: how many rows of all lanes were played.
        rollout: rows of a rollout.
        max_steps: the step limit of an episode.
    """
    size = max(1, rows // rollout // _PART) * rollout
    steps, episodes = (_first_and_last(count, size) for count in (rows, max(0, rows - max_steps + 1)))
    return {name: End(*both) for name, both in zip(ENDS, zip(steps, episodes, strict=True), strict=True)}


def ends_overlap(rows: int, rollout: int, max_steps: int) -> bool:
    """Whether both ends have some of the same rows: the training is too short to compare them."""
    start, end = ends_of(rows, rollout, max_steps).values()
    return start.steps.stop > end.steps.start


def _first_and_last(count: int, size: int) -> tuple[range, range]:
    return range(min(size, count)), range(max(0, count - size), count)
