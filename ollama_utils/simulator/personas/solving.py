"""Everyday problems worked out by code: what the simulated solver knows before it decides to err."""

from __future__ import annotations

from functools import lru_cache

from ollama_utils.simulator.personas.solution import Solution
from ollama_utils.simulator.personas.solve_dates import solve_dates
from ollama_utils.simulator.personas.solve_sums import solve_sums
from ollama_utils.simulator.personas.solve_units import solve_units
from ollama_utils.simulator.personas.solve_words import solve_letters, solve_sorting

_WAYS = {
    "sorting": solve_sorting,
    "letters": solve_letters,
    "calendar": solve_dates,
    "units": solve_units,
    "arithmetic": solve_sums,
}
"""The kinds in the order in which they are tried: a story with numbers is taken for a sum last."""

KINDS = tuple(_WAYS)
_MOST_CHARACTERS = 2_000
"""A longer text is no everyday problem."""


@lru_cache(maxsize=8192)
def solve(question: str) -> tuple[str, Solution] | None:
    """The kind of a problem and its solution; None for a text that is none of them."""
    if len(question) > _MOST_CHARACTERS:
        return None
    for kind, way in _WAYS.items():
        if (solution := way(question)) is not None:
            return kind, solution
    return None
