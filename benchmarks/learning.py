"""Does training help? PPO and every baseline at the same number of target calls.

    make learning                                # or python -m benchmarks.learning --write: about an hour
    python -m benchmarks.learning --quick        # small, to try it out: figures of no meaning

Everything goes through the commands that a user has, `mutagym train` and then `mutagym eval`, on the embedded
simulator. Runs are kept under runs/learning: one that is there already, of the same code, is not made again.

The curves are drawn into docs/learning.svg. The interquartile mean over training runs and its bootstrap
interval are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice" (arXiv 2108.13264).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.commands import check_runs_of, finish, read_json, read_lines
from benchmarks.optimum import Game, summarise
from benchmarks.reporting import DOCS, Section, at_least, run
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from scorers.comparison import Comparison, compare
from simulator.personas.persona_file import load_persona

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
    path: Path,
    curves: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
    levels: Mapping[str, Mapping[str, float]],
) -> None:
    """Draw the return during training into an SVG file: one panel a task.

    Args:
        path: the file.
        curves: by task the steps (P,) and the returns (runs, P).
        levels: by task the names and heights of at most three lines to compare with.
    """
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "mutagym", "svg.fonttype": "none"}  # the same figure, the same file
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(curves), 3.4), layout="constrained")
    for axes, (task, (steps, returns)) in zip(
        np.atleast_1d(figure.subplots(1, len(curves), sharey=True)), curves.items(), strict=True
    ):
        low, high = bootstrap_interval(returns)
        axes.fill_between(steps, low, high, alpha=0.3, linewidth=0)
        axes.plot(steps, interquartile_mean(returns), label="PPO (sampled, in training)")
        for style, (name, height) in zip(("--", ":", "-."), levels[task].items(), strict=False):
            axes.axhline(height, linestyle=style, color="0.4", linewidth=1)
            axes.annotate(name, (steps[-1], height), ha="right", va="bottom", fontsize=8)
        axes.set(title=task, xlabel="target calls", ylabel="return of an episode")
        axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, metadata={"Date": None})


PERSONAS = Path(__file__).parent / "personas"
FITTED = ("best_fixed", "ucb1", "epsilon_greedy", "exp3")
"""Baselines that are fitted on as many target calls as PPO is trained on."""
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


WORLDS = (World(name="cautious", persona=None), World(name="wary", persona=str(PERSONAS / "wary.toml")))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is run."""

    steps: int = 29_696
    """Steps of a training run: as many target calls at most, for equal questions are one call."""
    seeds: int = 5
    agents: int = 10
    """Episodes of each held-out query."""
    training_agents: int = 4
    """Episodes of each training query, which PPO alone plays."""
    episodes: int | None = None
    """Queries of each side; None: all."""
    work: Path = Path("runs/learning")


QUICK = Plan(steps=512, seeds=1, agents=2, episodes=8, work=Path("runs/learning-quick"))
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
    """Train, evaluate on the held-out queries beside every baseline, and on the training queries alone.

    Returns:
        The world's name, the seed, `curve` (steps and returns), and for both sides the queries and each
        team's returns and successes, (queries, agents) nested lists.
    """
    folder = plan.work / f"{world.name}-{seed}"
    flags: dict[str, object] = {**world.flags, "--seed": seed, "--cache": plan.work / f"cache-{world.name}"}
    finish("train", folder / "summary.json", {**flags, "--num-env-steps": plan.steps})
    if plan.episodes is not None:
        flags["--episodes"] = plan.episodes
    flags["--policy"] = folder
    teams = [f"--policy={name}" for name in (*FITTED, *UNFITTED)]
    held_out = {**flags, "--split": "held-out", "--agents": plan.agents, "--fit-calls": plan.steps}
    own = {**flags, "--split": "train", "--agents": plan.training_agents, "--baselines": ""}
    results: dict[str, Any] = {}
    for evaluation, more in ((held_out, teams), (own, [])):
        split = str(evaluation["--split"])
        file = folder.with_name(f"{folder.name}-{split}") / "results.json"
        finish("eval", file, evaluation, *more)
        results[split] = _by_team(read_json(file))
    rows = read_lines(folder / "metrics.jsonl")
    points = [(row["step"], row["rollout/return"]) for row in rows if "rollout/return" in row]
    return {"world": world.name, "seed": seed, "curve": points, **results}


def _by_team(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns and successes of each team, by query; the trained policy is called PPO."""
    names = ["PPO" if team["trained_on"] else team["name"] for team in results["teams"]]
    queries = [each["query"] for each in results["episodes"] if each["team"] == 0]
    teams: dict[str, dict[str, list[list[float]]]] = {name: {"return": [], "success": []} for name in names}
    for episode in results["episodes"]:
        scored = [agent for agent in episode["agents"] if agent["status"] == "scored"]
        for key, values in teams[names[episode["team"]]].items():
            values.append([float(agent[key]) for agent in scored])
    return {"queries": queries, "teams": teams}


BEATEN = ("best_fixed", "ucb1", "random")
"""The baselines that PPO has to beat on the held-out queries, in each seed."""
SHARE_TRAIN, SHARE_HELD_OUT, SHARE_EACH = 0.95, 0.80, 0.70
SMOOTHED = 4
"""Rollouts that a point of a curve is the mean of."""


def report(results: Sequence[Mapping[str, Any]], figure: Path) -> Iterator[Section]:
    """The sections of all worlds; the curves are drawn into `figure`."""
    curves, levels = {}, {}
    for world in WORLDS:
        runs = [each for each in results if each["world"] == world.name]
        held_out, train = (solve(world, runs[0][split]["queries"]) for split in ("held-out", "train"))
        yield _seeds(world, runs, held_out, train)
        yield _policies(world, runs, held_out)
        curves[world.name] = _curve(runs)
        levels[world.name] = {name: value["return"] for name, value in _computed(train).items()}
    draw_curves(figure, curves, levels)


def solve(world: World, queries: Sequence[str]) -> dict[str, Any]:
    """What the best, the random and every fixed policy are worth on these queries, by `summarise`."""
    game = Game(persona=load_persona(world.persona), mutators=load_mutators(DEFAULT_MUTATORS))
    return summarise([game.solve(query) for query in queries])


def _computed(solved: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    """What is compared with: the returns and successes of the computed policies."""
    best_fixed = solved["best_fixed"]
    return {
        "optimum": solved["best"],
        f"best fixed ({best_fixed['mutator']})": best_fixed,
        "random": solved["random"],
    }


def _share(value: float, solved: Mapping[str, Any]) -> float:
    """How far a return is on the way from the best fixed mutator (0) to the optimum (1)."""
    best, best_fixed = solved["best"]["return"], solved["best_fixed"]["return"]
    return float((value - best_fixed) / (best - best_fixed))


def _seeds(
    world: World,
    runs: Sequence[Mapping[str, Any]],
    held_out: Mapping[str, Any],
    train: Mapping[str, Any],
) -> Section:
    trained = [_share(_overall(run["train"]["teams"]["PPO"]["return"]), train) for run in runs]
    held = [_share(_overall(run["held-out"]["teams"]["PPO"]["return"]), held_out) for run in runs]
    gains = {name: [_gain(run["held-out"]["teams"], name) for run in runs] for name in BEATEN}
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
        ],
    )


def _gain(teams: Mapping[str, Any], name: str) -> Comparison:
    """By how much PPO's return is higher than a baseline's, paired by query."""
    return compare(teams["PPO"]["return"], teams[name]["return"])


def _policies(world: World, runs: Sequence[Mapping[str, Any]], held_out: Mapping[str, Any]) -> Section:
    rows = [_policy_row(name, runs, held_out) for name in runs[0]["held-out"]["teams"]]
    rows += [
        {
            "policy": f"{name}, computed",
            "return": f"{value['return']:.3f}",
            "success": f"{value['success']:.1%}",
        }
        for name, value in _computed(held_out).items()
    ]
    return Section(
        title=f"{world.name}: every policy on the held-out queries",
        about=(
            "Interquartile means over the seeds with their 95 % bootstrap intervals. Baselines "
            "that are fitted had as many target calls on the training queries as PPO."
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


def _curve(runs: Sequence[Mapping[str, Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps (P,) and smoothed returns (runs, P)."""
    steps, returns = np.moveaxis(np.array([run["curve"] for run in runs], float), -1, 0)
    width = min(SMOOTHED, returns.shape[1])
    return steps[0, width - 1 :], np.lib.stride_tricks.sliding_window_view(returns, width, axis=1).mean(-1)


def _overall(by_query: Sequence[Sequence[float]]) -> float:
    """The mean over queries of the mean over episodes, as the computed values are."""
    return fmean(fmean(values) for values in by_query if values)


def sections(*, quick: bool) -> Iterator[Section]:
    """Train and evaluate in every world and with every seed, and compare."""
    plan = QUICK if quick else Plan()
    check_made_of(plan)
    jobs = [(world, seed) for seed in range(plan.seeds) for world in WORLDS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda job: measure(plan, *job), jobs))
    (plan.work / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    yield from report(results, (plan.work if quick else DOCS) / "learning.svg")


if __name__ == "__main__":
    sys.exit(run("learning", "learning.md"))
