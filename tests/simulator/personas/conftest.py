"""Queries to try personas on, and the small world that is not the shipped one."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from envs.queries import BUNDLED_QUERIES
from simulator.personas.persona import Persona
from simulator.personas.persona_file import load_persona

ANOTHER_WORLD = Path(__file__).with_name("another.toml")

with BUNDLED_QUERIES.open(encoding="utf-8") as file:
    QUERIES = tuple(row["prompt"] for row in csv.DictReader(file))


@pytest.fixture(scope="session")
def another() -> Persona:
    return load_persona(str(ANOTHER_WORLD))
