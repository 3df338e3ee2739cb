"""Epsilon-LUCB: the leader against those that may still be better than it by more than epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from scorers.betting import PairedTest
from search.selectors.pulls import Pending, share_out
from search.selectors.selector import Common, Evaluate, Request, Selector


class EpsilonLUCBSelector(Selector):
    """Names a combination whose mean over the dataset is within epsilon of the best one's.

    That fails with probability `delta` at most. It is a claim about this dataset, not about all datapoints
    that there might be: for those, see the intervals of the results. Each round evaluates the leader, which
    has the highest mean so far, and contenders at the next datapoints that not both have seen
    (Kalyanakrishnan et al. 2012, "PAC subset selection in stochastic multi-armed bandits", but paired, and
    all contenders as their tests are expected to need it, see `share_out`, where there it is the strongest).
    The tests are those of arm elimination, of a difference of -epsilon. As there, a leader is named only once
    it is `sound`.

    Args, beside those of `Selector`:
        epsilon: how much worse than the best the one that is named may be, in [0, 1].
        n_initial: datapoints of the first round, on which all are evaluated; None: as many as make it `ahead`
            evaluations, at least 1.
        pulls_per_round: evaluations of contenders of each later round; the leader's come beside them; None: a
            third of `ahead`, at least 1.

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
        n_initial: int | None = None,
        pulls_per_round: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(choices, dataset, evaluate, **common)
        if not 0 <= epsilon <= 1:
            raise ValueError(f"epsilon must be from 0 to 1, got {epsilon!r}")
        for name, value in (("n_initial", n_initial), ("pulls_per_round", pulls_per_round)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        self.epsilon = epsilon
        self._n_initial = n_initial or max(1, math.ceil(self.ahead / len(self.combinations)))
        self._pulls_per_round = pulls_per_round or max(1, self.ahead // 3)
        self._tests: dict[tuple[int, int], PairedTest] = {}
        self._needed = math.log(max(1, len(self.combinations) - 1) / self.score_delta)
        self._leader: int | None = None
        self._contenders: list[int] = []

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
        first = range(min(len(self.datapoints), self._n_initial))
        yield [(number, first) for number in range(len(self.combinations))]
        while self._leader is not None:
            yield self._pulls(self._leader)

    def _pulls(self, leader: int) -> list[Request]:
        """The datapoints of a round, each for a contender and, where it was not asked there, the leader."""
        asked, seen = (np.minimum(n, n[leader]).tolist() for n in (self.cells.asked, self.cells.seen))
        size = len(self.datapoints)
        open_tests = {
            n: Pending.of(float(self._tests[leader, n].log_capital), self._needed, seen[n], asked[n], size)
            for n in self._contenders
        }
        shares = share_out(self._pulls_per_round, open_tests)
        pulls: list[Request] = [
            (one, range(asked[n] + more)) for n, more in shares.items() for one in (leader, n)
        ]
        if shares.total() < self._pulls_per_round:
            pulls.append(self._sure(leader))
        return pulls

    def _note(self) -> None:
        """Find the leader, and those that may still be better."""
        size, seen, means = len(self.datapoints), self.cells.seen.tolist(), np.nan_to_num(self.cells.means())
        able, fit = np.flatnonzero(~self.disqualified_ones).tolist(), self.fit_ones
        # One that fails too often so far leads only where all do: it may fail less often further on.
        self._leader, self._contenders = None, []
        if not able:
            return
        leader = self._leader = min(able, key=lambda n: (not fit[n], -means[n], n))
        for number in able:
            known = seen[number] == size == seen[leader]
            if number != leader and not known and self._test(leader, number).log_evidence < self._needed:
                self._contenders.append(number)

    def _test(self, one: int, other: int) -> PairedTest:
        """The test that the mean of `one` less that of `other` exceeds -epsilon, with all that is known.

        All see the datapoints in one order, and a pair's evidence is of those that both have seen. It holds
        at any time, whatever decided who was evaluated when: what is staked on a datapoint depends on the
        pair's datapoints before it alone.
        """
        cells = self.cells
        if (one, other) not in self._tests:
            self._tests[one, other] = PairedTest(population=cells.datapoints, margin=-self.epsilon)
        test, end = self._tests[one, other], int(min(cells.seen[one], cells.seen[other]))
        if end > test.count:
            scores = cells.scores[:, test.count : end]
            test.add(scores[one] - scores[other])
        return test
