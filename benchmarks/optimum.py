"""The best that any policy can reach in the simulator's world, query by query, by dynamic programming.

    python -m benchmarks.optimum
    python -m benchmarks.optimum --queries xstest_prompts.csv --where label=safe --json optimum.json

An episode: at each step a mutator rewrites the current text (a rewrite that comes to nothing changes
nothing) and the target answers the text. Answered: the episode ends with reward 1 - step cost; else the
reward is -step cost, and after the last step the query is given up.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.values import Game, Solution, Value
from envs.queries import load_queries
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from ollama_utils.simulator.personas.world import load_persona
from train.errors import UserError
from train.run_folder import check_writable

_USAGE_ERROR = 2


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
        solutions = _solve(given)
    except (OSError, ValueError, UserError) as error:
        sys.stderr.write(f"{error}\n")
        return _USAGE_ERROR
    summary = summarise([solution for _, solution in solutions])
    _show(summary)
    if given.json:
        rows = [_row(query, solution) for query, solution in solutions]
        given.json.write_text(json.dumps({"summary": summary, "queries": rows}, indent=1), encoding="utf-8")
    return 0


def _solve(given: argparse.Namespace) -> list[tuple[str, Solution]]:
    """Every query with its solution."""
    game = Game(
        persona=load_persona(given.persona),
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
    parser.add_argument("--persona", help="a persona's TOML file; the shipped one when left out")
    parser.add_argument("--queries", nargs="+", help="query files; the bundled one when left out")
    parser.add_argument(
        "--where", action="append", default=[], help="column=value that a row must have; repeatable"
    )
    parser.add_argument("--mutators", default=",".join(DEFAULT_MUTATORS), help="names, divided by commas")
    parser.add_argument("--max-steps", type=_positive, default=5, help="steps of an episode")
    parser.add_argument("--step-cost", type=float, default=0.05, help="taken from the reward of each step")
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
    print(f"{summary['queries']} queries, {summary['answered_as_they_stand']:.1%} answered as they stand")
    print(f"{'policy':<28}{'return':>8}{'success':>9}")
    fixed = sorted(summary["fixed"].items(), key=lambda item: -item[1]["return"])
    for name, value in [("best", summary["best"]), ("random", summary["random"]), *fixed]:
        print(f"{name:<28}{value['return']:>8.3f}{value['success']:>9.1%}")


if __name__ == "__main__":
    sys.exit(main())
