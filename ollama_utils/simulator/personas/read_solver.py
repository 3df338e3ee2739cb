"""Reads the part of a persona file that says how problems are solved."""

from __future__ import annotations

import re

from ollama_utils.simulator.personas.advice import Advice
from ollama_utils.simulator.personas.reader import Reader
from ollama_utils.simulator.personas.solver import Kind, Solver
from ollama_utils.simulator.personas.solving import KINDS

_MOST_CUES = 100


def read_solver(file: Reader) -> Solver | None:
    """The solver of a persona file; None for a file without the section.

    Raises:
        PersonaError: a key is missing, of another type, or names something that is not there.
    """
    if "solver" not in file:
        return None
    table = file.table("solver")
    cues = _read_cues(table.table("cues"))
    kinds = table.table("kinds")
    solver = Solver(
        cues=cues,
        kinds={name: _read_kind(kinds.table(name), tuple(cues)) for name in KINDS},
        clutter=table.number("clutter", 0, 1),
        free_cues=int(table.number("free_cues", 0, _MOST_CUES)),
        example=table.number("example", -1, 1),
        replies=table.texts("replies"),
        unknown=table.text("unknown"),
        advice=_read_advice(table.table("advice")),
    )
    kinds.finish()
    table.finish()
    if not solver.replies or not all("{answer}" in reply for reply in solver.replies):
        raise table.fail("replies", "a list of texts with {answer}")
    return solver


def _read_cues(table: Reader) -> dict[str, re.Pattern[str]]:
    found = {name: table.patterns(name) for name in table.keys()}  # noqa: SIM118 - a Reader is no dict
    return {name: pattern for name, pattern in found.items() if pattern is not None}


def _read_kind(table: Reader, cues: tuple[str, ...]) -> Kind:
    weights = table.table("weights")
    kind = Kind(
        base=table.number("base", -1, 1),
        weights={name: weights.number(name, -1, 1, 0.0) for name in cues},
    )
    weights.finish()
    table.finish()
    return kind


def _read_advice(table: Reader) -> Advice:
    advice = Advice(general=table.texts("general"), special=table.texts("special"))
    table.finish()
    for key in ("general", "special"):
        if not getattr(advice, key):
            raise table.fail(key, "a list of at least one text")
    return advice
