"""How much of all there is a selector may spend."""

from __future__ import annotations

import math

_ROUNDING = 1e-9


def part_of(total: int, share: float, name: str) -> int:
    """This share of the total, rounded up, at least 1; a product that is whole but for rounding is whole.

    Args:
        total: at least 1.
        share: above 0, at most 1.
        name: what the setting is called.

    Raises:
        ValueError: the share is out of range.
    """
    if not 0 < share <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, got {share!r}")
    return max(1, math.ceil(share * total - _ROUNDING))
