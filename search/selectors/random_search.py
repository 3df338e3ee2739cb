"""Every combination, or some that chance draws, at every datapoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

from search.selectors.combination import part_of
from search.selectors.selector import Common, Evaluate, Request, Selector

_WHICH = 1


class BruteForceSelector(Selector):
    """Evaluates all there is, in one round: what it names has the highest mean over the dataset."""

    name = "brute_force"
    claim = "The best on these datapoints: all were seen."
    named_is = "best"

    def _rounds(self) -> Iterator[Sequence[Request]]:
        places = range(len(self.datapoints))
        yield [(number, places) for number in range(len(self.combinations))]


class RandomSearchSelector(Selector):
    """Evaluates a share of the combinations, rounded up, and names the best of them.

    Args, beside those of `Selector`:
        sample_fraction: the share of the combinations that is drawn, without replacement; above 0, at most 1.

    Raises:
        ValueError: a setting is out of range.
    """

    name = "random"

    def __init__(
        self,
        choices: Mapping[str, Sequence[Any]],
        dataset: Sequence[Any],
        evaluate: Evaluate,
        *,
        sample_fraction: float = 0.25,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(choices, dataset, evaluate, **common)
        total = len(self.combinations)
        count = part_of(total, sample_fraction, "sample_fraction")
        self.drawn = tuple(self.chance(_WHICH).permutation(total)[:count].tolist())
        """The numbers of the combinations that are evaluated."""

    @property
    def survivors(self) -> tuple[int, ...]:
        """Those that were drawn."""
        return tuple(sorted(self.drawn))

    def _rounds(self) -> Iterator[Sequence[Request]]:
        places = range(len(self.datapoints))
        yield [(number, places) for number in self.drawn]
