"""A round's evaluations side by side: what the driver of `select_best` does with a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from search.streams import Failed, Plan, play_plans

Cell = tuple[int, int]
"""A combination's number, and the place of a datapoint."""


def play_round(
    requests: Sequence[tuple[int, Sequence[int]]],
    evaluate: Callable[[Cell], Any],
    at_once: int,
    tick: Callable[[], None] | None,
) -> list[list[Any]]:
    """What comes of each place of each request, in their order; an exception in its place where it raised.

    Args:
        requests: as a selector asks.
        evaluate: evaluates one cell, on any thread.
        at_once: the most evaluations at once.
        tick: called after each, one at a time.
    """
    plans = [_batch(number, places) for number, places in requests]
    begun = min(at_once, sum(len(places) for _, places in requests))
    outcomes = play_plans(plans, evaluate, begun, tick or (lambda: None))
    return [[value.error if isinstance(value, Failed) else value for value in row] for row in outcomes]


def _batch(number: int, places: Sequence[int]) -> Plan[Cell, Any, list[Any]]:
    return list((yield [(number, place) for place in places]))
