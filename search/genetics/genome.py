"""What evolves: a system prompt, made of instructions and worked examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self


class Example(NamedTuple):
    """A worked example of a task."""

    question: str
    answer: str


@dataclass(frozen=True)
class Genome:
    """One system prompt; equal ones are one genome.

    Raises:
        ValueError: the instructions are blank.
    """

    instructions: str
    """What the model is told to do."""
    examples: tuple[Example, ...] = ()
    """What follows the instructions, in this order."""

    def __post_init__(self) -> None:
        if not self.instructions.strip():
            raise ValueError(f"instructions are {self.instructions!r}; expected a text that is not blank")

    @cached_property
    def prompt(self) -> str:
        """The whole system prompt."""
        shown = (f"Question: {example.question}\nAnswer: {example.answer}" for example in self.examples)
        return "\n\n".join((self.instructions, *shown))

    @cached_property
    def words(self) -> frozenset[str]:
        """The different words of the prompt, without capitals."""
        return frozenset(self.prompt.casefold().split())

    def to_json(self) -> dict[str, Any]:
        """The genome as plain data."""
        return {
            "instructions": self.instructions,
            "examples": [example._asdict() for example in self.examples],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The genome that `to_json` gave."""
        return cls(data["instructions"], tuple(Example(**example) for example in data["examples"]))
