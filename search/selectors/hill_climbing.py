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

    A batch is decided when half of the one before it is told, or all but `ahead`: what is known by then
    counts, and a step that the rest does not bear out is taken back. Before a climb ends, all is told.

    Args, beside those of `Selector`:
        iterations: batches of a climb, at least 1.
        restarts: how many climbs there are, at least 1.
        patience: batches without a better neighbour that end a climb, at least 1.
        batch_size: neighbours that are evaluated together, at least 1.

    Raises:
        ValueError: as of `Selector`, or one of these is below 1.
    """

    name = "hill_climbing"
    waits_for_half = True

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
        drawn = self.chance(_STARTS).permutation(len(self.combinations)).tolist()
        starts = (int(number) for number in drawn if not self.cells.asked[number])
        start = next(starts, None)
        for climbs_left in reversed(range(self._limits["restarts"])):
            if start is None:
                return
            following: int | None = None
            for batch in self._climb(start):
                # While a climb waits to know whether it is over, the next one begins.
                if not batch and climbs_left and following is None:
                    following = next(starts, None)
                yield self._whole(batch or ([] if following is None else [following]))
            start = next(starts, None) if following is None else following

    def _climb(self, start: int) -> Iterator[Sequence[int]]:
        """The batches of a climb; an empty one where it waits until all is told."""
        if not self.cells.asked[start]:
            yield [start]
        here, in_vain = start, 0
        for _ in range(self._limits["iterations"]):
            around = neighbours(self._places[here], self._shape)
            new = [at for at in around if not self.cells.asked[self._number[at]]]
            if new:
                first = by_marginal_means(new, self._measured())[: self._batch_size]
                yield [self._number[at] for at in first]
            is_last = in_vain + 1 == self._limits["patience"] or len(new) <= self._batch_size
            best = self._highest(here, around)
            if best == here and is_last and self._untold:
                yield []
                best = self._highest(here, around)
            if best == here and is_last:
                return
            in_vain = in_vain + 1 if best == here else 0
            here = best

    def _highest(self, here: int, around: Sequence[Places]) -> int:
        return max((here, *(self._number[at] for at in around)), key=self._height)

    def _whole(self, numbers: Sequence[int]) -> list[Request]:
        return [(number, range(len(self.datapoints))) for number in numbers]

    def _measured(self) -> dict[Places, float]:
        """The mean scores of the combinations that were evaluated."""
        return {at: self.cells.mean(number) for at, number in self._number.items() if self.cells.seen[number]}

    def _height(self, number: int) -> tuple[bool, float]:
        """Higher is better; one that was not evaluated, or fails too often, lies under all others."""
        return (True, self.cells.mean(number)) if self.fit(number) else (False, 0.0)
