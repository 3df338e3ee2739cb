"""Every combination at every datapoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from search.selectors.selector import Request, Selector


class BruteForceSelector(Selector):
    """Evaluates all there is, in one round: what it names has the highest mean over the dataset."""

    name = "brute_force"
    claim = "The best on these datapoints: all were seen."
    named_is = "best"

    def _rounds(self) -> Iterator[Sequence[Request]]:
        places = range(len(self.datapoints))
        yield [(number, places) for number in range(len(self.combinations))]
