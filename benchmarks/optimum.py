"""The best that any policy can reach in the simulator's world, query by query, by dynamic programming.

    python -m benchmarks.optimum
    python -m benchmarks.optimum --queries xstest_prompts.csv --where label=safe --json optimum.json

An episode: at each step a mutator rewrites the current text (an empty rewrite changes nothing) and the target
answers the text. Answered: the episode ends with reward 1 - step cost; else the reward is -step cost, and
after the last step the query is given up. Values are computed over features of the text.

A mutator by a model is one of the world's operators, whose outcomes the world itself lists: for these
the values are exact. A mutator by rule is a function of the text, which features do not hold: for these the
values are near. A rule is tried with a few seeds on a text that stands for the features (the query, its
softened form, and what the rules make of them), and on an episode's own text it may do something else: of
7,149 steps by rule that were played at random, 2 led to features other than those reckoned with. `crossover`
counts as its own operator even where it has nothing to combine yet; in `cautious` that makes no difference.
An environment also turns rewrites down for their form and for their similarity to the original, which is not
known here: what is computed is an upper bound.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.queries import load_queries
from mutators.mutator import Mutator
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from records.errors import UserError
from records.outputs import check_writable
from simulator.mutator import find_operator
from simulator.prompts import task_of
from simulator.world import World, load_world
from simulator.world_file import Features, Operator

Outcomes = tuple[tuple[float, Features], ...]
"""What a mutator may lead to, each with its probability."""
Core = tuple[str, str, bool]
"""Topic, form and harshness: what the words of a text say, whatever marks of style it carries."""
Value = tuple[float, float]
"""A policy's expected return and its probability of success."""

_USAGE_ERROR = 2
RULE_SEEDS = 8
"""Seeds over which a mutator by rule is averaged."""


@dataclass(frozen=True, kw_only=True)
class Solution:
    """The values of policies on a query."""

    noop: bool
    """Whether the query is answered as it stands."""
    best: Value
    random: Value
    fixed: Mapping[str, Value]
    """By the mutator that is always chosen."""
    plan: Mapping[tuple[int, Features], str]
    """The best mutator by steps left and features."""


@dataclass(frozen=True, kw_only=True)
class Game:
    """What is played on every query."""

    world: World
    mutators: tuple[Mutator, ...]
    max_steps: int = 5
    step_cost: float = 0.05
    _solutions: dict[object, Solution] = field(default_factory=dict)
    _outcomes: dict[tuple[str, Features], Outcomes] = field(default_factory=dict)

    def solve(self, query: str) -> Solution:
        """The solution for a query; queries that cannot be told apart share one."""
        texts = Texts(self.world, query)
        key = texts.behaviour([mutator for mutator in self.mutators if mutator.kind == "rule"])
        if key not in self._solutions:
            self._solutions[key] = _solve_texts(self, texts)
        return self._solutions[key]

    def outcomes(self, mutator: Mutator, texts: Texts, features: Features) -> Outcomes:
        """What a mutator leads to from a text with these features."""
        if mutator.kind == "rule":
            return texts.outcomes(mutator, features)
        key = (mutator.name, features)
        if key not in self._outcomes:
            outcomes = self._operators[mutator.name].outcomes(features)
            self._outcomes[key] = tuple((chance, after) for chance, after in outcomes if chance > 0)
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


class Texts:
    """For each core a text that stands for it, starting from a query.

    Args:
        world: reads features.
        query: the first text.
    """

    def __init__(self, world: World, query: str) -> None:
        self._world = world
        self._by_core: dict[Core, str] = {}
        self._tried: dict[tuple[str, Core], tuple[frozenset[str], Outcomes]] = {}
        self.start = self._remember(query)

    def outcomes(self, mutator: Mutator, features: Features) -> Outcomes:
        """What a mutator by rule makes of a text with these features."""
        before, tried = self._try(mutator, _core(features))
        return tuple(
            (chance, replace(after, marks=_moved(features.marks, before, after.marks)))
            for chance, after in tried
        )

    def behaviour(self, rules: Sequence[Mutator]) -> object:
        """All that tells this query from others: its features, and what the rules make of its words."""
        softened = (self.start.topic, self.start.form, False)
        for core in dict.fromkeys([_core(self.start), softened]):
            for rule in rules:
                self._try(rule, core)
        seen: set[Core] = set()
        while len(self._by_core) > len(seen):
            for core in [*self._by_core]:
                seen.add(core)
                for rule in rules:
                    self._try(rule, core)
        return self.start, frozenset((key, value) for key, value in self._tried.items())

    def _try(self, mutator: Mutator, core: Core) -> tuple[frozenset[str], Outcomes]:
        """The marks of the core's text, and what the mutator makes of it over `RULE_SEEDS` seeds."""
        key = (mutator.name, core)
        if key not in self._tried:
            text = self._standing_for(core)
            reached = [self._remember(mutator.apply(text, (), seed)) for seed in range(RULE_SEEDS)]
            outcomes = tuple(
                (reached.count(each) / RULE_SEEDS, each) for each in dict.fromkeys(reached)
            )
            self._tried[key] = (self._world.read(text).marks, outcomes)
        return self._tried[key]

    def _standing_for(self, core: Core) -> str:
        if core not in self._by_core:
            self._by_core[core] = self._world.soften(self._by_core[core[0], core[1], True])
        return self._by_core[core]

    def _remember(self, text: str) -> Features:
        features = self._world.read(text)
        self._by_core.setdefault(_core(features), text)
        return features


def _core(features: Features) -> Core:
    return features.topic, features.form, features.harsh


def _moved(marks: frozenset[str], before: frozenset[str], after: frozenset[str]) -> frozenset[str]:
    """Marks after a step that made `after` of `before`."""
    return (marks | (after - before)) - (before - after)


@dataclass(frozen=True, kw_only=True)
class _Table:
    """The states of a query within an episode (S), where actions (A) lead by chance (up to O ways)."""

    states: list[Features]
    targets: NDArray[np.intp]
    """(A, S, O): the state reached."""
    chances: NDArray[np.float64]
    """(A, S, O): with which probability."""
    answered: NDArray[np.bool_]
    """(S,): whether the target answers."""


def _solve_texts(game: Game, texts: Texts) -> Solution:
    table = _tabulate(game, texts)
    plan: dict[tuple[int, Features], str] = {}
    count = len(game.mutators)
    uniform = np.full((count, len(table.states)), 1 / count)
    best = _evaluate(game, table, None, plan)
    fixed = {
        mutator.name: _evaluate(game, table, np.eye(count)[place][:, None] * np.ones_like(uniform))
        for place, mutator in enumerate(game.mutators)
    }
    return Solution(
        noop=bool(table.answered[0]),
        best=best,
        random=_evaluate(game, table, uniform),
        fixed=fixed,
        plan=plan,
    )


def _tabulate(game: Game, texts: Texts) -> _Table:
    """All states reachable in an episode, the start first; the last step's states lead to themselves."""
    places = {texts.start: 0}
    rows: list[list[Outcomes]] = []
    frontier = [texts.start]
    for _ in range(game.max_steps):
        reached: dict[Features, None] = {}
        for features in frontier:
            rows.append([game.outcomes(mutator, texts, features) for mutator in game.mutators])
            reached.update(
                (after, None)
                for outcomes in rows[-1]
                for _, after in outcomes
                if after not in places
            )
        frontier = list(reached)
        places.update({features: len(places) + place for place, features in enumerate(frontier)})
    width = max(len(outcomes) for row in rows for outcomes in row)
    shape = (len(game.mutators), len(places), width)
    targets = np.broadcast_to(np.arange(len(places))[None, :, None], shape).copy()
    chances = np.zeros(shape)
    for place, row in enumerate(rows):
        for action, outcomes in enumerate(row):
            for way, (chance, after) in enumerate(outcomes):
                targets[action, place, way] = places[after]
                chances[action, place, way] = chance
    answered = np.array([game.world.decide(features) == "answered" for features in places])
    return _Table(states=list(places), targets=targets, chances=chances, answered=answered)


def _evaluate(
    game: Game,
    table: _Table,
    policy: NDArray[np.float64] | None,
    plan: dict[tuple[int, Features], str] | None = None,
) -> Value:
    """The start's value under a policy (A, S), or under the best one, which is then written into `plan`."""
    returns, success = np.zeros(len(table.states)), np.zeros(len(table.states))
    for left in range(1, game.max_steps + 1):
        later_return = np.where(table.answered, 1.0, returns) - game.step_cost
        later_success = np.where(table.answered, 1.0, success)
        by_action = (table.chances * later_return[table.targets]).sum(axis=2)
        if policy is None:
            chosen = by_action.argmax(axis=0)
            weights = np.eye(len(by_action))[chosen].T
        else:
            weights = policy
        if plan is not None:
            names = [game.mutators[action].name for action in chosen]
            plan.update(
                {(left, state): name for state, name in zip(table.states, names, strict=True)}
            )
        returns = (weights * by_action).sum(axis=0)
        success = (weights * (table.chances * later_success[table.targets]).sum(axis=2)).sum(axis=0)
    return float(returns[0]), float(success[0])


def summarise(solutions: Sequence[Solution]) -> dict[str, Any]:
    """Means over queries: return and success of the best, the random and every fixed policy."""

    def mean(values: Sequence[Value]) -> dict[str, float]:
        returns, success = np.mean(np.array(values), axis=0)
        return {"return": float(returns), "success": float(success)}

    fixed = {name: mean([each.fixed[name] for each in solutions]) for name in solutions[0].fixed}
    best_fixed = max(fixed, key=lambda name: fixed[name]["return"])
    return {
        "simulated": True,
        "queries": len(solutions),
        "answered_as_they_stand": float(np.mean([each.noop for each in solutions])),
        "best": mean([each.best for each in solutions]),
        "random": mean([each.random for each in solutions]),
        "best_fixed": {"mutator": best_fixed, **fixed[best_fixed]},
        "fixed": fixed,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print what policies reach on the queries; the exit status."""
    given = _parser().parse_args(argv)
    try:
        check_writable(given.json)
        solutions = _solve_queries(given)
    except (OSError, ValueError, UserError) as error:
        sys.stderr.write(f"{error}\n")
        return _USAGE_ERROR
    summary = summarise([solution for _, solution in solutions])
    _show(summary)
    if given.json:
        rows = [_row(query, solution) for query, solution in solutions]
        given.json.write_text(
            json.dumps({"summary": summary, "queries": rows}, indent=1), encoding="utf-8"
        )
    return 0


def _solve_queries(given: argparse.Namespace) -> list[tuple[str, Solution]]:
    """Every query with its solution."""
    game = Game(
        world=load_world(given.world),
        mutators=load_mutators(given.mutators.split(",")),
        max_steps=given.max_steps,
        step_cost=given.step_cost,
    )
    files = [load_queries(path, where=given.where) for path in given.queries or [None]]
    return [(query.text, game.solve(query.text)) for queries in files for query in queries]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.optimum", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--world", default="cautious", help="cautious, drawn, or a TOML file [cautious]"
    )
    parser.add_argument("--queries", nargs="+", help="query files; the bundled one when left out")
    parser.add_argument(
        "--where", action="append", default=[], help="column=value that a row must have; repeatable"
    )
    parser.add_argument(
        "--mutators", default=",".join(DEFAULT_MUTATORS), help="names, divided by commas"
    )
    parser.add_argument("--max-steps", type=_positive, default=5, help="steps of an episode")
    parser.add_argument(
        "--step-cost", type=float, default=0.05, help="taken from the reward of each step"
    )
    parser.add_argument("--json", type=Path, help="a file for all numbers, query by query")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return number


def _row(query: str, solution: Solution) -> dict[str, Any]:
    """A query's values, each a pair of expected return and probability of success."""
    return {
        "query": query,
        "answered_as_it_stands": solution.noop,
        "best": solution.best,
        "random": solution.random,
        "fixed": dict(solution.fixed),
    }


def _show(summary: Mapping[str, Any]) -> None:
    print("SIMULATED: these figures are of the simulator's world, not of a model")
    print(
        f"{summary['queries']} queries, {summary['answered_as_they_stand']:.1%} answered as they stand"
    )
    print(f"{'policy':<28}{'return':>8}{'success':>9}")
    fixed = sorted(summary["fixed"].items(), key=lambda item: -item[1]["return"])
    for name, value in [("best", summary["best"]), ("random", summary["random"]), *fixed]:
        print(f"{name:<28}{value['return']:>8.3f}{value['success']:>9.1%}")


if __name__ == "__main__":
    sys.exit(main())
