"""Vectors of length 1, which every encoder returns."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def unit_rows(rows: ArrayLike) -> NDArray[np.float32]:
    """Each row scaled to length 1, by itself: its bits do not depend on the rows beside it.

    Args:
        rows: (N, D) finite numbers. A row of zeros becomes (1, 0, ..., 0).

    Returns:
        (N, D), float32.
    """
    wide: NDArray[np.float64] = np.array(rows, dtype=np.float64)
    largest = np.abs(wide).max(axis=1)
    wide[largest == 0.0, 0] = largest[largest == 0.0] = 1.0
    wide /= largest[:, None]  # squares of very small numbers would lose digits
    lengths = np.sqrt((wide * wide).sum(axis=1))
    scaled: NDArray[np.float32] = (wide / lengths[:, None]).astype(np.float32)
    return scaled
