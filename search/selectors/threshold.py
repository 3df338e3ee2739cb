"""Threshold successive elimination: which combinations reach a score, and which do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from search.selectors.confidence import MeanTest
from search.selectors.selector import FAILS, UNSEEN, Common, Evaluate, Request, Selector


class ThresholdSelector(Selector):
    """Says of every combination whether its mean over the dataset reaches the threshold.

    With probability 1 - `delta` all that is said is right. A combination is evaluated until that is known,
    first on a batch and then on one datapoint a round: a test without replacement, at .8 delta divided by the
    number of combinations. Named is the one with the highest lower bound of those that reach the threshold;
    where none does, of all. That it is the best of them is not claimed. It is evaluated until it is `sound`.

    Args, beside those of `Selector`:
        threshold: above 0 and below 1.
        n_initial: datapoints of the first round; None: a tenth of the dataset, at least 1.

    Raises:
        ValueError: a setting is out of range.
    """

    name = "threshold"
    claim = (
        "Who reaches {0.threshold:g} on these datapoints, and who does not, is told with a chance of error "
        "of at most {wrong} over all combinations; that the one named is the best of them is not claimed."
    )

    def __init__(
        self,
        choices: Mapping[str, Sequence[Any]],
        dataset: Sequence[Any],
        evaluate: Evaluate,
        *,
        threshold: float = 0.75,
        n_initial: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(choices, dataset, evaluate, **common)
        if not 0 < threshold < 1:
            raise ValueError(f"threshold must be above 0 and below 1, got {threshold!r}")
        if n_initial is not None and n_initial < 1:
            raise ValueError(f"n_initial must be at least 1, got {n_initial!r}")
        size = len(self.datapoints)
        self.threshold = threshold
        self._n_initial = n_initial or max(1, size // 10)
        # That the mean of the scores is above the threshold, and the mean of 1 - score above 1 - threshold.
        bounds = np.array([[threshold], [1 - threshold]])
        self._test = MeanTest(bounds, population=size, shape=(2, len(self.combinations)))
        self.reaches: dict[int, bool] = {}
        """What is known: whether the mean of each combination, by number, reaches the threshold."""

    @property
    def survivors(self) -> tuple[int, ...]:
        """Those that are not known to stay below the threshold; all, where every one is.

        Those that fail too often so far are left out.
        """
        able = np.flatnonzero(self.fit_ones).tolist()
        return tuple(number for number in able if self.reaches.get(number, True)) or tuple(able)

    def verdicts(self, named: int | None) -> list[str]:
        """Who reaches the threshold, who does not, and of whom that is not known yet."""
        words = {True: "reaches", False: "does not reach", None: "undecided"}
        return [
            known if known in {UNSEEN, FAILS} else words[self.reaches.get(number)]
            for number, known in enumerate(super().verdicts(named))
        ]

    def _rounds(self) -> Iterator[Sequence[Request]]:
        size, seen = len(self.datapoints), 0
        while seen < size and len(self.reaches) < len(self.combinations):
            start, seen = seen, min(size, seen + 1 if seen else self._n_initial)
            yield [(n, range(start, seen)) for n in range(len(self.combinations)) if n not in self.reaches]
        yield from self._made_sure(1)

    def _note(self) -> None:
        """Classify whom the last round made sure of."""
        start, end = self._test.count, int(self.cells.seen.max())
        # What is known already is tested no more: its scores are nan.
        scores = np.nan_to_num(self.cells.scores[:, start:end])
        self._test.add(np.stack([scores, 1 - scores]))
        above, below = self._test.rejects(self.score_delta / len(self.combinations))
        for number in range(len(self.combinations)):
            if number in self.reaches:
                continue
            if end == len(self.datapoints):
                self.reaches[number] = self.cells.mean(number) >= round(self.threshold, 12)
            elif below[number] or above[number]:
                self.reaches[number] = bool(above[number])
