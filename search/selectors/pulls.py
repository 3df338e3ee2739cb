"""Who is evaluated next, where not all that was asked for is told yet.

Every test that is under way is taken to gather evidence as it did so far. That says how many datapoints it
will still take, and those asked for ahead are shared out in proportion: one that is nearly decided is hardly
asked for ahead, and what is asked for in vain is a small part of what was needed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from heapq import heapify, heapreplace
from typing import NamedTuple


class Pending(NamedTuple):
    """A test that is not decided."""

    needed: int
    """Datapoints that it will take beside those told, at least 1."""
    asked: int
    """Those of them that are asked for already."""

    @classmethod
    def of(cls, capital: float, enough: float, told: int, asked: int, size: int) -> Pending:
        """What a test will take.

        Args:
            capital: the log of its capital now.
            enough: the log of the capital that decides it.
            told: the datapoints that this is of.
            asked: those that were asked for.
            size: of the dataset; after all of it the test is decided.
        """
        needed = told * (enough / capital - 1) if capital > 0 else math.inf
        return cls(max(1, math.ceil(min(needed, size - told))), asked - told)


def share_out(pulls: int, tests: Mapping[int, Pending]) -> Counter[int]:
    """How many datapoints each test gets, all of them `pulls` at most; none more than it will take.

    Each goes to the one of whose need the smallest part would be asked for then; of equals, to the first.
    """
    heap = [((test.asked + 1) / test.needed, number, test.asked + 1) for number, test in tests.items()]
    heapify(heap)
    shares: Counter[int] = Counter()
    while heap and heap[0][0] <= 1 and shares.total() < pulls:
        _, number, asked = heap[0]
        shares[number] += 1
        heapreplace(heap, ((asked + 1) / tests[number].needed, number, asked + 1))
    return shares
