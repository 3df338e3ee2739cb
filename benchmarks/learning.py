"""How much is learned from how many target calls, by PPO, bandits and `auto`, and does it beat the baselines?

    make learning                                # or python -m benchmarks.learning --write: some hours
    python -m benchmarks.learning --world drawn  # one of the worlds: an hour
    python -m benchmarks.learning --quick        # small, to try it out: figures of no meaning

Everything goes through the commands that a user has, `mutagym train` and then `mutagym eval`, on the embedded
simulator: a run is trained to the first number of calls, its policy is put aside, and `--resume` takes it to
the next, which is the same run as one that goes there at once. Runs are kept under runs/learning: one that is
there already, of the same code, is not made again. A world's sections are written as soon as it is done.

The curves are drawn into docs/learning-WORLD.svg. The interquartile mean over training runs and its bootstrap
interval are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice" (arXiv 2108.13264).
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.commands import check_runs_of, finish, read_json, train_in_stages
from benchmarks.optimum import Game, summarise
from benchmarks.reporting import DOCS, Section, at_least, at_most, run
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from scorers.comparison import Comparison, compare
from simulator.settings import WORLDS as NAMES
from simulator.world import load_world
from train.config import TrainConfig

RESAMPLES = 2000
_CUT = 0.25
"""The share of runs left out at either end."""


def interquartile_mean(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the middle half along the first axis; scores (N, ...), result (...).

    With N not a multiple of four the runs at the cuts count by the part of them that is inside, so that no
    run is dropped whole for a rounding.
    """
    ordered = np.sort(scores, axis=0)
    count = len(ordered)
    inside = np.clip(np.arange(1, count + 1), count * _CUT, count * (1 - _CUT))
    weights = np.diff(inside, prepend=count * _CUT)
    return np.tensordot(weights / weights.sum(), ordered, axes=1)


def bootstrap_interval(
    scores: NDArray[np.float64], *, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """95 % percentile interval of the interquartile mean over runs.

    Args:
        scores: (runs, ...); runs are resampled.
        seed: of the resampling.

    Returns:
        Its lower and upper end, each of shape (...).
    """
    stream = np.random.default_rng(seed)
    runs = len(scores)
    means = [interquartile_mean(scores[stream.integers(runs, size=runs)]) for _ in range(RESAMPLES)]
    low, high = np.quantile(np.array(means), (0.025, 0.975), axis=0)
    return low, high


def draw_curves(path: Path, curves: Mapping[str, Mapping[int, NDArray[np.float64]]]) -> None:
    """Draw shares of the way over target calls into an SVG file, a line an algorithm.

    Args:
        path: the file.
        curves: by algorithm and budget the shares (runs,).
    """
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {
        "svg.hashsalt": "mutagym",
        "svg.fonttype": "none",
    }  # the same figure, the same file
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    for algorithm, by_budget in curves.items():
        shares = np.stack(list(by_budget.values()), axis=1)
        low, high = bootstrap_interval(shares)
        axes.fill_between(list(by_budget), low, high, alpha=0.25, linewidth=0)
        axes.plot(list(by_budget), interquartile_mean(shares), marker=".", label=algorithm)
    axes.axhline(0, linestyle=":", color="0.4", linewidth=1)
    axes.set(xscale="log", xlabel="target calls", ylabel="share of the way, held out")
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, metadata={"Date": None})


BASELINES = ("noop", "random", "round_robin")
"""What is played beside the trained policies and the best fixed mutator."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A world of the simulator."""

    name: str

    @property
    def flags(self) -> dict[str, object]:
        """How a command is pointed at it."""
        return {"--ollama-host": "embedded", "--slots": 16, "--time-scale": 0, "--world": self.name}


WORLDS = tuple(World(name=name) for name in NAMES)
UNTUNED = "drawn"
"""The world that nothing was tuned in; it was drawn by chance before the bandits were written."""
ALGORITHMS = ("ppo", "linucb", "thompson", "auto")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is run."""

    budgets: tuple[int, ...] = (250, 500, 1_000, 3_000, 10_000, 29_696)
    """Steps of a training, rounded up to whole rollouts: as many target calls at most, for equal questions
    are one call."""
    seeds: int = 5
    agents: int = 3
    """Episodes of each held-out query."""
    training_agents: int = 2
    """Episodes of each training query, which PPO alone plays."""
    episodes: int | None = None
    """Queries of each side; None: all."""
    work: Path = Path("runs/learning")

    def steps(self, algorithm: str) -> dict[int, int]:
        """By budget the steps that are taken; what a rollout of PPO goes far beyond is left out."""
        config = TrainConfig(algorithm=cast("Any", algorithm))
        taken = {each: replace(config, num_env_steps=each).total_steps for each in self.budgets}
        return {budget: steps for budget, steps in taken.items() if steps <= FARTHEST * budget}


QUICK = Plan(budgets=(500, 1024), seeds=1, agents=2, episodes=8, work=Path("runs/learning-quick"))
FARTHEST = 1.1
"""So many times a budget may be taken, when it is rounded up to whole rollouts."""
AT_ONCE = 2
"""Runs side by side: on two cores more would only wait for each other."""


def check_made_of(plan: Plan) -> None:
    """Check that the runs that are there are of this code and this plan, but for more seeds.

    Raises:
        SystemExit: they are not.
    """
    made_of = asdict(plan) | {"work": str(plan.work)}
    del made_of["seeds"]
    check_runs_of(plan.work, made_of)


def measure(plan: Plan, world: World, best_fixed: str, seed: int) -> dict[str, Any]:
    """Train with every algorithm to every budget, and evaluate all these policies beside the baselines.

    Args:
        plan: how much is run.
        world: where.
        best_fixed: the mutator that `play_alone` found to be the best for the held-out queries.
        seed: of the trainings and the evaluation.

    Returns:
        The seed, and for both sides the queries and each team's returns and successes, (queries, agents)
        nested lists; a trained policy is called by its algorithm and budget, that mutator `BEST_FIXED`.
    """
    work = plan.work / f"{world.name}-{seed}"
    cache = plan.work / f"cache-{world.name}-{seed}"
    flags: dict[str, object] = {**world.flags, "--seed": seed, "--cache": cache}
    policies = [
        policy
        for algorithm in ALGORITHMS
        for policy in train_in_stages(
            work / algorithm, plan.steps(algorithm), {**flags, "--algorithm": algorithm}
        )
    ]
    if plan.episodes is not None:
        flags["--episodes"] = plan.episodes
    named = [f"--policy={each}" for each in (*policies, f"fixed:{best_fixed}", *BASELINES)]
    last = max(plan.budgets)
    held_out = {**flags, "--split": "held-out", "--agents": plan.agents, "--baselines": ""}
    own = {**flags, "--split": "train", "--agents": plan.training_agents, "--baselines": ""}
    results: dict[str, Any] = {}
    for evaluation, more in ((held_out, named), (own, [f"--policy={work / called('ppo', last)}"])):
        split = str(evaluation["--split"])
        file = work / split / "results.json"
        finish("eval", file, evaluation, *more)
        results[split] = _by_team(read_json(file))
    teams = results["held-out"]["teams"]
    teams[BEST_FIXED] = teams.pop(f"fixed:{best_fixed}")
    return {"seed": seed, **results}


def play_alone(plan: Plan, world: World) -> dict[str, dict[str, Any]]:
    """Play every mutator alone, for both sides of the split.

    Returns:
        By split the mutator with the highest mean return, with that and its success: where 0 lies. It is
        played and not computed, for what is computed knows nothing of rewordings that are thrown away.
    """
    best: dict[str, dict[str, Any]] = {}
    for split, agents in (("held-out", plan.agents), ("train", plan.training_agents)):
        file = plan.work / f"{world.name}-alone" / split / "results.json"
        flags = {**world.flags, "--split": split, "--agents": agents, "--baselines": ""}
        if plan.episodes is not None:
            flags["--episodes"] = plan.episodes
        finish("eval", file, flags, *(f"--policy=fixed:{name}" for name in DEFAULT_MUTATORS))
        teams = _by_team(read_json(file))["teams"]
        means = [
            {"mutator": name.removeprefix("fixed:"), **{key: _overall(team[key]) for key in team}}
            for name, team in teams.items()
        ]
        best[split] = max(means, key=lambda each: each["return"])
    return best


def called(algorithm: str, budget: int) -> str:
    """What the policy of an algorithm at a budget is called."""
    return f"{algorithm}-{budget}"


def _by_team(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns and successes of each team, by query."""
    names = [Path(team["name"]).name for team in results["teams"]]
    queries = {row["episode"]: row["query"] for row in results["episodes"]}
    teams: dict[str, dict[str, list[list[float]]]] = {
        name: {key: [[] for _ in queries] for key in ("return", "success")} for name in names
    }
    for row in results["episodes"]:
        if row["status"] == "scored":
            for key, values in teams[names[row["team"]]].items():
                values[row["episode"]].append(float(row[key]))
    return {"queries": list(queries.values()), "teams": teams}


BEST_FIXED = "best fixed"
BEATEN = (BEST_FIXED, "random", "linucb", "thompson")
"""What PPO has to beat on the held-out queries, in each seed; a bandit that looks at the query among it."""
SHARE_TRAIN, SHARE_HELD_OUT, SHARE_EACH = 0.95, 0.80, 0.70
AUTO_LEAST = {500: 0.60, 1_000: 0.70, 3_000: 0.80}
"""The share of the way that `auto` has to have come at a budget, in the worlds that it was tuned in."""
AUTO_UNDER = 0.02
"""By how much `auto` may be under the better of its parts, LinUCB and PPO."""


def report(
    plan: Plan,
    world: World,
    runs: Sequence[Mapping[str, Any]],
    alone: Mapping[str, Mapping[str, Any]],
    figure: Path,
) -> Iterator[Section]:
    """The sections of a world; its curves are drawn into `figure`.

    Args:
        plan: what was run.
        world: where.
        runs: of every seed, as `measure` returns it.
        alone: as `play_alone` returns it.
        figure: a file.
    """
    held_out, train = (
        solve(world, runs[0][split]["queries"]) | {BEST_FIXED: alone[split]}
        for split in ("held-out", "train")
    )
    curves = shares_by_budget(plan, runs, held_out)
    draw_curves(figure, curves)
    yield _curve_section(world, curves, len(runs), figure.name)
    yield _seeds(plan, world, runs, held_out, train)
    yield _policies(plan, world, runs, held_out)


def shares_by_budget(
    plan: Plan, runs: Sequence[Mapping[str, Any]], held_out: Mapping[str, Any]
) -> dict[str, dict[int, NDArray[np.float64]]]:
    """By algorithm and budget the shares of the way (runs,) on the held-out queries."""
    return {
        algorithm: {
            budget: np.array(
                [
                    _share(
                        _overall(run["held-out"]["teams"][called(algorithm, budget)]["return"]),
                        held_out,
                    )
                    for run in runs
                ]
            )
            for budget in plan.steps(algorithm)
        }
        for algorithm in ALGORITHMS
    }


def _curve_section(
    world: World, curve: Mapping[str, Mapping[int, NDArray[np.float64]]], seeds: int, figure: str
) -> Section:
    budgets = sorted({budget for of_it in curve.values() for budget in of_it})
    means = {
        name: {at: float(interquartile_mean(of_it[at])) for at in of_it}
        for name, of_it in curve.items()
    }
    checks = []
    if world.name != UNTUNED:
        checks += [
            at_least(f"auto after {at:,} calls", least, means["auto"][at])
            for at, least in AUTO_LEAST.items()
            if at in means["auto"]
        ]
        checks += [
            at_most(
                f"auto under the better of its parts after {at:,} calls",
                AUTO_UNDER,
                max(means[part][at] for part in ("linucb", "ppo") if at in means[part])
                - means["auto"][at],
            )
            for at in means["auto"]
        ]
    tuned = "nothing was tuned in it" if world.name == UNTUNED else "constants were tuned in it"
    return Section(
        title=f"{world.name}: share of the way by target calls",
        about=(
            f"{seeds} seeds, held-out queries; {tuned}. Interquartile means with their 95 % bootstrap "
            "intervals over the seeds. 0 is the best fixed mutator (with hindsight, on these queries), 1 "
            "the computed optimum. Calls are rounded up to whole rollouts: of 512 steps under PPO, of 64 "
            f"under the bandits.\n\n![The share of the way in {world.name}, by target calls]({figure})"
        ),
        rows=[
            {"algorithm": name}
            | {
                f"{at:,}": _with_interval(of_it[at], ".2f") if at in of_it else "-"
                for at in budgets
            }
            for name, of_it in curve.items()
        ],
        checks=checks,
    )


def solve(world: World, queries: Sequence[str]) -> dict[str, Any]:
    """What the best, the random and every fixed policy are worth on these queries, by `summarise`."""
    game = Game(world=load_world(world.name), mutators=load_mutators(DEFAULT_MUTATORS))
    return summarise([game.solve(query) for query in queries])


def _share(value: float, solved: Mapping[str, Any]) -> float:
    """How far a return is on the way from the best fixed mutator (0) to the optimum (1)."""
    best, best_fixed = solved["best"]["return"], solved[BEST_FIXED]["return"]
    return float((value - best_fixed) / (best - best_fixed))


def _seeds(
    plan: Plan,
    world: World,
    runs: Sequence[Mapping[str, Any]],
    held_out: Mapping[str, Any],
    train: Mapping[str, Any],
) -> Section:
    ppo = called("ppo", max(plan.budgets))
    trained = [_share(_overall(run["train"]["teams"][ppo]["return"]), train) for run in runs]
    held = [_share(_overall(run["held-out"]["teams"][ppo]["return"]), held_out) for run in runs]
    teams = {
        name: called(name, max(plan.budgets)) if name in ALGORITHMS else name for name in BEATEN
    }
    gains = {
        name: [_gain(run["held-out"]["teams"], ppo, team) for run in runs]
        for name, team in teams.items()
    }
    tuned = world.name != UNTUNED
    return Section(
        title=f"{world.name}: PPO by seed",
        about=(
            f"{len(runs[0]['held-out']['queries'])} held-out queries, "
            f"{len(runs[0]['train']['queries'])} training queries. *Share*: how far PPO's mean return is "
            "on the way from the best fixed mutator to the computed optimum, on those queries. *Over*: by "
            "how much PPO's return on the held-out queries is higher, paired by query, with its interval."
        ),
        rows=[
            {
                "seed": run["seed"],
                "share, training": trained[place],
                "share, held out": held[place],
                **{
                    f"over {name}": f"{gain.difference:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
                    for name, gain in ((name, gains[name][place]) for name in BEATEN)
                },
            }
            for place, run in enumerate(runs)
        ],
        checks=[
            at_least("share on training queries, mean", SHARE_TRAIN, fmean(trained)),
            at_least("share on held-out queries, mean", SHARE_HELD_OUT, fmean(held)),
            at_least("share on held-out queries, least", SHARE_EACH, min(held)),
            *(
                at_least(
                    f"share of seeds whose interval over {name} is above 0",
                    1.0,
                    fmean(gain.low > 0 for gain in gains[name]),
                )
                for name in BEATEN
            ),
        ]
        if tuned
        else [],
    )


def _gain(teams: Mapping[str, Any], policy: str, name: str) -> Comparison:
    """By how much a policy's return is higher than a baseline's, paired by query."""
    return compare(teams[policy]["return"], teams[name]["return"])


def _policies(
    plan: Plan, world: World, runs: Sequence[Mapping[str, Any]], held_out: Mapping[str, Any]
) -> Section:
    last = [called(algorithm, max(plan.budgets)) for algorithm in ALGORITHMS]
    rows = [_policy_row(name, runs, held_out) for name in (*last, BEST_FIXED, *BASELINES)]
    rows += [
        {
            "policy": f"{name}, computed",
            "return": f"{held_out[solved]['return']:.3f}",
            "success": f"{held_out[solved]['success']:.1%}",
        }
        for name, solved in (
            ("optimum", "best"),
            ("best fixed", "best_fixed"),
            ("random", "random"),
        )
    ]
    return Section(
        title=f"{world.name}: every policy on the held-out queries",
        about=(
            "Interquartile means over the seeds with their 95 % bootstrap intervals. What is trained had "
            f"{max(plan.budgets):,} target calls on the training queries. The best fixed mutator, with "
            f"hindsight, is {held_out[BEST_FIXED]['mutator']}."
        ),
        rows=rows,
    )


def _policy_row(
    name: str, runs: Sequence[Mapping[str, Any]], held_out: Mapping[str, Any]
) -> dict[str, Any]:
    returns, success = (
        np.array([_overall(run["held-out"]["teams"][name][key]) for run in runs])
        for key in ("return", "success")
    )
    return {
        "policy": name,
        "return": _with_interval(returns, ".3f"),
        "success": _with_interval(success, ".1%"),
        "share of the way": _share(float(interquartile_mean(returns)), held_out),
    }


def _with_interval(scores: NDArray[np.float64], spec: str) -> str:
    """The interquartile mean of scores (runs,) and its interval, formatted by `spec`."""
    low, high = bootstrap_interval(scores)
    return f"{interquartile_mean(scores):{spec}} [{low:{spec}}, {high:{spec}}]"


def _overall(by_query: Sequence[Sequence[float]]) -> float:
    """The mean over queries of the mean over episodes, as the computed values are."""
    return fmean(fmean(values) for values in by_query if values)


def add_arguments(parser: ArgumentParser) -> None:
    """The flags of this benchmark."""
    names = [world.name for world in WORLDS]
    parser.add_argument(
        "--world", choices=names, action="append", help="only this one; may be repeated"
    )


def sections(*, quick: bool, world: Sequence[str] | None) -> Iterator[Section]:
    """World by world, train and evaluate with every seed, and compare."""
    plan = QUICK if quick else Plan()
    check_made_of(plan)
    for place in (each for each in WORLDS if world is None or each.name in world):
        alone = play_alone(plan, place)
        one_run = partial(measure, plan, place, alone["held-out"]["mutator"])
        with ThreadPoolExecutor(AT_ONCE) as pool:
            runs = list(pool.map(one_run, range(plan.seeds)))
        figure = (plan.work if quick else DOCS) / f"learning-{place.name}.svg"
        yield from report(plan, place, runs, alone, figure)


if __name__ == "__main__":
    sys.exit(run("learning", "learning.md"))
