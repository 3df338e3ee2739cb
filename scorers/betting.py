"""Tests and intervals that hold at any time: one may look after each value, and stop when one likes.

They bet (Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting"). Against
the claim that a mean is at most m one stakes a share c of one's capital on each value y in [0, 1]: it becomes
1 - c + c y / m times what it was, which under the claim is no gain on average, whatever was seen before. So
capital that starts at 1 reaches 1 / delta with probability delta at most (Ville). Several shares are played
side by side, each with a part of the capital, for the best one is not known beforehand.

Where the values are drawn without replacement from a known number of them, m is the mean that the values
not yet seen would have under the claim. It moves away from what was seen, and once all are seen the answer
is certain.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_SHARES = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.55, 0.8])
"""Of the capital, staked side by side: small ones find small differences, large ones are quick."""
_ROUNDING = 1e-9
"""Sums that differ by no more are equal but for the rounding of floats."""
_HALVINGS = 26


class MeanTest:
    """Evidence that a mean is above a bound, gathered value by value.

    The claim that it speaks against: the mean of the values is at most `bound`. With `population`, that is
    the mean of so many values that are drawn without replacement, in an order that chance made; without, the
    expectation of values of which none depends on the others. Whichever way the values are split over calls
    of `add`, the bits of the evidence are the same.

    Args:
        bound: in [0, 1]; one for all tests, or an array of them that broadcasts to `shape`.
        population: how many values there are in all; None: any number.
        shape: of many tests side by side; `add` then takes (*shape, n) values.

    Raises:
        ValueError: the bound or the population is out of range.
    """

    def __init__(
        self, bound: float | Floats, *, population: int | None = None, shape: tuple[int, ...] = ()
    ) -> None:
        if not np.all((np.asarray(bound) >= 0) & (np.asarray(bound) <= 1)):
            raise ValueError(f"expected a bound from 0 to 1, got {bound!r}")
        _check_population(population)
        self._bounds = np.broadcast_to(bound, shape)[..., None]
        self._population = population
        self._sum = np.zeros(shape)
        self._logs = np.zeros((*shape, len(_SHARES)))
        self._best = np.zeros(shape)
        self.count = 0
        """How many values each test was given."""

    @property
    def log_evidence(self) -> Floats:
        """The log of the largest capital so far, `shape`: infinite where the claim cannot be true."""
        return self._best

    @property
    def log_capital(self) -> Floats:
        """The log of the capital now, `shape`; where it stands says how far it is to a decision."""
        most = self._logs.max(-1)
        capital: Floats = most + np.log(np.exp(self._logs - most[..., None]).mean(-1))
        return capital

    def add(self, values: ArrayLike) -> Floats:
        """Take further values, (*shape, n), in the order they were drawn; the log of the evidence so far.

        Raises:
            ValueError: a value is not in [0, 1], or there are more than the population has.
        """
        given = np.asarray(values, dtype=np.float64)
        if not ((given >= -_ROUNDING) & (given <= 1 + _ROUNDING)).all():
            raise ValueError("expected values in [0, 1]")
        count = self.count + given.shape[-1]
        if self._population is not None and count > self._population:
            raise ValueError(f"expected at most {self._population} values, the population, got {count}")
        if given.shape[-1]:
            paths, self._logs, self._sum = _capital(
                given, self._bounds, self._population, (self._logs, self._sum, self.count)
            )
            self._best = np.maximum(self._best, paths.max(-1))
            self.count = count
        return self._best

    def rejects(self, delta: float) -> NDArray[np.bool_]:
        """Whether the claim is given up, `shape`; if it is true, that happens with probability delta."""
        return np.asarray(self._best >= -math.log(delta))


class PairedTest(MeanTest):
    """Evidence that one of two does better on the same datapoints, gathered difference by difference.

    The claim that it speaks against: the mean of the differences, each in [-1, 1], is at most `margin`.
    `population` and `shape` are those of `MeanTest`; with a population, the claim is about the datapoints
    of this dataset, and the test is certain once it has all of them.

    Raises:
        ValueError: the margin is not in [-1, 1], or the population is below 1.
    """

    def __init__(
        self, *, population: int | None = None, margin: float = 0.0, shape: tuple[int, ...] = ()
    ) -> None:
        if not -1 <= margin <= 1:
            raise ValueError(f"expected a margin from -1 to 1, got {margin!r}")
        super().__init__((1 + margin) / 2, population=population, shape=shape)

    def add(self, values: ArrayLike) -> Floats:
        """Take further differences, (*shape, n), in the order of the datapoints; the log of the evidence.

        Raises:
            ValueError: one is not in [-1, 1], or there are more than the population has.
        """
        return super().add((1 + np.asarray(values, dtype=np.float64)) / 2)


def interval(
    scores: ArrayLike,
    delta: float = 0.05,
    *,
    population: int | None = None,
    at_best: ArrayLike | None = None,
) -> tuple[Floats, Floats]:
    """An interval for the mean that holds after any number of scores, (lows, highs).

    Without `population` it is for the expectation of scores of which none depends on the others, as of
    datapoints drawn from all that there might be: with probability 1 - delta no interval that is formed on
    the way misses it. With `population` it is for the mean of that many scores, of which these are the first
    in an order that chance made; of all of them it is the mean itself.

    Args:
        scores: (..., n), in [0, 1], in the order they were drawn.
        delta: how often an interval may ever miss, above 0 and below 1.
        population: how many scores there are in all; None: any number.
        at_best: what each score may have been at best: the upper end is of these; None: of the scores.

    Raises:
        ValueError: a score is not in [0, 1], delta is out of range, or there are more scores than that.
    """
    values = np.asarray(scores, dtype=np.float64)
    most = values if at_best is None else np.asarray(at_best, dtype=np.float64)
    if not 0 < delta < 1:
        raise ValueError(f"expected a delta above 0 and below 1, got {delta!r}")
    if not ((values >= 0) & (most <= 1)).all() or not ((most >= 0) & (values <= 1)).all():
        raise ValueError("expected scores in [0, 1]")
    _check_population(population)
    if population is not None and values.shape[-1] > population:
        raise ValueError(f"expected at most {population} scores, the population, got {values.shape[-1]}")
    if not values.shape[-1]:
        return np.zeros(values.shape[:-1]), np.ones(values.shape[:-1])
    if values.shape[-1] == population:
        return values.mean(-1), most.mean(-1)
    lows, below = _lows(np.stack([values, 1 - most]), delta / 2, population)
    # What was known on the way may leave out the mean that is there now; then the interval is wider.
    return np.minimum(lows, values.mean(-1)), np.maximum(1 - below, most.mean(-1))


def _lows(values: Floats, delta: float, population: int | None) -> Floats:
    """The largest bounds that the mean is known to be above, (...), rounded down."""
    shape = values.shape[:-1]
    start = (np.zeros((*shape, len(_SHARES))), np.zeros(shape), 0)
    lows, highs = np.zeros(shape), np.ones(shape)
    # A higher bound is met with less capital at each step, so that halving finds the highest one given up.
    for _ in range(_HALVINGS):
        middle = (lows + highs) / 2
        paths, _, _ = _capital(values, middle[..., None], population, start)
        given_up = paths.max(-1) >= -math.log(delta)
        lows, highs = np.where(given_up, middle, lows), np.where(given_up, highs, middle)
    return lows


def _capital(
    values: Floats, bounds: Floats, population: int | None, start: tuple[Floats, Floats, int]
) -> tuple[Floats, Floats, Floats]:
    """The logs of the capital after each of (..., n) values, and of each share's and the sums at their end.

    Args:
        values: (..., n).
        bounds: (..., 1), what the mean is at most, as is claimed.
        population: how many values there are in all; None: any number.
        start: the logs of each share's capital (..., shares), the sums (...), and the count before.
    """
    logs, before, count = start
    # Summed one after another from where it stood: splitting the values changes no bit.
    sums = np.concatenate([before[..., None], values], axis=-1).cumsum(-1)
    if population is None:
        means, impossible = bounds, np.False_
    else:
        left = population * bounds - sums
        means = left[..., :-1] / (population - count - np.arange(values.shape[-1]))
        impossible = left[..., 1:] < -_ROUNDING
    # Where the rest can only be 0 nothing is staked: a value above 0 is then impossible, as was seen above.
    ratios = np.where(means > _ROUNDING, values / np.maximum(means, _ROUNDING), 1.0)
    path = np.log(1 + _SHARES[:, None] * (ratios[..., None, :] - 1))  # in place from here on: it is large
    path[..., 0] += logs
    path.cumsum(-1, out=path)
    logs, most = path[..., -1].copy(), path.max(-2)
    path -= most[..., None, :]
    paths = most + np.log(np.exp(path, out=path).sum(-2)) - math.log(len(_SHARES))
    return np.where(impossible, np.inf, paths), logs, sums[..., -1]


def _check_population(population: int | None) -> None:
    if population is not None and population < 1:
        raise ValueError(f"expected a population of at least 1, got {population!r}")
