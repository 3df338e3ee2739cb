"""Pairs of combinations on the datapoints that both have seen: the evidence that one is better."""

from __future__ import annotations

from search.selectors.cells import Cells
from search.selectors.confidence import PairedTest


class Pairs:
    """Evidence, for each pair, of how their means over the dataset differ.

    All combinations see the datapoints in one order from the first on, and a pair's evidence is of those that
    both have seen. It holds at any time, whatever decided who was evaluated when: what is staked on a
    datapoint depends on the pair's datapoints before it alone.

    Args:
        cells: what came of the combinations; it may be filled further.
        margin: what the mean difference is shown to exceed, in [-1, 1].
    """

    def __init__(self, cells: Cells, margin: float = 0.0) -> None:
        self._cells = cells
        self._margin = margin
        self._known: dict[tuple[int, int], tuple[PairedTest, int, float]] = {}

    def log_evidence(self, one: int, other: int) -> float:
        """The log of the evidence that the mean of `one` less that of `other` exceeds the margin."""
        seen = self._cells.seen
        end = int(min(seen[one], seen[other]))
        known = self._known.get((one, other))
        if known is None:
            known = (PairedTest(population=self._cells.datapoints, margin=self._margin), 0, 0.0)
        test, count, evidence = known
        if end > count:
            scores = self._cells.scores[:, count:end]
            evidence = float(test.add(scores[one] - scores[other]))
            self._known[one, other] = (test, end, evidence)
        return evidence
