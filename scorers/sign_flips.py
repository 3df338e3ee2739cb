"""The test that flips signs: is a sum of differences farther from 0 than chance alone brings it?"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scorers.statistics import Floats

_DRAWN = 99_999
_FEW = 20
"""So many signs are flipped in every way, a million of them."""
_FINEST = 100_000
"""The smallest step, as a part of the largest difference, that is looked for."""
_MOST_WORK = 400_000_000
"""Additions that a count in steps may take: about a second."""
_ROUNDED = 1e-11
"""A ratio that is this near to a fraction is one, but for the rounding of floats."""
_SAME = 1e-12
"""Sums that differ by no more than this share of all differences together are equal."""
_BITS = 8


class SignFlips(NamedTuple):
    """What the test says."""

    p_value: float
    """The share of all flips whose sum is as far from 0 as the one found, or farther."""
    test: str
    """How that share was found."""


def sign_flips(differences: Floats) -> SignFlips:
    """Test differences, of which each might as well have the other sign (Fisher 1935).

    The share of flips is exact where all differences are multiples of one step, as those of successes are
    and of returns with a cost a step: then the sums are counted in whole steps (Pagano and Tritchler 1983).
    It is exact for up to 20 differences of any size, too. Otherwise 99,999 flips are drawn, always the same
    ones, and the one found counts among them (Phipson and Smyth 2010): the p-value is valid, and its standard
    error is sqrt(p (1 - p) / 100,000), .0007 at .05.

    Args:
        differences: (differences,), none of them 0; without any the p-value is 1.
    """
    ordered = differences[np.argsort(np.abs(differences))]
    sizes = np.abs(ordered)
    if (steps := _whole_steps(sizes)) is not None:
        found = abs(int(np.where(ordered > 0, steps, -steps).sum()))
        return SignFlips(_counted(steps, found), "exact sign flips by query")
    far = abs(math.fsum(ordered)) - _SAME * float(sizes.sum())
    if len(sizes) <= _FEW:
        return SignFlips(float((_all_sums(sizes) >= far).mean()), "exact sign flips by query")
    hits = int((_drawn_sums(sizes) >= far).sum())
    return SignFlips((1 + hits) / (1 + _DRAWN), f"sign flips by query, {_DRAWN:,} drawn")


def _whole_steps(sizes: Floats) -> NDArray[np.int64] | None:
    """The ascending sizes in multiples of their largest common step; None where it is too small to count."""
    shares: list[Fraction] = []
    finest = 1
    for ratio in (sizes / sizes[-1:]).tolist():
        shares.append(Fraction(ratio).limit_denominator(_FINEST))
        finest = math.lcm(finest, shares[-1].denominator)
        if finest > _FINEST or abs(shares[-1] - ratio) > _ROUNDED:
            return None
    steps = np.array([int(share * finest) for share in shares], np.int64)
    return steps if len(steps) * int(steps.sum()) <= _MOST_WORK else None


def _counted(steps: NDArray[np.int64], found: int) -> float:
    """The share of flips at least `found` steps from 0: the chance of each sum of the positive steps."""
    chance = np.ones(1)
    for step in steps:
        more = np.zeros(len(chance) + step)
        more[: len(chance)] = chance
        more[step:] += chance
        chance = more / 2
    total = len(chance) - 1
    return min(1.0, float(chance[np.abs(2 * np.arange(total + 1) - total) >= found].sum()))


def _all_sums(sizes: Floats) -> Floats:
    """(2 ** sizes,), how far from 0 the sum is under each flip."""
    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate([sums + size, sums - size])
    return np.abs(sums)


def _drawn_sums(sizes: Floats) -> Floats:
    """(drawn,), how far from 0 the sum is under flips that are drawn: a byte flips eight signs at once."""
    chance = np.random.default_rng(0)
    signs = 1.0 - 2 * (np.arange(2**_BITS)[:, None] >> np.arange(_BITS) & 1)
    sums = np.zeros(_DRAWN)
    for start in range(0, len(sizes), _BITS):
        part = sizes[start : start + _BITS]
        sums += (signs[:, : len(part)] @ part)[chance.integers(2**_BITS, size=_DRAWN, dtype=np.uint8)]
    return np.abs(sums)
