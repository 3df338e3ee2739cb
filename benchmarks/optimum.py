"""What policies can reach in the simulator's worlds, computed and not sampled.

An episode: at each step a mutator rewrites the current text (an empty rewrite changes nothing) and
the target answers it. Answered: the episode ends with reward 1 - step cost; else the reward is
-step cost, and after the last step the query is given up. Values are computed by dynamic
programming over the features that the world reads in a text.

What a mutator by a model may do, the world itself lists: there the values are exact. A mutator by
rule is tried with a few seeds on a text that stands for the features, so there they are near. An
environment also turns down rewordings for their form or meaning, which is not known here: what is
computed is an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mutators.mutator import Mutator
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from simulator.mutator import find_operator
from simulator.prompts import task_of
from simulator.world import World, load_world
from simulator.world_file import Features, Operator

Array = NDArray[np.float64]
Outcomes = Sequence[tuple[float, Features]]
"""What a mutator may lead to, each with its probability."""
Core = tuple[str, str, bool]
"""Topic, form and harshness: what the words of a text say, whatever marks of style it carries."""
Plan = Mapping[tuple[int, Features], str]
"""The best mutator by steps left and features."""
RULE_SEEDS = 8
"""Seeds over which a mutator by rule is averaged."""


@dataclass(frozen=True, kw_only=True)
class Game:
    """What is played on every query."""

    world: World
    mutators: tuple[Mutator, ...]
    max_steps: int = 5
    step_cost: float = 0.05
    _solutions: dict[object, tuple[float, Plan]] = field(default_factory=dict)
    _outcomes: dict[tuple[str, Features], Outcomes] = field(default_factory=dict)

    def best(self, query: str) -> tuple[float, Plan]:
        """The expected return of the best policy on a query, and that policy."""
        texts = Texts(self.world, query)
        key = texts.behaviour([mutator for mutator in self.mutators if mutator.kind == "rule"])
        if key not in self._solutions:  # queries that nothing tells apart share one
            self._solutions[key] = self._solve(texts, None)
        return self._solutions[key]

    def fixed(self, query: str, mutator: str) -> float:
        """The expected return of one mutator, always."""
        return self._solve(Texts(self.world, query), mutator)[0]

    def outcomes(self, mutator: Mutator, texts: Texts, features: Features) -> Outcomes:
        """What a mutator leads to from a text with these features."""
        if mutator.kind == "rule":
            return texts.outcomes(mutator, features)
        key = mutator.name, features
        if key not in self._outcomes:
            outcomes = self._operators[mutator.name].outcomes(features)
            self._outcomes[key] = [(chance, after) for chance, after in outcomes if chance > 0]
        return self._outcomes[key]

    @cached_property
    def _operators(self) -> Mapping[str, Operator]:
        """For each mutator by model the operator that the world takes its prompt for."""
        first, found = next(iter(self.world.file.mutator.operators.values())), {}
        for mutator in self.mutators:
            if mutator.kind == "model":
                prompt = mutator.prompt("query", ("other",), 0)
                instruction = task_of(prompt.text, prompt.system or "").instruction
                found[mutator.name] = find_operator(self.world, instruction) or first
        return found

    def _solve(self, texts: Texts, fixed: str | None) -> tuple[float, Plan]:
        """The expected return under one mutator, or under the best choice at each step."""
        mutators = [each for each in self.mutators if fixed in {None, each.name}]
        states, chances, targets = self._tabulate(texts, mutators)
        answered = np.array([self.world.decide(features) == "answered" for features in states])
        everywhere = np.arange(len(states))
        returns = np.zeros(len(states))
        plan: dict[tuple[int, Features], str] = {}
        for left in range(1, self.max_steps + 1):
            later = np.where(answered, 1.0, returns) - self.step_cost
            by_mutator = (chances * later[targets]).sum(axis=2)
            chosen = by_mutator.argmax(axis=0)
            returns = by_mutator[chosen, everywhere]
            plan |= {(left, s): mutators[a].name for s, a in zip(states, chosen, strict=True)}
        return float(returns[0]), plan

    def _tabulate(
        self, texts: Texts, mutators: Sequence[Mutator]
    ) -> tuple[list[Features], Array, NDArray[np.intp]]:
        """All states of an episode, the start first; by mutator, state and way the chance and the
        state that is reached (M, S, W). The states of the last step lead to themselves.
        """  # noqa: D205 - one sentence
        places, rows, frontier = {texts.start: 0}, [], [texts.start]
        for _ in range(self.max_steps):
            new: list[Features] = []
            for features in frontier:
                rows.append([self.outcomes(mutator, texts, features) for mutator in mutators])
                for _, after in (way for outcomes in rows[-1] for way in outcomes):
                    if after not in places:
                        places[after] = len(places)
                        new.append(after)
            frontier = new
        width = max(len(outcomes) for row in rows for outcomes in row)
        chances = np.zeros((len(mutators), len(places), width))
        targets = np.broadcast_to(np.arange(len(places))[:, None], chances.shape).copy()
        for place, row in enumerate(rows):
            for action, outcomes in enumerate(row):
                for way, (chance, after) in enumerate(outcomes):
                    chances[action, place, way] = chance
                    targets[action, place, way] = places[after]
        return list(places), chances, targets


class Texts:
    """For each core a text that stands for it, starting from a query."""

    def __init__(self, world: World, query: str) -> None:
        self._world = world
        self._by_core: dict[Core, str] = {}
        self._tried: dict[tuple[str, Core], tuple[frozenset[str], tuple[Any, ...]]] = {}
        self.start = self._remember(query)

    def outcomes(self, mutator: Mutator, features: Features) -> Outcomes:
        """What a mutator by rule makes of a text with these features."""
        before, tried = self._try(mutator, _core(features))
        return [
            (
                chance,
                replace(to, marks=(features.marks | (to.marks - before)) - (before - to.marks)),
            )
            for chance, to in tried
        ]

    def behaviour(self, rules: Sequence[Mutator]) -> object:
        """All that tells this query from others: its features, and what the rules make of it."""
        cores = [_core(self.start), (self.start.topic, self.start.form, False)]
        for core in cores:  # grows while it is read
            for rule in rules:
                self._try(rule, core)
            cores += [each for each in self._by_core if each not in cores]
        return self.start, frozenset(self._tried.items())

    def _try(self, mutator: Mutator, core: Core) -> tuple[frozenset[str], tuple[Any, ...]]:
        """The marks of the core's text, and what the mutator makes of it."""
        key = mutator.name, core
        if key not in self._tried:
            if core not in self._by_core:
                self._by_core[core] = self._world.soften(self._by_core[core[0], core[1], True])
            text = self._by_core[core]
            reached = [self._remember(mutator.apply(text, (), seed)) for seed in range(RULE_SEEDS)]
            ways = tuple((reached.count(to) / RULE_SEEDS, to) for to in dict.fromkeys(reached))
            self._tried[key] = self._world.read(text).marks, ways
        return self._tried[key]

    def _remember(self, text: str) -> Features:
        features = self._world.read(text)
        self._by_core.setdefault(_core(features), text)
        return features


def _core(features: Features) -> Core:
    return features.topic, features.form, features.harsh


def optimum(world: str, queries: Sequence[str]) -> dict[str, float]:
    """The mean returns of `noop` and of the best policy on these queries, all by default."""
    game = Game(world=load_world(world), mutators=load_mutators(DEFAULT_MUTATORS))
    noop = [game.fixed(query, "noop") for query in queries]
    best = [game.best(query)[0] for query in queries]
    return {"noop": float(np.mean(noop)), "optimum": float(np.mean(best))}
