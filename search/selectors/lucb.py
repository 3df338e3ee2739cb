"""Epsilon-LUCB: the leader against whoever may still be better than it by more than epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from search.selectors.confidence import PairedTest
from search.selectors.selector import Common, Evaluate, Request, Selector


class EpsilonLUCBSelector(Selector):
    """Names a combination whose mean over the dataset is within epsilon of the best one's.

    That fails with probability `delta` at most. It is a claim about this dataset, not about all datapoints
    that there might be: for those, see the intervals of the results. Each round evaluates the leader, which
    has the highest mean so far, and the contender, against which there is the least evidence, at the next
    datapoints that not both have seen (Kalyanakrishnan et al. 2012, "PAC subset selection in stochastic
    multi-armed bandits", but paired). The tests are those of arm elimination, of a difference of -epsilon.
    As there, a leader is named only once it is `sound`.

    Args, beside those of `Selector`:
        epsilon: how much worse than the best the one that is named may be, in [0, 1].
        n_initial: datapoints of the first round, on which all are evaluated.
        pulls_per_round: datapoints of each later round.

    Raises:
        ValueError: a setting is out of range.
    """

    name = "epsilon_lucb"
    claim = (
        "The one that is named is at most {0.epsilon:g} worse than the best on these datapoints, with a "
        "chance of error of at most {wrong}."
    )
    named_is = "best, or {0.epsilon:g} below"
    out_is = "not {0.epsilon:g} better"

    def __init__(
        self,
        choices: Mapping[str, Sequence[Any]],
        dataset: Sequence[Any],
        evaluate: Evaluate,
        *,
        epsilon: float = 0.01,
        n_initial: int = 1,
        pulls_per_round: int = 1,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(choices, dataset, evaluate, **common)
        if not 0 <= epsilon <= 1:
            raise ValueError(f"epsilon must be from 0 to 1, got {epsilon!r}")
        for name, value in (("n_initial", n_initial), ("pulls_per_round", pulls_per_round)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        self.epsilon = epsilon
        self._n_initial = n_initial
        self._pulls_per_round = pulls_per_round
        self._tests: dict[tuple[int, int], PairedTest] = {}
        self._needed = math.log(max(1, len(self.combinations) - 1) / self.score_delta)
        self._leader: int | None = None
        self._contenders: dict[int, float] = {}

    @property
    def survivors(self) -> tuple[int, ...]:
        """The leader, and whoever may still be better by more than epsilon, by number."""
        if self._leader is None:
            return ()
        return tuple(sorted((self._leader, *self._contenders)))

    def named(self) -> int | None:
        """The leader, unless it failed too often."""
        return self._leader if self._leader is not None and self.fit(self._leader) else None

    def _rounds(self) -> Iterator[Sequence[Request]]:
        size = len(self.datapoints)
        first = range(min(size, self._n_initial))
        yield [(number, first) for number in range(len(self.combinations))]
        while (leader := self._leader) is not None:
            pair = [leader]
            if self._contenders:
                pair.append(min(self._contenders, key=lambda number: (self._contenders[number], number)))
            elif self.sound(leader):
                return
            seen = int(min(self.cells.seen[number] for number in pair))
            yield [(number, range(seen, min(size, seen + self._pulls_per_round))) for number in pair]

    def _note(self) -> None:
        """Find the leader, and the evidence against those that may still be better."""
        size, seen, means = len(self.datapoints), self.cells.seen.tolist(), self.cells.means()
        able, fit = np.flatnonzero(~self.disqualified_ones).tolist(), self.fit_ones
        # One that fails too often so far leads only where all do: it may fail less often further on.
        self._leader, self._contenders = None, {}
        if not able:
            return
        leader = self._leader = min(able, key=lambda n: (not fit[n], -means[n], n))
        for number in able:
            known = seen[number] == size == seen[leader]
            if number != leader and not known:
                evidence = self._log_evidence(leader, number)
                if evidence < self._needed:
                    self._contenders[number] = evidence

    def _log_evidence(self, one: int, other: int) -> float:
        """The log of the evidence that the mean of `one` less that of `other` exceeds -epsilon.

        All see the datapoints in one order, and a pair's evidence is of those that both have
        seen. It holds at any time, whatever decided who was evaluated when: what is staked on a datapoint
        depends on the pair's datapoints before it alone.
        """
        cells = self.cells
        if (one, other) not in self._tests:
            self._tests[one, other] = PairedTest(population=cells.datapoints, margin=-self.epsilon)
        test, end = self._tests[one, other], int(min(cells.seen[one], cells.seen[other]))
        if end > test.count:
            scores = cells.scores[:, test.count : end]
            test.add(scores[one] - scores[other])
        return float(test.log_evidence)
