"""UCB-E over a table of scores, with a low-rank model of what was not measured.

A score is the combination's mean plus what the datapoint's difficulty makes of it, which a few factors tell
(Zhou et al. 2024, "On Speeding Up Language Model Evaluation"). The factors are found by alternating ridge
regressions. Each member of the ensemble weighs the measured scores anew (the Bayesian bootstrap: Rubin
1981), so that where the members differ, little is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from search.selectors.combination import part_of
from search.selectors.results import Floats
from search.selectors.selector import Common, Evaluate, Request, Selector

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


_BATCH = 40
"""Twice the usual cap: half of it is under way when the next round is decided."""
_FACTORS = 1
"""The chance that the ensemble's seed is drawn from."""


class MatrixUCBSelector(Selector):
    """Spends a budget of evaluations where the upper confidence bound of a combination's mean is highest.

    After a first round over all combinations, each cell goes to the combination with the highest bound. With
    `rank` 0 that is UCB-E's: the mean so far plus sqrt(exploration / n) (Audibert, Bubeck and Munos 2010).
    Else an ensemble of factorisations fills the table in (`Ensemble`); the bound is the mean of its row, plus
    `width` times the standard deviation over the members. A cell that is asked for in a round lowers the
    bound as if its score were known already.

    Zhou et al. (2024), "On Speeding Up Language Model Evaluation", also let the members choose the datapoint.
    Here it is the next one in the order that all share, for otherwise the interval of no result would hold.

    Args, beside those of `Selector`:
        budget: the share of all cells that is evaluated, rounded up, and at least one cell of each
            combination; above 0 and at most 1. What it takes to be sure of the errors of the one that is
            named comes beside it.
        rank: factors of the model; 0: none.
        members: of the ensemble, at least 2.
        ridge: what speaks against a factor, in measured scores; above 0.
        width: differences of the members that a bound lies above the mean; 0 or more.
        exploration: UCB-E's, 0 or more.
        batch_size: cells of a round, at least 1; None: 40, or a thousandth of all if that is more.

    Raises:
        ValueError: as of `Selector`, or one of these is out of range.
    """

    name = "matrix_ucb"
    claim = (
        "No chance of error is claimed: the calls went where a score may be high, and the one with the "
        "highest lower bound is named."
    )
    named_is = "best so far"
    waits_for_half = True

    def __init__(  # noqa: PLR0913 - the settings of the method
        self,
        choices: Mapping[str, Sequence[Any]],
        dataset: Sequence[Any],
        evaluate: Evaluate,
        *,
        budget: float = 0.25,
        rank: int = 1,
        members: int = 16,
        ridge: float = 1.0,
        width: float = 2.0,
        exploration: float = 1.0,
        batch_size: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(choices, dataset, evaluate, **common)
        if batch_size is None:
            batch_size = max(_BATCH, self.cells.scores.size // 1000)
        for what, value, least in (("rank", rank, 0), ("batch_size", batch_size, 1)):
            if value < least:
                raise ValueError(f"{what} must be at least {least}, got {value!r}")
        if width < 0 or exploration < 0:
            raise ValueError(
                f"expected width and exploration of 0 or more, got {width!r} and {exploration!r}"
            )
        self._left = part_of(self.cells.scores.size, budget, "budget")
        self._width, self._exploration, self._batch_size = width, exploration, batch_size
        seed = int(self.chance(_FACTORS).integers(2**31))
        rows, columns = self.cells.scores.shape
        self._ensemble = (
            Ensemble(rows, columns, rank=rank, members=members, ridge=ridge, seed=seed) if rank else None
        )

    def _rounds(self) -> Iterator[Sequence[Request]]:
        rows, columns = self.cells.scores.shape
        first = max(1, min(columns // 20, self._left // rows))
        yield [(row, [place]) for place in range(first) for row in range(rows)]
        self._left -= first * rows
        while self._left > 0 and (requests := self._next_cells()):
            self._left -= sum(len(places) for _, places in requests)
            yield requests
        while (named := self.named()) is not None:
            yield [self._sure(named)]

    def _next_cells(self) -> list[Request]:
        """The cells of a round, by combination; none where all that are worth it are filled."""
        means, doubts = self._means_and_doubts()
        asked = self.cells.asked.astype(np.float64)
        able, counts = ~self.disqualified_ones, asked.copy()
        for _ in range(min(self._batch_size, self._left)):
            bounds = np.where(
                able & (counts < self.cells.datapoints), means + doubts / np.sqrt(counts), -np.inf
            )
            row = int(bounds.argmax())
            if np.isneginf(bounds[row]):
                break
            counts[row] += 1
        places = [range(int(begin), int(end)) for begin, end in zip(asked, counts, strict=True)]
        return [(row, places[row]) for row in np.argsort(-means, kind="stable").tolist() if places[row]]

    def _means_and_doubts(self) -> tuple[Floats, Floats]:
        """For each combination the mean, and what, over the root of its count, the bound lies above it."""
        if self._ensemble is None:
            means = self.cells.means()
            # Of whom nothing is told yet is thought to be as good as all others on the mean.
            means = np.nan_to_num(means, nan=float(np.nanmean(means)))
            return means, np.full(len(means), math.sqrt(self._exploration))
        filled = self._ensemble.complete(self.cells.scores, ~np.isnan(self.cells.scores)).mean(-1)
        return filled.mean(0), self._width * filled.std(0) * np.sqrt(np.maximum(1, self.cells.seen))
