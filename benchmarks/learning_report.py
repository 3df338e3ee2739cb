"""docs/learning.md: what was learned beside what could be, from the results of `benchmarks.learning_runs`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning_figures import draw_curves, interquartile_mean, stratified_interval
from benchmarks.learning_runs import WORLDS, Plan, World, solve
from benchmarks.tables import Section, at_least
from scorers.comparison import compare

BEATEN = ("best_fixed", "ucb1", "random")
"""The baselines that PPO has to beat on the held-out queries, in each seed."""
SHARE_TRAIN, SHARE_HELD_OUT, SHARE_EACH = 0.95, 0.80, 0.70
SMOOTHED = 4
"""Rollouts that a point of a curve is the mean of."""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """What the computed policies are worth on a set of queries: mean returns and successes."""

    best: tuple[float, float]
    best_fixed: tuple[float, float]
    name: str
    """The mutator that is the best fixed one on these queries."""
    random: tuple[float, float]

    def share(self, value: float) -> float:
        """How far a return is on the way from the best fixed mutator (0) to the optimum (1)."""
        return (value - self.best_fixed[0]) / (self.best[0] - self.best_fixed[0])


def ceiling(world: World, queries: Sequence[str]) -> Ceiling:
    """Solve the world's game on these queries."""
    solutions = solve(world, queries)
    fixed = {name: _mean([each.fixed[name] for each in solutions]) for name in solutions[0].fixed}
    name = max(fixed, key=lambda each: fixed[each][0])
    return Ceiling(
        best=_mean([each.best for each in solutions]),
        best_fixed=fixed[name],
        name=name,
        random=_mean([each.random for each in solutions]),
    )


def report(plan: Plan, results: Sequence[Mapping[str, Any]], figure: Path | None) -> tuple[str, list[str]]:
    """The report in Markdown, and the targets that were missed; the curves are drawn into `figure`."""
    sections, curves, levels = [], {}, {}
    for world in WORLDS:
        rows = [each for each in results if each["world"] == world.name]
        held, own = (ceiling(world, rows[0][side]["queries"]) for side in ("held-out", "train"))
        sections += [_seeds(world, rows, held, own), _policies(world, rows, held)]
        curves[world.name] = _curve(rows)
        levels[world.name] = {
            "optimum": own.best[0],
            f"best fixed ({own.name})": own.best_fixed[0],
            "random": own.random[0],
        }
    if figure:
        draw_curves(figure, curves, levels)
    text = "\n\n".join([_heading(plan), *(section.markdown() for section in sections)]) + "\n"
    return text, [check.what for section in sections for check in section.checks if not check.met]


def _seeds(world: World, results: Sequence[Mapping[str, Any]], held: Ceiling, own: Ceiling) -> Section:
    rows = [_seed_row(result, held, own) for result in results]
    shares = [row["held_share"] for row in rows]
    beaten = [sum(row[f"{name}_low"] > 0 for row in rows) / len(rows) for name in BEATEN]
    return Section(
        title=f"{world.name}: PPO by seed",
        about=(
            f"{len(results[0]['held-out']['queries'])} held-out queries, "
            f"{len(results[0]['train']['queries'])} training queries. *Share*: how far PPO's mean return is "
            "on the way from the best fixed mutator to the computed optimum, on those queries. *Over*: by "
            "how much PPO's return on the held-out queries is higher, paired by query, with its interval."
        ),
        rows=rows,
        columns={
            "seed": "seed",
            "own_share": "share, training",
            "held_share": "share, held out",
            **{name: f"over {name}" for name in BEATEN},
        },
        checks=[
            at_least(
                "share on training queries, mean", SHARE_TRAIN, float(np.mean([r["own_share"] for r in rows]))
            ),
            at_least("share on held-out queries, mean", SHARE_HELD_OUT, float(np.mean(shares))),
            at_least("share on held-out queries, least", SHARE_EACH, min(shares)),
            *(
                at_least(f"share of seeds whose interval over {name} is above 0", 1.0, share)
                for name, share in zip(BEATEN, beaten, strict=True)
            ),
        ],
    )


def _seed_row(result: Mapping[str, Any], held: Ceiling, own: Ceiling) -> dict[str, Any]:
    teams = result["held-out"]["teams"]
    row: dict[str, Any] = {
        "seed": result["seed"],
        "own_share": own.share(_overall(result["train"]["teams"]["PPO"]["return"])),
        "held_share": held.share(_overall(teams["PPO"]["return"])),
    }
    for name in BEATEN:
        gain = compare(teams["PPO"]["return"], teams[name]["return"])
        row |= {f"{name}_low": gain.low, name: f"{gain.difference:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"}
    return row


def _policies(world: World, results: Sequence[Mapping[str, Any]], held: Ceiling) -> Section:
    names = list(results[0]["held-out"]["teams"])
    computed = {"optimum": held.best, f"best fixed ({held.name})": held.best_fixed, "random": held.random}
    rows = [_policy_row(name, results, held) for name in names]
    rows += [
        {"policy": f"{name}, computed", "return": _figure(value[0]), "success": f"{value[1]:.1%}"}
        for name, value in computed.items()
    ]
    return Section(
        title=f"{world.name}: every policy on the held-out queries",
        about=(
            "Interquartile means over the seeds with their 95 % stratified bootstrap intervals. Baselines "
            "that are fitted had as many target calls on the training queries as PPO."
        ),
        rows=rows,
        columns={
            "policy": "policy",
            "return": "return",
            "success": "success",
            "share": "share of the way",
        },
    )


def _policy_row(name: str, results: Sequence[Mapping[str, Any]], held: Ceiling) -> dict[str, Any]:
    returns, success = (
        np.array([[_overall(result["held-out"]["teams"][name][key])] for result in results])
        for key in ("return", "success")
    )
    return {
        "policy": name,
        "return": _with_interval(returns),
        "success": _with_interval(success, percent=True),
        "share": held.share(float(interquartile_mean(returns[:, 0]))),
    }


def _with_interval(scores: NDArray[np.float64], *, percent: bool = False) -> str:
    """The interquartile mean of scores (runs, 1) and its interval."""
    low, high = stratified_interval(scores)
    ends = (interquartile_mean(scores[:, 0]), low, high)
    middle, left, right = (f"{float(x):.1%}" if percent else _figure(float(x)) for x in ends)
    return f"{middle} [{left}, {right}]"


def _curve(results: Sequence[Mapping[str, Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps (P,) and smoothed returns (runs, P)."""
    returns = np.array([[value for _, value in result["curve"]] for result in results])
    width = min(SMOOTHED, returns.shape[1])
    window = np.ones(width) / width
    smooth = np.array([np.convolve(row, window, mode="valid") for row in returns])
    return np.array([step for step, _ in results[0]["curve"]], float)[width - 1 :], smooth


def _heading(plan: Plan) -> str:
    return f"""\
# Learning

Made by `python -m benchmarks.learning --seeds {plan.seeds}` (`make learning`) on
{time.strftime("%Y-%m-%d")}; no figure is written by hand.

**Everything here is simulated.** The models are those of [simulator.md](simulator.md), whose world is
finite: the best possible return, and that of every fixed mutator, is computed query by query (`python -m
benchmarks.optimum`). The second persona (`benchmarks/personas/`) hides another structure behind the same
topics.

- PPO with the default flags, {plan.steps:,} steps: at most as many target calls, for equal questions are one.
- Seeds: {plan.seeds}. {plan.agents} episodes of each held-out query, {plan.training_agents} of each training
  query.
- The trained policy takes its likeliest action. Every policy meets the same queries with the same seeds.
- A return is answered x intent kept, less 0.05 a step; an episode has at most 5 steps.

![The return during training](learning.svg)"""


def _mean(values: Sequence[tuple[float, float]]) -> tuple[float, float]:
    returns, success = np.mean(np.array(values), axis=0)
    return float(returns), float(success)


def _overall(by_query: Sequence[Sequence[float]]) -> float:
    """The mean over queries of the mean over episodes, as the computed values are."""
    return float(np.mean([np.mean(values) for values in by_query if values]))


def _figure(value: float) -> str:
    return f"{value:.3f}"
