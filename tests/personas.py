"""The shipped persona, read once for all tests: it does not change, and reading it takes 0.1 s."""

from __future__ import annotations

from mutators.mutator import Prompt
from simulator.personas.persona_file import load_persona

SHIPPED = load_persona(None)


def in_one_text(prompt: Prompt) -> str:
    """A mutator's prompt as the persona reads it: its instruction, then the query."""
    return f"{prompt.system}\n\n{prompt.text}" if prompt.system else prompt.text
