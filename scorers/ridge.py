"""Ridge regression that is told one row at a time, and is at each time the one solved over all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scorers.statistics import Floats

STRENGTHS = (0.1, 1.0, 10.0)
"""Ridge strengths to choose among, for rows of a length of some units."""


class OnlineRidge:
    """Linear regression with a penalty on the squared weights, under several strengths at once.

    Each row changes the inverse of X'X + strength I by a matrix of rank one (Sherman and Morrison 1950),
    which is exact: the weights are those of the batch. In use is the strength whose predictions, each made
    before its value was told, missed least so far; of equal ones the greatest.

    Args:
        width: D, the length of a row.
        strengths: the penalties to choose among, above 0. Memory is D x D numbers for each, and so is the
            work of a row.

    Raises:
        ValueError: there is no strength, or one that is not above 0.
    """

    def __init__(self, width: int, strengths: Sequence[float] = STRENGTHS) -> None:
        if not strengths or not all(0 < strength < math.inf for strength in strengths):
            raise ValueError(f"expected ridge strengths above 0, got {tuple(strengths)!r}")
        self._strengths = np.array(strengths, float)
        self._inverses: Floats = np.eye(width) / self._strengths[:, None, None]
        self._missed: Floats = np.zeros(len(strengths))
        self.weights: Floats = np.zeros((len(strengths), width))
        """(strengths, D), the weights under each strength."""

    @property
    def strength(self) -> float:
        """The strength in use."""
        return float(self._strengths[self._best()])

    def predict(self, row: Floats) -> float:
        """What a row's value is foreseen to be.

        Args:
            row: (D,).
        """
        return float(self.weights[self._best()] @ row)

    def tell(self, row: Floats, value: float) -> None:
        """Learn that this row (D,) came with this value."""
        reach = self._inverses @ row
        gain = reach / (1 + reach @ row)[:, None]
        miss = value - self.weights @ row
        self._missed += miss**2
        self.weights += gain * miss[:, None]
        self._inverses -= gain[:, :, None] * reach[:, None, :]

    def _best(self) -> int:
        least = self._missed.min()
        return int(np.argmax(np.where(self._missed <= least, self._strengths, 0)))
