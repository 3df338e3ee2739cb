"""Step by step to a better neighbour, from several beginnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

from search.selectors.combination import Places, by_marginal_means, neighbours, places_of
from search.selectors.selector import Common, Evaluate, Request, Selector

_STARTS = 1
"""The chance that beginnings are drawn from."""


class HillClimbingSelector(Selector):
    """Evaluates neighbours, which differ in one choice, on the whole dataset, and moves to the best so far.

    Those neighbours come first whose choices did best in what was measured (`by_marginal_means`); no choice
    is thought better for its name. A climb ends after `patience` batches in a row without a better one, at a
    combination whose neighbours are all known and no better, or after `iterations` batches; the next one
    begins at a combination that was not evaluated yet.

    Args, beside those of `Selector`:
        iterations: batches of a climb, at least 1.
        restarts: how many climbs there are, at least 1.
        patience: batches without a better neighbour that end a climb, at least 1.
        batch_size: neighbours that are evaluated together, at least 1.

    Raises:
        ValueError: as of `Selector`, or one of these is below 1.
    """

    name = "hill_climbing"

    def __init__(
        self,
        choices: Mapping[str, Sequence[Any]],
        dataset: Sequence[Any],
        evaluate: Evaluate,
        *,
        iterations: int = 20,
        restarts: int = 3,
        patience: int = 3,
        batch_size: int = 2,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(choices, dataset, evaluate, **common)
        limits = {"iterations": iterations, "restarts": restarts, "patience": patience}
        for what, value in {**limits, "batch_size": batch_size}.items():
            if value < 1:
                raise ValueError(f"{what} must be at least 1, got {value!r}")
        self._limits = limits
        self._batch_size = batch_size
        self._shape = tuple(len(several) for several in self.choices.values())
        self._places = places_of(self._shape)
        self._number = {places: number for number, places in enumerate(self._places)}

    def _rounds(self) -> Iterator[Sequence[Request]]:
        starts = [int(number) for number in self.chance(_STARTS).permutation(len(self.combinations))]
        for _ in range(self._limits["restarts"]):
            start = next((number for number in starts if not self.cells.seen[number]), None)
            if start is None:
                return
            yield from self._climb(start)

    def _climb(self, start: int) -> Iterator[Sequence[Request]]:
        yield self._whole([start])
        here, in_vain = start, 0
        for _ in range(self._limits["iterations"]):
            around = neighbours(self._places[here], self._shape)
            measured = self._measured()
            unknown = by_marginal_means([at for at in around if at not in measured], measured)
            yield self._whole([self._number[at] for at in unknown[: self._batch_size]])
            best = max((here, *(self._number[at] for at in around)), key=self._height)
            in_vain = in_vain + 1 if best == here else 0
            if in_vain and (in_vain == self._limits["patience"] or len(unknown) <= self._batch_size):
                return
            here = best

    def _whole(self, numbers: Sequence[int]) -> list[Request]:
        return [(number, range(len(self.datapoints))) for number in numbers]

    def _measured(self) -> dict[Places, float]:
        """The mean scores of the combinations that were evaluated."""
        return {at: self.cells.mean(number) for at, number in self._number.items() if self.cells.seen[number]}

    def _height(self, number: int) -> tuple[bool, float]:
        """Higher is better; one that was not evaluated, or fails too often, lies under all others."""
        return (True, self.cells.mean(number)) if self.fit(number) else (False, 0.0)
