"""Mutators by rule whose chance is three bits of the seed: `benchmarks.optimum` tries 8 seeds, and is exact.

Each adds marks of style that the simulator's worlds read: what it is for, who asks, in plain words.
"""

from __future__ import annotations

from collections.abc import Sequence

from mutators.registry import by_rule

CONTEXT, ROLE, SIMPLE = "For my job:", "As a teacher,", "Put simply:"
_NOTHING = 7
"""Of eight seeds the one at which a mutator of the second world leaves a query as it is."""


@by_rule
def context(query: str, _earlier: Sequence[str], seed: int) -> str:
    """Half of the time say what it is for."""
    return _marked(query, CONTEXT) if seed & 1 else query


@by_rule
def role(query: str, _earlier: Sequence[str], seed: int) -> str:
    """Half of the time say who asks."""
    return _marked(query, ROLE) if seed & 2 else query


@by_rule
def simple(query: str, _earlier: Sequence[str], seed: int) -> str:
    """Half of the time ask in plain words."""
    return _marked(query, SIMPLE) if seed & 4 else query


@by_rule
def mostly_context(query: str, _earlier: Sequence[str], seed: int) -> str:
    """Seven times of eight say what it is for, and four times of these who asks."""
    if seed % 8 == _NOTHING:
        return query
    return _marked(query, CONTEXT) if seed & 1 else _marked(query, CONTEXT, ROLE)


@by_rule
def mostly_role(query: str, _earlier: Sequence[str], seed: int) -> str:
    """Seven times of eight say who asks, and four times of these what it is for."""
    if seed % 8 == _NOTHING:
        return query
    return _marked(query, ROLE) if seed & 2 else _marked(query, CONTEXT, ROLE)


@by_rule
def either(query: str, _earlier: Sequence[str], seed: int) -> str:
    """Half of the time say both."""
    return query if seed & 4 else _marked(query, CONTEXT, ROLE)


def _marked(query: str, *marks: str) -> str:
    new = [mark for mark in marks if mark not in query]
    return " ".join([*new, query])
