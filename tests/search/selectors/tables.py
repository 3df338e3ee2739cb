"""Selectors on tables of scores: the cheapest evaluation there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from search.selectors.combination import Combination
from search.selectors.selector import Selector

Table = NDArray[np.float64]


def lookup(table: Table, choices: Mapping[str, list[int]]) -> Callable[[Combination, int], float]:
    """An evaluation that reads the cell of a combination, whose choices are numbers, and a datapoint."""
    shape = [len(several) for several in choices.values()]

    def evaluate(combination: Combination, datapoint: int) -> float:
        return float(table[np.ravel_multi_index([combination[name] for name in choices], shape), datapoint])

    return evaluate


def grid(*shape: int) -> dict[str, list[int]]:
    """Choices 0, 1, ... under the names a, b, ..."""
    return {chr(ord("a") + place): list(range(count)) for place, count in enumerate(shape)}


def bernoulli(means: list[float], datapoints: int, seed: int) -> Table:
    """Rows of zeros and ones with these expectations."""
    drawn = np.random.default_rng(seed).random((len(means), datapoints))
    return (drawn < np.array(means)[:, None]).astype(np.float64)


def evaluated(selector: Selector) -> list[int]:
    """The numbers of the combinations in the order in which they were first asked for, driven to the end."""
    order: dict[int, None] = {}
    while requests := selector.ask():
        order |= dict.fromkeys(number for number, _ in requests)
        outcomes = [
            [
                selector._evaluate(selector.combinations[number], selector.datapoints[place])
                for place in places
            ]
            for number, places in requests
        ]
        selector.tell(outcomes)
    return list(order)
