"""What the scores that nobody measured may be: a low-rank model of those that were, many times over.

A score is the combination's mean plus what the datapoint's difficulty makes of it, which a few factors tell
(Zhou et al. 2024, "On Speeding Up Language Model Evaluation"). The factors are found by alternating ridge
regressions. Each member of the ensemble weighs the measured scores anew (the Bayesian bootstrap: Rubin
1981), so that where the members differ, little is known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_FIRST_ROUNDS = 10
_ROUNDS = 3
"""The factors begin where the last call left them, which was near already."""
_TINY = 1e-12


class Ensemble:
    """Members that each complete a table of `rows` combinations and `columns` datapoints.

    Args:
        rows: N.
        columns: M.
        rank: how many factors a member has, at least 1.
        members: E, at least 2.
        ridge: how much speaks against a factor, in measured scores; above 0.
        seed: another seed weighs otherwise.

    Raises:
        ValueError: one of them is out of range.
    """

    def __init__(
        self, rows: int, columns: int, *, rank: int = 1, members: int = 16, ridge: float = 1.0, seed: int = 0
    ) -> None:
        if min(rows, columns, rank) < 1 or members < 2 or ridge <= 0:  # noqa: PLR2004 - one alone never differs
            raise ValueError(
                "expected at least one row, column and rank, two members and a ridge above 0, "
                f"got {rows} rows, {columns} columns, rank {rank}, {members} members, ridge {ridge}"
            )
        chance = np.random.default_rng((seed, rows, columns))
        self._weights = chance.exponential(size=(members, rows, columns))
        self._by_row = chance.normal(size=(members, rows, rank))
        self._by_column = chance.normal(size=(members, columns, rank))
        self._ridge = ridge * np.eye(rank)
        self._rounds = _FIRST_ROUNDS

    def complete(self, scores: Floats, known: Mask) -> Floats:
        """The table as each member fills it in: (E, N, M), the known scores as they are.

        Args:
            scores: (N, M), what was measured; what stands elsewhere means nothing.
            known: (N, M), where something was measured.
        """
        weights = self._weights * known
        given = np.where(known, scores, 0.0)
        counts = weights.sum(-1)
        # Without any score a combination is taken for one in the middle.
        means = np.where(counts > 0, (weights * given).sum(-1) / np.maximum(counts, _TINY), 0.5)[..., None]
        left = weights * (given - means)
        for _ in range(self._rounds):
            self._by_row = self._regress(weights, left, self._by_column)
            self._by_column = self._regress(weights.swapaxes(1, 2), left.swapaxes(1, 2), self._by_row)
        self._rounds = _ROUNDS
        filled = means + self._by_row @ self._by_column.swapaxes(1, 2)
        return np.where(known, scores, np.clip(filled, 0.0, 1.0))

    def _regress(self, weights: Floats, left: Floats, factors: Floats) -> Floats:
        """The ridge regression of each row on the factors of its columns: (E, rows, rank)."""
        rank = factors.shape[-1]
        outer = (factors[..., :, None] * factors[..., None, :]).reshape(*factors.shape[:2], rank * rank)
        normal = (weights @ outer).reshape(*weights.shape[:2], rank, rank) + self._ridge
        return np.asarray(np.linalg.solve(normal, (left @ factors)[..., None])[..., 0])
