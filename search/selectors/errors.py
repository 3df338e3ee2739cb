"""Who fails too often to be named, and who is sure not to, of combinations that were evaluated in part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search.selectors.cells import Cells
from search.selectors.confidence import MeanTest

_ROUNDING = 1e-9
"""A share of a count is whole but for the rounding of floats."""


def fit(cells: Cells, max_errors: float) -> NDArray[np.bool_]:
    """(combinations,), who was evaluated, and failed on no more than this share of that."""
    fit_ones: NDArray[np.bool_] = (cells.seen > 0) & (cells.errors <= max_errors * cells.seen + _ROUNDING)
    return fit_ones


def hopeless(cells: Cells, max_errors: float) -> NDArray[np.bool_]:
    """(combinations,), who failed already more often than on this share of the dataset."""
    hopeless_ones: NDArray[np.bool_] = cells.errors > max_errors * cells.datapoints + _ROUNDING
    return hopeless_ones


def fails_seldom(cells: Cells, number: int, max_errors: float, delta: float) -> bool:
    """Whether a combination is sure to fail on no more of the dataset than it may.

    Args:
        cells: what was evaluated, in the order that chance made.
        number: of the combination.
        max_errors: the share of the dataset that it may fail on.
        delta: how often one that fails on more is held to be sure, however often one asks.
    """
    seen, size = int(cells.seen[number]), cells.datapoints
    if int(cells.errors[number]) + size - seen <= max_errors * size + _ROUNDING:
        return True
    test = MeanTest(1 - max_errors, population=size)
    test.add(1.0 - cells.failed[number, :seen])
    return bool(test.rejects(delta))
