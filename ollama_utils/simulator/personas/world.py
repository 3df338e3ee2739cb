"""Reads a persona file into the models that speak by it."""

from __future__ import annotations

import json
import tomllib
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

from ollama_utils.simulator.personas.persona import ABILITIES, ROLES, Model, Persona
from ollama_utils.simulator.personas.read_grammar import read_grammar
from ollama_utils.simulator.personas.read_mutator import read_mutator
from ollama_utils.simulator.personas.read_target import read_judge, read_target
from ollama_utils.simulator.personas.reader import PersonaError, Reader

SHIPPED = "cautious.toml"
"""The persona in this folder that is used when none is named."""

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
)


def load_persona(path: str | None) -> Persona:
    """The persona of a TOML file; None is the shipped one.

    Raises:
        PersonaError: the file is not there, is no TOML, or says something that cannot be; one line.
    """
    if path is None:
        return parse_persona(resources.files(__package__).joinpath(SHIPPED).read_text(encoding="utf-8"))
    try:
        return parse_persona(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PersonaError(f"persona file {path!r} cannot be read: {error}") from None
    except PersonaError as error:
        raise PersonaError(f"persona file {path!r}: {error}") from None


def parse_persona(toml: str) -> Persona:
    """The persona of a TOML text.

    Raises:
        PersonaError: it is no TOML, or says something that cannot be.
    """
    try:
        table: dict[str, Any] = tomllib.loads(toml)
    except tomllib.TOMLDecodeError as error:
        raise PersonaError(f"no TOML: {error}") from None
    file = Reader(table)
    file.expect(_PARTS)
    grammar = read_grammar(file)
    target = read_target(file, grammar)
    return Persona(
        name=file.text("name"),
        fingerprint=sha256(json.dumps(table, default=str).encode()).hexdigest(),
        models=_read_models(file.table("models")),
        target=target,
        mutator=read_mutator(file, grammar),
        judge=read_judge(file.table("judge"), grammar, target),
        dimension=_read_dimension(file.table("embedding")),
    )


def _read_models(table: Reader) -> dict[str, Model]:
    models = {name: _read_model(table, name) for name in table.keys()}  # noqa: SIM118 - a Reader is no dict
    if not models:
        raise PersonaError(
            f"{table.where} must name at least one model with its role, one of {', '.join(ROLES)}"
        )
    return models


def _read_model(table: Reader, name: str) -> Model:
    """A model: its role, or a table with its role and what else it can do."""
    if not table.is_table(name):
        return Model(role=table.choice(name, ROLES))
    entry = table.table(name)
    model = Model(role=entry.choice("role", ROLES), abilities=entry.texts("abilities", ()))
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
