"""Threshold successive elimination: which combinations reach a score, and which do not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from scorers.betting import MeanTest
from search.selectors.pulls import Pending, share_out
from search.selectors.selector import FAILS, UNSEEN, Common, Evaluate, Request, Selector


class ThresholdSelector(Selector):
    """Says of every combination whether its mean over the dataset reaches the threshold.

    With probability 1 - `delta` all that is said is right. A combination is evaluated until that is known: a
    test without replacement, at .8 delta divided by the number of combinations. After a first batch, the
    datapoints of a round are shared out as each test is expected to need them (`share_out`). Named is the one
    with the highest lower bound of those that reach the threshold; where none does, of all. That it is the
    best of them is not claimed. It is evaluated until it is `sound`.

    Args, beside those of `Selector`:
        threshold: above 0 and below 1.
        n_initial: datapoints of the first round; None: a tenth of the dataset, at least 1.
        pulls_per_round: evaluations of each later round, over all combinations; None: a third of `ahead`, at
            least 1.

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
        pulls_per_round: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(choices, dataset, evaluate, **common)
        if not 0 < threshold < 1:
            raise ValueError(f"threshold must be above 0 and below 1, got {threshold!r}")
        for name, value in (("n_initial", n_initial), ("pulls_per_round", pulls_per_round)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        size = len(self.datapoints)
        self.threshold = threshold
        self._n_initial = n_initial or max(1, size // 10)
        self._pulls_per_round = pulls_per_round or max(1, self.ahead // 3)
        self._needed = math.log(len(self.combinations) / self.score_delta)
        # That the mean of the scores is above the threshold, and the mean of 1 - score above 1 - threshold.
        bounds = np.array([threshold, 1 - threshold])
        self._tests = [MeanTest(bounds, population=size, shape=(2,)) for _ in self.combinations]
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
        first = range(min(len(self.datapoints), self._n_initial))
        yield [(number, first) for number in range(len(self.combinations))]
        while True:
            yield self._pulls()

    def _pulls(self) -> list[Request]:
        """The datapoints of a round, for those of whom it is not known yet whether they reach it."""
        cells, size = self.cells, len(self.datapoints)
        open_tests = {
            number: Pending.of(
                float(test.log_capital.max()), self._needed, test.count, int(cells.asked[number]), size
            )
            for number, test in enumerate(self._tests)
            if number not in self.reaches
        }
        shares = share_out(self._pulls_per_round, open_tests)
        pulls: list[Request] = [
            (number, range(cells.asked[number] + more)) for number, more in shares.items()
        ]
        if shares.total() < self._pulls_per_round and (named := self.named()) is not None:
            pulls.append(self._sure(named))
        return pulls

    def _note(self) -> None:
        """Classify whom what was told makes sure of."""
        cells, size = self.cells, len(self.datapoints)
        for number, test in enumerate(self._tests):
            seen = int(cells.seen[number])
            if number in self.reaches or seen == test.count:
                continue
            scores = cells.scores[number, test.count : seen]
            test.add(np.stack([scores, 1 - scores]))
            above, below = test.log_evidence >= self._needed
            if seen == size:
                self.reaches[number] = cells.mean(number) >= round(self.threshold, 12)
            elif above or below:
                self.reaches[number] = bool(above)
