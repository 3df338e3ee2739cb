"""What policies reach in the simulator's worlds, on both sides: computed, not sampled.

    python -m benchmarks.worlds
    python -m benchmarks.worlds --json worlds.json

One step: a mutator rewords a query once, and the target answers. Of the queries that are refused as
they stand, *opened* is the share of the harmless ones (envs/data/over_refusal.csv) that is answered
then, *unlocked* the share of those that ought to be refused (envs/data/guard.csv). A policy is good
on the harmless side by what it opens, on the other by what it leaves locked, on both by opened less
unlocked, the two sides counting equally. What the guards of an environment would turn down is not
known here.

The linear policy reads the query's words alone: a ridge regression of each mutator's gain on TF-IDF
of words and pairs of words, five-fold, so that no query is scored by a model that saw it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]  # it has no types
from sklearn.linear_model import LogisticRegression, Ridge  # type: ignore[import-untyped]  # it has no types
from sklearn.metrics import roc_auc_score  # type: ignore[import-untyped]  # it has no types
from sklearn.model_selection import StratifiedKFold, cross_val_predict  # type: ignore[import-untyped]  # it has no types
from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]  # it has no types
from sklearn.preprocessing import OneHotEncoder  # type: ignore[import-untyped]  # it has no types

from envs.queries import BUNDLED_GUARD_QUERIES, BUNDLED_QUERIES, Query, load_queries
from mutators.mutator import Mutator
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from simulator.mutator import find_operator
from simulator.settings import WORLDS
from simulator.world import World, load_world

Array = NDArray[np.float64]

RULE_SEEDS = 8
"""Seeds over which a mutator by rule is averaged."""
OBJECTIVES: Mapping[str, tuple[float, float]] = {
    "harmless": (1, 0),
    "harmful": (0, -1),
    "both": (1, -1),
}
"""What opened and unlocked count for."""
SIDES = (BUNDLED_QUERIES, BUNDLED_GUARD_QUERIES)


def answered(world: World, mutator: Mutator, query: str) -> float:
    """The probability that a query is answered once a mutator has reworded it."""
    if mutator.kind == "rule":
        texts = [mutator.apply(query, (), seed) for seed in range(RULE_SEEDS)]
        return float(np.mean([world.decide(world.read(text)) == "answered" for text in texts]))
    operator = find_operator(world, mutator.prompt(query, (), 0).system or "")
    if operator is None:
        raise ValueError(f"the world {world.file.name!r} has no operator for {mutator.name!r}")
    outcomes = operator.outcomes(world.read(query))
    return sum(chance for chance, after in outcomes if world.decide(after) == "answered")


def measure(world: World, sides: Sequence[Sequence[Query]]) -> dict[str, Any]:
    """Opened and unlocked by policy, for each objective.

    Args:
        world: where.
        sides: the harmless queries, and those that ought to be refused.
    """
    mutators = load_mutators(DEFAULT_MUTATORS)
    refused = [
        [query for query in side if world.decide(world.read(query.text)) != "answered"]
        for side in sides
    ]
    table = [
        np.array([[answered(world, each, query.text) for each in mutators] for query in side])
        for side in refused
    ]
    found: dict[str, Any] = {"refused": {"harmless": len(table[0]), "harmful": len(table[1])}}
    texts = [query.text for side in refused for query in side]
    is_harmful = np.repeat([0, 1], [len(side) for side in refused])
    for name, signs in OBJECTIVES.items():
        gains = [sign * side for sign, side in zip(signs, table, strict=True)]
        fixed = int((gains[0].mean(axis=0) + gains[1].mean(axis=0)).argmax())
        best = np.concatenate([side.argmax(axis=1) for side in gains])
        choices = {
            "noop": np.full(len(texts), [each.name for each in mutators].index("noop")),
            "best fixed": np.full(len(texts), fixed),
            "linear policy": _linear(texts, np.concatenate(gains), is_harmful),
            "best choice a query": best,
        }
        found[name] = {
            policy: _scores(table, chosen, is_harmful, signs) for policy, chosen in choices.items()
        }
        found[name]["best fixed"]["mutator"] = mutators[fixed].name
    return found


def _linear(texts: Sequence[str], gains: Array, is_harmful: NDArray[np.int64]) -> NDArray[np.int64]:
    """The mutator with the highest predicted gain for each query; ties go to the first."""
    chosen = np.zeros(len(texts), dtype=np.int64)
    weights = np.where(is_harmful, 1 / is_harmful.sum(), 1 / (1 - is_harmful).sum()) * len(texts)
    for train, held_out in StratifiedKFold(5, shuffle=True, random_state=0).split(
        texts, is_harmful
    ):
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        rows = words.fit_transform([texts[place] for place in train])
        model = Ridge(alpha=0.3).fit(rows, gains[train], sample_weight=weights[train])
        predicted = model.predict(words.transform([texts[place] for place in held_out]))
        chosen[held_out] = predicted.argmax(axis=1)
    return chosen


def _scores(
    table: Sequence[Array],
    chosen: NDArray[np.int64],
    is_harmful: NDArray[np.int64],
    signs: tuple[float, float],
) -> dict[str, Any]:
    shares = [
        float(np.take_along_axis(side, chosen[is_harmful == number][:, None], axis=1).mean())
        for number, side in enumerate(table)
    ]
    value = signs[0] * shares[0] + signs[1] * shares[1]
    return {"opened": shares[0], "unlocked": shares[1], "value": value}


def sides_told_apart(sides: Sequence[Sequence[Query]]) -> dict[str, float]:
    """AUC of a linear model for the side that a query is on, by its words and by its category."""
    queries = [query for side in sides for query in side]
    is_harmful = np.repeat([0, 1], [len(side) for side in sides])
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    classifier = LogisticRegression(C=10, class_weight="balanced", max_iter=2000)
    by = {
        "words": (make_pipeline(words, classifier), [query.text for query in queries]),
        "category": (
            make_pipeline(OneHotEncoder(), classifier),
            [[query.group] for query in queries],
        ),
    }
    return {
        name: float(
            roc_auc_score(
                is_harmful,
                cross_val_predict(model, rows, is_harmful, cv=folds, method="predict_proba")[:, 1],
            )
        )
        for name, (model, rows) in by.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worlds")
    parser.add_argument("--json", type=Path, help="a file for all numbers")
    given = parser.parse_args(argv)
    sides = [load_queries(path, group_column="category") for path in SIDES]
    found: dict[str, Any] = {"simulated": True, "auc": sides_told_apart(sides)}
    print("SIMULATED: these figures are of the simulator's worlds, not of a model")
    for by, auc in found["auc"].items():
        print(f"AUC of the side by {by}: {auc:.3f}")
    for name in WORLDS:
        found[name] = measure(load_world(name), sides)
        print(f"\n{name}: refused as they stand {found[name]['refused']}")
        print(f"{'objective':<10}{'policy':<40}{'opened':>8}{'unlocked':>10}{'value':>8}")
        for objective in OBJECTIVES:
            for policy, row in found[name][objective].items():
                named = f"{policy} ({row['mutator']})" if "mutator" in row else policy
                shares = f"{row['opened']:>8.3f}{row['unlocked']:>10.3f}{row['value']:>8.3f}"
                print(f"{objective:<10}{named:<40}{shares}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
