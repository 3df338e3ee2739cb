"""What counts as a score: a number from 0 to 1."""

from __future__ import annotations

from typing import SupportsFloat


def score_of(value: object) -> float | None:
    """A number from 0 to 1 as a float, None for anything else: a text is no number, whatever it says.

    Args:
        value: what a user's function returned; a bool, or a number of numpy or torch, is a number.
    """
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat):
        return None
    try:
        score = float(value)
    except Exception:  # noqa: BLE001 - whatever a user's object raises, it is no score
        return None
    return score if 0 <= score <= 1 else None  # nan is in no range
