"""Combinations as places: which differ in one choice, and which of these is likely to be good."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

Places = tuple[int, ...]
"""For each name the number of the choice."""


def places_of(shape: Sequence[int]) -> tuple[Places, ...]:
    """The places of every combination, in the order of `combinations`.

    Args:
        shape: how many choices each name has.
    """
    return tuple(itertools.product(*(range(count) for count in shape)))


def neighbours(places: Places, shape: Sequence[int]) -> list[Places]:
    """Those that differ from it in one choice."""
    return [
        (*places[:name], choice, *places[name + 1 :])
        for name, count in enumerate(shape)
        for choice in range(count)
        if choice != places[name]
    ]


def by_marginal_means(candidates: Sequence[Places], measured: Mapping[Places, float]) -> list[Places]:
    """The candidates, the most promising first: by the mean, over their choices, of how each choice did.

    How a choice did is the mean score of the measured combinations that have it; one that none has yet did
    as all did on average. Equals stay in their order.
    """
    overall = sum(measured.values()) / len(measured) if measured else 0.0
    sums: dict[tuple[int, int], tuple[float, int]] = {}
    for places, score in measured.items():
        for each in enumerate(places):
            total, count = sums.get(each, (0.0, 0))
            sums[each] = total + score, count + 1
    means = {each: total / count for each, (total, count) in sums.items()}
    return sorted(candidates, key=lambda at: -sum(means.get(each, overall) for each in enumerate(at)))
