"""Tests and intervals that hold at any time: look after each value, and stop when you like.

Against the claim that a mean is at most m, stake a share c of your capital on each value y in [0,
1]: it becomes 1 - c + c y / m times what it was, no gain on average if the claim is true. So
capital that starts at 1 reaches 1 / delta with probability delta at most (Ville 1939; Waudby-Smith
and Ramdas 2024, "Estimating means of bounded random variables by betting"). Several shares are
played side by side, each with a part of the capital, for the best one is not known beforehand.

Where the values are the first of a population, in an order that chance made, m is the mean that the
rest would have under the claim, and with the last value the answer is certain.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SHARES = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.55, 0.8])[:, None]
"""Of the capital: small ones find small differences, large ones are quick."""
ROUNDING = 1e-9
"""Sums that differ by no more are equal."""
HALVINGS = 26


def log_evidence(
    values: Floats, bound: float | Floats, population: int | None = None
) -> NDArray[np.float64]:
    """The log of the largest capital won so far against "the mean is at most `bound`".

    Args:
        values: (..., n), each in [0, 1], in the order they were drawn.
        bound: in [0, 1], or (...) of them.
        population: how many values there are in all, drawn without replacement, and the claim is of
            their mean; None: any number, drawn independently.

    Returns:
        (...), at least 0; infinite where the claim cannot be true any more.

    Raises:
        ValueError: a value is not in [0, 1], or there are more than the population.
    """
    values = np.asarray(values, np.float64)
    count = values.shape[-1]
    if not ((values >= -ROUNDING) & (values <= 1 + ROUNDING)).all():
        raise ValueError("expected values from 0 to 1")
    if population is not None and count > population:
        raise ValueError(f"expected at most {population} values, the population, got {count}")
    if not count:
        return np.zeros(values.shape[:-1])
    means = np.asarray(bound, np.float64)[..., None]
    is_impossible = np.zeros(values.shape[:-1], bool)
    if population is not None:
        left = population * means - values.cumsum(-1)
        means = (left + values) / (population - np.arange(count))
        is_impossible = (left < -ROUNDING).any(-1)
    # Where the rest can only be 0 nothing is staked: a value above 0 is impossible then.
    ratios = np.where(means > ROUNDING, values / np.maximum(means, ROUNDING), 1.0)
    logs = np.log1p(SHARES * (ratios[..., None, :] - 1)).cumsum(-1)
    capital = np.logaddexp.reduce(logs, axis=-2).max(-1) - math.log(len(SHARES))
    return np.where(is_impossible, np.inf, np.maximum(0.0, capital))


def is_better(
    a: Floats, b: Floats, delta: float, *, margin: float = 0.0, population: int | None = None
) -> NDArray[np.bool_]:
    """Whether a's mean is shown to exceed b's by more than `margin`, paired by datapoint.

    If it does not exceed it, the answer is ever yes with probability `delta` at most. Both are
    (..., n), in [0, 1], and `population` is as for `log_evidence`.
    """
    values = (1 + np.asarray(a) - np.asarray(b)) / 2
    return log_evidence(values, (1 + margin) / 2, population) >= -math.log(delta)


def interval(
    values: Floats, delta: float = 0.05, population: int | None = None
) -> tuple[Floats, Floats]:
    """The ends (...) of an interval for the mean.

    With probability 1 - delta or more, the interval holds the mean after each value drawn so far.

    Args:
        values: (..., n), in [0, 1], in the order they were drawn; without any all is possible.
        delta: above 0 and below 1.
        population: as for `log_evidence`; of all of them the mean itself is known.
    """
    values = np.asarray(values, np.float64)
    if not values.shape[-1]:
        return np.zeros(values.shape[:-1]), np.ones(values.shape[:-1])
    mean = values.mean(-1)
    if values.shape[-1] == population:
        return mean, mean
    low, below = (_low(each, delta / 2, population) for each in (values, 1 - values))
    # What was seen on the way may rule out the mean that there is now.
    return np.minimum(low, mean), np.maximum(1 - below, mean)


def _low(values: Floats, delta: float, population: int | None) -> Floats:
    """The largest bounds (...) that the mean is shown to exceed, by bisection."""
    low, high = np.zeros(values.shape[:-1]), np.ones(values.shape[:-1])
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        is_exceeded = log_evidence(values, middle, population) >= -math.log(delta)
        low, high = np.where(is_exceeded, middle, low), np.where(is_exceeded, high, middle)
    return low
