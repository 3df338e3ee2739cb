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
from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression, Ridge  # type: ignore[import-untyped]
from sklearn.metrics import roc_auc_score  # type: ignore[import-untyped]
from sklearn.model_selection import StratifiedKFold, cross_val_predict  # type: ignore[import-untyped]
from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
from sklearn.preprocessing import OneHotEncoder  # type: ignore[import-untyped]

from envs.queries import BUNDLED_GUARD_QUERIES, BUNDLED_QUERIES, Query
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
Value = tuple[float, float]
"""A policy's expected return and its probability of success."""
Plan = Mapping[tuple[int, Features], str]
"""The best mutator by steps left and features."""
RULE_SEEDS = 8
"""Seeds over which a mutator by rule is averaged."""
SIDES = (BUNDLED_QUERIES, BUNDLED_GUARD_QUERIES)
"""Harmless queries, and queries that ought to be refused."""


@dataclass(frozen=True, kw_only=True)
class Game:
    """What is played on every query."""

    world: World
    mutators: tuple[Mutator, ...]
    max_steps: int = 5
    step_cost: float = 0.05
    _solutions: dict[object, tuple[Value, Plan]] = field(default_factory=dict)
    _outcomes: dict[tuple[str, Features], Outcomes] = field(default_factory=dict)

    def best(self, query: str) -> tuple[Value, Plan]:
        """The value of the best policy on a query, and that policy."""
        texts = Texts(self.world, query)
        key = texts.behaviour([mutator for mutator in self.mutators if mutator.kind == "rule"])
        if key not in self._solutions:  # queries that nothing tells apart share one
            self._solutions[key] = self._solve(texts, None)
        return self._solutions[key]

    def fixed(self, query: str, mutator: str) -> Value:
        """The value of one mutator, always."""
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

    def _solve(self, texts: Texts, fixed: str | None) -> tuple[Value, Plan]:
        """The value at the start under one mutator, or under the best choice at each step."""
        mutators = [each for each in self.mutators if fixed in {None, each.name}]
        states, chances, targets = self._tabulate(texts, mutators)
        answered = np.array([self.world.decide(features) == "answered" for features in states])
        everywhere = np.arange(len(states))
        returns, success = np.zeros(len(states)), np.zeros(len(states))
        plan: dict[tuple[int, Features], str] = {}
        for left in range(1, self.max_steps + 1):
            later = np.where(answered, 1.0, returns) - self.step_cost
            by_mutator = (chances * later[targets]).sum(axis=2)
            later = np.where(answered, 1.0, success)
            chosen = by_mutator.argmax(axis=0)
            success = (chances * later[targets]).sum(axis=2)[chosen, everywhere]
            returns = by_mutator[chosen, everywhere]
            plan |= {(left, s): mutators[a].name for s, a in zip(states, chosen, strict=True)}
        return (float(returns[0]), float(success[0])), plan

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
    noop = [game.fixed(query, "noop")[0] for query in queries]
    best = [game.best(query)[0][0] for query in queries]
    return {"noop": float(np.mean(noop)), "optimum": float(np.mean(best))}


def measure(world: World, sides: Sequence[Sequence[Query]]) -> dict[str, Any]:
    """What one rewording opens of the harmless queries, and unlocks of the others, by policy.

    *opened* and *unlocked* are shares of the queries that are refused as they stand. A policy is
    good by what it opens (`harmless`), by what it leaves locked (`harmful`), or by their difference
    (`both`). The linear policy reads the query's words alone: a ridge regression of each mutator's
    gain on TF-IDF, five-fold, so that no query is scored by a model that saw it.
    """
    mutators = load_mutators(DEFAULT_MUTATORS)
    game = Game(world=world, mutators=mutators, max_steps=1)
    refused = [
        [query.text for query in side if world.decide(world.read(query.text)) != "answered"]
        for side in sides
    ]
    opens = np.array(
        [
            [game.fixed(text, mutator.name)[1] for mutator in mutators]
            for side in refused
            for text in side
        ]
    )
    harmful = np.repeat([0, 1], [len(side) for side in refused])
    weights = np.where(harmful, 1 / harmful.mean(), 1 / (1 - harmful.mean()))
    found: dict[str, Any] = {}
    for objective, signs in {"harmless": (1, 0), "harmful": (0, -1), "both": (1, -1)}.items():
        gains = np.array(signs)[harmful][:, None] * opens
        model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), Ridge(0.3))
        predicted = cross_val_predict(
            model,
            [text for side in refused for text in side],
            gains,
            cv=_folds(harmful),
            params={"ridge__sample_weight": weights},
        )
        noop = [each.name for each in mutators].index("noop")
        best_fixed = int((weights[:, None] * gains).sum(axis=0).argmax())
        choices = {
            "noop": np.full(len(gains), noop),
            "best fixed": np.full(len(gains), best_fixed),
            "linear policy": predicted.argmax(axis=1),
            "best choice a query": gains.argmax(axis=1),
        }
        found[objective] = {}
        for policy, chosen in choices.items():
            open_shares = opens[np.arange(len(opens)), chosen]
            opened, unlocked = (float(open_shares[harmful == side].mean()) for side in (0, 1))
            value = signs[0] * opened + signs[1] * unlocked
            row = {"opened": opened, "unlocked": unlocked, "value": value}
            found[objective][policy] = row
    return found


def sides_told_apart(sides: Sequence[Sequence[Query]]) -> dict[str, float]:
    """AUC of a linear model for the side that a query is on, by its words and by its category."""
    queries = [query for side in sides for query in side]
    harmful = np.repeat([0, 1], [len(side) for side in sides])
    readers = {
        "words": (
            TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
            [q.text for q in queries],
        ),
        "category": (OneHotEncoder(), [[query.group] for query in queries]),
    }
    found = {}
    for name, (reader, rows) in readers.items():
        model = make_pipeline(reader, LogisticRegression(C=10, class_weight="balanced"))
        cv = _folds(harmful)
        predicted = cross_val_predict(model, rows, harmful, cv=cv, method="predict_proba")
        found[name] = float(roc_auc_score(harmful, predicted[:, 1]))
    return found


def _folds(labels: NDArray[np.int64]) -> list[Any]:
    return list(StratifiedKFold(5, shuffle=True, random_state=0).split(labels, labels))
