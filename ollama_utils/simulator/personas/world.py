"""Reads a persona file into the models that speak by it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

from ollama_utils.simulator.personas.persona import ABILITIES, ROLES, Model, Persona
from ollama_utils.simulator.personas.read_grammar import read_grammar
from ollama_utils.simulator.personas.read_mutator import read_mutator
from ollama_utils.simulator.personas.read_solver import read_solver
from ollama_utils.simulator.personas.read_target import read_judge, read_target
from ollama_utils.simulator.personas.reader import PersonaError, Reader

SHIPPED = "cautious"
"""The persona in this folder that is used when none is named, and that others may extend."""

_MERGED_LEVELS = 2
"""Sections of a file and their entries, as `[topics.weapons]`, are merged; what stands in them, replaced."""
_MOST_NUMBERS = 65_536
_PARTS = (
    "name",
    "default_topic",
    "models",
    "embedding",
    "judge",
    "forms",
    "markers",
    "topics",
    "target",
    "operators",
    "rewordings",
    "mutator",
    "solver",
)


def load_persona(path: str | None) -> Persona:
    """The persona of a TOML file; None is the shipped one.

    Raises:
        PersonaError: the file is not there, is no TOML, or says something that cannot be; one line.
    """
    if path is None:
        return parse_persona(_shipped())
    try:
        return parse_persona(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PersonaError(f"persona file {path!r} cannot be read: {error}") from None
    except PersonaError as error:
        raise PersonaError(f"persona file {path!r}: {error}") from None


def parse_persona(toml: str) -> Persona:
    """The persona of a TOML text.

    With `extends` the text says only what differs from the shipped persona: sections and their entries are
    merged key by key, and any other value takes the place of the shipped one's.

    Raises:
        PersonaError: it is no TOML, or says something that cannot be.
    """
    table = _read_table(toml)
    file = Reader(table)
    file.expect(_PARTS)
    grammar = read_grammar(file)
    target = read_target(file, grammar)
    solver = read_solver(file)
    return Persona(
        name=file.text("name"),
        fingerprint=sha256(json.dumps(table, default=str).encode()).hexdigest(),
        models=_read_models(file.table("models"), solves=solver is not None),
        target=target,
        mutator=read_mutator(file, grammar, solver.advice if solver else None),
        judge=read_judge(file.table("judge"), grammar, target),
        solver=solver,
        dimension=_read_dimension(file.table("embedding")),
    )


def _read_table(toml: str) -> dict[str, Any]:
    """All that a text says, with what it takes from the persona that it extends."""
    try:
        table: dict[str, Any] = tomllib.loads(toml)
    except tomllib.TOMLDecodeError as error:
        raise PersonaError(f"no TOML: {error}") from None
    if "extends" not in table:
        return table
    Reader(table).choice("extends", (SHIPPED,))
    del table["extends"]
    return _merged(tomllib.loads(_shipped()), table, _MERGED_LEVELS)


def _shipped() -> str:
    return resources.files(__package__).joinpath(f"{SHIPPED}.toml").read_text(encoding="utf-8")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any], levels: int) -> dict[str, Any]:
    """Both tables in one, key by key down to `levels` levels under this one; `above` decides."""
    merged = dict(below)
    for key, value in above.items():
        both_tables = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = _merged(below[key], value, levels - 1) if levels and both_tables else value
    return merged


def _read_models(table: Reader, *, solves: bool) -> dict[str, Model]:
    models = {name: _read_model(table, name) for name in table.keys()}  # noqa: SIM118 - a Reader is no dict
    if not models:
        raise PersonaError(
            f"{table.where} must name at least one model with its role, one of {', '.join(ROLES)}"
        )
    for name, model in models.items():
        if model.role == "solver" and not solves:
            raise PersonaError(f"{table.where}.{name} is a solver, but the file has no section [solver]")
    return models


def _read_model(table: Reader, name: str) -> Model:
    """A model: its role, or a table with its role and what else it can do."""
    if not table.is_table(name):
        return Model(role=table.choice(name, ROLES))
    entry = table.table(name)
    role = entry.choice("role", ROLES)
    skill = entry.number("skill", -1, 1, 0.0) if role == "solver" else 0.0
    model = Model(role=role, abilities=entry.texts("abilities", ()), skill=skill)
    able = ABILITIES if model.role != "embedding" else ()
    if not set(model.abilities) <= set(able):
        raise entry.fail(
            "abilities", f"a list of abilities for the role {model.role} ({', '.join(able) or 'none'})"
        )
    entry.finish()
    return model


def _read_dimension(table: Reader) -> int:
    dimension = table.number("dimension", 1, _MOST_NUMBERS)
    table.finish()
    return int(dimension)
