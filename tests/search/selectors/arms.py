"""The nine arms that selectors are measured on: 200 shared datapoints, one table of outcomes a seed."""

from __future__ import annotations

from typing import NamedTuple

from search.selectors.registry import make_selector
from search.selectors.selector import Selector
from tests.search.selectors.tables import Table, bernoulli

MEANS = (0.80, 0.72, 0.65, 0.60, 0.55, 0.50, 0.45, 0.40, 0.30)
DATAPOINTS = 200


class Played(NamedTuple):
    """A selector at its end, the outcomes that it saw some of, and what it named."""

    selector: Selector
    table: Table
    named: int
    savings: float

    @property
    def best(self) -> int:
        """What brute force over all datapoints names."""
        return int(self.table.mean(1).argmax())


def play(
    name: str,
    seed: int,
    means: tuple[float, ...] = MEANS,
    datapoints: int = DATAPOINTS,
    **settings: object,
) -> Played:
    """A selector on the outcomes of this seed, driven by `ask` and `tell`."""
    table = bernoulli(list(means), datapoints, 10_000 + seed)
    selector = make_selector(
        name, {"arm": range(len(means))}, range(datapoints), lambda _c, _d: 0.0, seed=seed, **settings
    )
    shuffled = table[:, list(selector.datapoints)]
    while asked := selector.ask():
        selector.tell([shuffled[number, list(places)].tolist() for number, places in asked])
    named = selector.named()
    assert named is not None
    return Played(selector, table, named, 1 - float(selector.cells.seen.sum()) / table.size)
