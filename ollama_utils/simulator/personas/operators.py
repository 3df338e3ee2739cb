"""What a rewrite does to the features: chance maps, the same for the mutator and for dynamic programming."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ollama_utils.simulator.personas.features import TERSE, Features

EVERY_MARK = "*"
"""In a file's `remove`: every mark of style."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One thing a rewrite may do."""

    chance: float
    """Its share of the rewrites that succeed."""
    add: tuple[str, ...]
    """Marks it adds, in this order."""
    remove: frozenset[str]
    """Marks it strips first."""
    soften: bool
    """Whether it replaces harsh words."""

    def apply(self, features: Features) -> Features:
        """The features of the rewritten text. A clause makes a sentence: it takes terseness away."""
        kept = frozenset() if EVERY_MARK in self.remove else features.markers - self.remove
        if set(self.add) - features.markers - {TERSE}:
            kept -= {TERSE}
        return Features(
            topic=features.topic,
            form=features.form,
            harsh=features.harsh and not self.soften,
            markers=kept.union(self.add),
        )


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A way to rewrite that the mutator knows by its cue."""

    name: str
    cue: str
    """The words with which an instruction for it begins, in small letters."""
    failures: dict[str, float]
    """The share of rewrites that come to nothing, by what comes instead."""
    effects: tuple[Effect, ...]
    rewordings: tuple[str, ...]
    """Changes of wording that leave the features alone."""

    def draw(self, share: float) -> Effect | str:
        """The effect, or the name of the failure, at a place in [0, 1)."""
        for name, chance in self.failures.items():
            if share < chance:
                return name
            share -= chance
        share /= 1 - sum(self.failures.values())
        for effect in self.effects[:-1]:
            if share < effect.chance:
                return effect
            share -= effect.chance
        return self.effects[-1]

    def outcomes(self, features: Features) -> Iterator[tuple[float, Features]]:
        """Every outcome with its probability; a rewrite that comes to nothing leaves the features alone."""
        failing = sum(self.failures.values())
        if failing:
            yield failing, features
        for effect in self.effects:
            yield (1 - failing) * effect.chance, effect.apply(features)
