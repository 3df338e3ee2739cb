"""How much is learned from how many target calls, by PPO, bandits and `auto`, and does it beat the baselines?

    make learning                                # or python -m benchmarks.learning --write: several hours
    python -m benchmarks.learning --quick        # small, to try it out: figures of no meaning

Everything goes through the commands that a user has, `mutagym train` and then `mutagym eval`, on the embedded
simulator: a run is trained to the first number of calls, its policy is put aside, and `--resume` takes it to
the next, which is the same run as one that goes there at once. Runs are kept under runs/learning: one that is
there already, of the same code, is not made again.

The curves are drawn into docs/learning.svg. The interquartile mean over training runs and its bootstrap
interval are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice" (arXiv 2108.13264).
"""

from __future__ import annotations

import json
import sys
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
from simulator.personas.persona_file import load_persona
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


def draw_curves(
    path: Path, curves: Mapping[str, Mapping[str, tuple[Sequence[int], NDArray[np.float64]]]]
) -> None:
    """Draw shares of the way over target calls into an SVG file: one panel a world, one line an algorithm.

    Args:
        path: the file.
        curves: by world and algorithm the steps (P,) and the shares (runs, P).
    """
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "mutagym", "svg.fonttype": "none"}  # the same figure, the same file
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(curves), 3.4), layout="constrained")
    for axes, (world, of_world) in zip(
        np.atleast_1d(figure.subplots(1, len(curves), sharey=True)), curves.items(), strict=True
    ):
        for algorithm, (steps, shares) in of_world.items():
            low, high = bootstrap_interval(shares)
            axes.fill_between(steps, low, high, alpha=0.25, linewidth=0)
            axes.plot(steps, interquartile_mean(shares), marker=".", label=algorithm)
        axes.axhline(0, linestyle=":", color="0.4", linewidth=1)
        axes.set(title=world, xscale="log", xlabel="target calls", ylabel="share of the way, held out")
        axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, metadata={"Date": None})


PERSONAS = Path(__file__).parent / "personas"
FITTED = ("best_fixed", "ucb1", "epsilon_greedy", "exp3")
"""Baselines that are fitted on as many target calls as the last trainings."""
UNFITTED = ("noop", "random", "round_robin")


@dataclass(frozen=True, kw_only=True)
class World:
    """A persona of the simulator."""

    name: str
    persona: str | None
    """Its file; None is the shipped one."""

    @property
    def flags(self) -> dict[str, object]:
        """How a command is pointed at it."""
        server: dict[str, object] = {"--ollama-host": "embedded", "--slots": 16, "--time-scale": 0}
        return server if self.persona is None else {**server, "--persona": self.persona}


WORLDS = (
    World(name="cautious", persona=None),
    World(name="wary", persona=str(PERSONAS / "wary.toml")),
    World(name="drawn", persona=str(PERSONAS / "drawn.toml")),
)
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


def measure(plan: Plan, world: World, seed: int) -> dict[str, Any]:
    """Train with every algorithm to every budget, and evaluate all these policies beside the baselines.

    Returns:
        The world's name, the seed, and for both sides the queries and each team's returns and successes,
        (queries, agents) nested lists; a trained policy is called by its algorithm and budget.
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
    named = [f"--policy={each}" for each in (*policies, *FITTED, *UNFITTED)]
    last = max(plan.budgets)
    held_out = {**flags, "--split": "held-out", "--agents": plan.agents, "--fit-calls": last}
    own = {**flags, "--split": "train", "--agents": plan.training_agents, "--baselines": ""}
    results: dict[str, Any] = {}
    for evaluation, more in ((held_out, named), (own, [f"--policy={work / called('ppo', last)}"])):
        split = str(evaluation["--split"])
        file = work / split / "results.json"
        finish("eval", file, evaluation, *more)
        results[split] = _by_team(read_json(file))
    return {"world": world.name, "seed": seed, **results}


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
    queries = [each["query"] for each in results["episodes"] if each["team"] == 0]
    teams: dict[str, dict[str, list[list[float]]]] = {name: {"return": [], "success": []} for name in names}
    for episode in results["episodes"]:
        scored = [agent for agent in episode["agents"] if agent["status"] == "scored"]
        for key, values in teams[names[episode["team"]]].items():
            values.append([float(agent[key]) for agent in scored])
    return {"queries": queries, "teams": teams}


BEATEN = ("best_fixed", "ucb1", "random", "linucb", "thompson")
"""What PPO has to beat on the held-out queries, in each seed; a bandit that looks at the query among it."""
SHARE_TRAIN, SHARE_HELD_OUT, SHARE_EACH = 0.95, 0.80, 0.70
AUTO_LEAST = {500: 0.60, 1_000: 0.70, 3_000: 0.80}
"""The share of the way that `auto` has to have come at a budget, in the worlds that it was tuned in."""
AUTO_UNDER = 0.02
"""By how much `auto` may be under the better of its parts, LinUCB and PPO."""


def report(
    plan: Plan,
    results: Sequence[Mapping[str, Any]],
    alone: Mapping[str, Mapping[str, Any]],
    figure: Path,
) -> Iterator[Section]:
    """The sections of all worlds; the curves are drawn into `figure`.

    Args:
        plan: what was run.
        results: of every world and seed, as `measure` returns it.
        alone: by world, as `play_alone` returns it.
        figure: a file.
    """
    curves = {}
    for world in WORLDS:
        runs = [each for each in results if each["world"] == world.name]
        held_out, train = (
            solve(world, runs[0][split]["queries"]) | {"best_fixed": alone[world.name][split]}
            for split in ("held-out", "train")
        )
        curves[world.name] = shares_by_budget(plan, runs, held_out)
        yield _curve_section(world, curves[world.name], len(runs))
        yield _seeds(plan, world, runs, held_out, train)
        yield _policies(plan, world, runs, held_out)
    draw_curves(
        figure,
        {
            world: {
                algorithm: (list(of_it), np.stack(list(of_it.values()), axis=1))
                for algorithm, of_it in of_world.items()
            }
            for world, of_world in curves.items()
        },
    )


def shares_by_budget(
    plan: Plan, runs: Sequence[Mapping[str, Any]], held_out: Mapping[str, Any]
) -> dict[str, dict[int, NDArray[np.float64]]]:
    """By algorithm and budget the shares of the way (runs,) on the held-out queries."""
    return {
        algorithm: {
            budget: np.array(
                [
                    _share(_overall(run["held-out"]["teams"][called(algorithm, budget)]["return"]), held_out)
                    for run in runs
                ]
            )
            for budget in plan.steps(algorithm)
        }
        for algorithm in ALGORITHMS
    }


def _curve_section(
    world: World, curve: Mapping[str, Mapping[int, NDArray[np.float64]]], seeds: int
) -> Section:
    budgets = sorted({budget for of_it in curve.values() for budget in of_it})
    means = {
        name: {at: float(interquartile_mean(of_it[at])) for at in of_it} for name, of_it in curve.items()
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
                max(means[part][at] for part in ("linucb", "ppo") if at in means[part]) - means["auto"][at],
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
            "under the bandits."
        ),
        rows=[
            {"algorithm": name}
            | {f"{at:,}": _with_interval(of_it[at], ".2f") if at in of_it else "-" for at in budgets}
            for name, of_it in curve.items()
        ],
        checks=checks,
    )


def solve(world: World, queries: Sequence[str]) -> dict[str, Any]:
    """What the best, the random and every fixed policy are worth on these queries, by `summarise`."""
    game = Game(persona=load_persona(world.persona), mutators=load_mutators(DEFAULT_MUTATORS))
    return summarise([game.solve(query) for query in queries])


def _compared_with(solved: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    """What is compared with: the returns and successes of these policies."""
    best_fixed = solved["best_fixed"]
    return {
        "optimum, computed": solved["best"],
        f"best fixed with hindsight ({best_fixed['mutator']})": best_fixed,
        "random, computed": solved["random"],
    }


def _share(value: float, solved: Mapping[str, Any]) -> float:
    """How far a return is on the way from the best fixed mutator (0) to the optimum (1)."""
    best, best_fixed = solved["best"]["return"], solved["best_fixed"]["return"]
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
    teams = {name: called(name, max(plan.budgets)) if name in ALGORITHMS else name for name in BEATEN}
    gains = {
        name: [_gain(run["held-out"]["teams"], ppo, team) for run in runs] for name, team in teams.items()
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
    rows = [_policy_row(name, runs, held_out) for name in (*last, *FITTED, *UNFITTED)]
    rows += [
        {
            "policy": name,
            "return": f"{value['return']:.3f}",
            "success": f"{value['success']:.1%}",
        }
        for name, value in _compared_with(held_out).items()
    ]
    return Section(
        title=f"{world.name}: every policy on the held-out queries",
        about=(
            "Interquartile means over the seeds with their 95 % bootstrap intervals. What is trained or "
            f"fitted had {max(plan.budgets):,} target calls on the training queries."
        ),
        rows=rows,
    )


def _policy_row(name: str, runs: Sequence[Mapping[str, Any]], held_out: Mapping[str, Any]) -> dict[str, Any]:
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


def sections(*, quick: bool) -> Iterator[Section]:
    """Train and evaluate in every world and with every seed, and compare."""
    plan = QUICK if quick else Plan()
    check_made_of(plan)
    jobs = [(world, seed) for seed in range(plan.seeds) for world in WORLDS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        alone = dict(zip((w.name for w in WORLDS), pool.map(partial(play_alone, plan), WORLDS), strict=True))
        results = list(pool.map(lambda job: measure(plan, *job), jobs))
    (plan.work / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    yield from report(plan, results, alone, (plan.work if quick else DOCS) / "learning.svg")


if __name__ == "__main__":
    sys.exit(run("learning", "learning.md"))
