"""What is known of the prompts of a population: what they brought, and how that compares."""

from __future__ import annotations

from dataclasses import dataclass

from search.optimizing.sections import PromptSections

PRIOR_TRIES = 5.0
"""Ranks take each record for as many average tries longer: one lucky try is no record."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A prompt of the population, and what is known of it."""

    sections: PromptSections
    fitness: float | None = None
    """The mean of its rewards; None: never tried. A child inherits none."""
    tries: int = 0
    """How many rewards it had."""
    edge: float = 0.0
    """How much more it brought than was to be expected, as a mean, drawn towards 0 while tries are few: what
    the ranks go by. Questions differ in difficulty, so a reward is best held against those of other prompts
    for the same question."""

    @property
    def prompt(self) -> str:
        """The whole text."""
        return self.sections.text


@dataclass(kw_only=True)
class Record:
    """The rewards of a prompt, summed up."""

    total: float = 0.0
    """The sum of its rewards."""
    expected: float = 0.0
    """The sum of what was to be expected, where that was told."""
    tries: int = 0
    alone: int = 0
    """Tries for which it was not."""

    def add(self, reward: float, expected: float | None) -> None:
        """Add a reward; `expected` is None where nothing was told of what others brought."""
        self.total += reward
        self.tries += 1
        self.expected += expected or 0.0
        self.alone += expected is None

    @property
    def mean(self) -> float | None:
        """The mean of the rewards; None before the first."""
        return self.total / self.tries if self.tries else None

    def edge(self, average: float) -> float:
        """See `Member.edge`; `average` was to be expected where nothing was told."""
        return (self.total - self.expected - self.alone * average) / (self.tries + PRIOR_TRIES)
