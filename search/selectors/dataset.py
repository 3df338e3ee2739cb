"""The datapoints of a selection: equal ones once, in one order for all combinations that the seed made."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np


def distinct(dataset: Sequence[Any]) -> list[Any]:
    """The datapoints in their order, equal ones once.

    Equal are those that Python or, where they cannot be hashed, JSON says are equal. What JSON cannot write
    is compared with `==`; where that gives no yes or no, as with arrays, a datapoint equals only itself.
    """
    known: set[Hashable] = set()
    others: list[Any] = []
    found = []
    for datapoint in dataset:
        key = _key(datapoint)
        if key is None:
            if any(same(datapoint, other) for other in others):
                continue
            others.append(datapoint)
        elif key in known:
            continue
        else:
            known.add(key)
        found.append(datapoint)
    return found


def shuffled(dataset: Sequence[Any], chance: np.random.Generator) -> tuple[Any, ...]:
    """The distinct datapoints in an order that chance makes.

    Raises:
        ValueError: there is none.
    """
    found = distinct(dataset)
    if not found:
        raise ValueError("expected a dataset of at least one datapoint, got none")
    return tuple(found[index] for index in chance.permutation(len(found)))


def _key(datapoint: object) -> Hashable | None:
    try:
        hash(datapoint)
    except TypeError:
        try:
            return ("as JSON", json.dumps(datapoint, sort_keys=True))
        except (TypeError, ValueError):
            return None
    return ("as it is", datapoint)


def same(one: object, other: object) -> bool:
    """Whether they are one, or `==` says that they are equal; where it gives no yes or no they are not."""
    try:
        return one is other or bool(one == other)
    except Exception:  # noqa: BLE001 - whatever a comparison raises, it does not say that they are equal
        return False
