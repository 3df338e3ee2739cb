"""The shipped persona, read once for all tests: it does not change, and reading it takes 0.1 s."""

from __future__ import annotations

from simulator.personas.persona_file import load_persona

SHIPPED = load_persona(None)
