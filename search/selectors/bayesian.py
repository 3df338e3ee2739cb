"""Bayesian optimisation over whole combinations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

from search.selectors.budget import part_of
from search.selectors.neighbours import places_of
from search.selectors.proposals import propose
from search.selectors.selector import Common, Evaluate, Request, Selector


class BayesianSelector(Selector):
    """Evaluates a share of the combinations on the whole dataset: chance's first, then a process's.

    After 2 (names + 1) combinations by chance, or half of the budget if that is less, each batch holds the
    combinations whose expected improvement is greatest by a Gaussian process over the choices (optuna's;
    see `propose`). It learns what a choice is worth whatever it is combined with; where one name alone has
    choices, there is nothing to learn, and it searches at random.

    Args:
        choices: as of `Selector`, and so are `dataset`, `evaluate` and the settings by name.
        dataset: see there.
        evaluate: see there.
        budget: the share of all combinations that is evaluated, rounded up; above 0 and at most 1.
        batch_size: combinations proposed together, at least 1: the fewer, the more each one knows.
        **common: see there.

    Raises:
        ValueError: as of `Selector`, or one of these is out of range.
    """

    name = "bayesian"

    def __init__(
        self,
        choices: Mapping[str, Sequence[Any]],
        dataset: Sequence[Any],
        evaluate: Evaluate,
        *,
        budget: float = 0.25,
        batch_size: int = 2,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(choices, dataset, evaluate, **common)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
        self._budget = part_of(len(self.combinations), budget, "budget")
        self._starts = min(2 * (len(self.choices) + 1), math.ceil(self._budget / 2))
        self._batch_size = batch_size

    def _rounds(self) -> Iterator[Sequence[Request]]:
        shape = [len(several) for several in self.choices.values()]
        number = {places: each for each, places in enumerate(places_of(shape))}
        count = self._starts
        while count > 0:
            measured = {at: self.cells.mean(each) for at, each in number.items() if self.cells.seen[each]}
            proposed = propose(shape, measured, count, self.seed)
            yield [(number[places], range(len(self.datapoints))) for places in proposed]
            count = min(self._batch_size, self._budget - len(measured) - len(proposed))
