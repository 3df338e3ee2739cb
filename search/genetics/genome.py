"""What evolves: a system prompt with its worked examples, and how far two of them are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import fmean
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


def distance(a: Genome, b: Genome) -> float:
    """The share of the words of either prompt that the other lacks (Jaccard 1912): 0 to 1."""
    union = len(a.words | b.words)
    return len(a.words ^ b.words) / union if union else 0.0


def diversity(genomes: Sequence[Genome]) -> float:
    """The mean distance between two of them, 0 to 1; 0 for fewer than two."""
    pairs = [distance(a, b) for a, b in combinations(genomes, 2)]
    return fmean(pairs) if pairs else 0.0
