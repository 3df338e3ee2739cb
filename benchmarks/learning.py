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
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.commands import read_json, read_lines, run_mutagym
from benchmarks.optimum import Game, Solution
from benchmarks.reporting import DOCS, Section, at_least, run
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from scorers.comparison import compare
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
    scores: NDArray[np.float64], *, confidence: float = 0.95, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Percentile interval of the interquartile mean over runs.

    Args:
        scores: (runs, ...); runs are resampled.
        confidence: how much of the resamples lies inside.
        seed: of the resampling.

    Returns:
        Its lower and upper end, each of shape (...).
    """
    stream = np.random.default_rng(seed)
    runs = len(scores)
    means = [interquartile_mean(scores[stream.integers(runs, size=runs)]) for _ in range(RESAMPLES)]
    outside = (1 - confidence) / 2
    low, high = np.quantile(np.array(means), (outside, 1 - outside), axis=0)
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
_CODE = {".py", ".toml", ".json", ".csv"}


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
    """Check that the runs that are there are of this code and this plan; write both down where there is none.

    Raises:
        SystemExit: they are not.
    """
    file, wanted = plan.work / "made_of.json", asdict(plan) | {"code": _code(), "work": str(plan.work)}
    wanted.pop("seeds")  # more seeds may be added
    if not file.exists() and not list(plan.work.glob("*/config.toml")):
        plan.work.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
    elif not file.exists() or read_json(file) != wanted:
        raise SystemExit(f"the runs in {plan.work} were made by other code or another plan: move them away")


def _code() -> str:
    """A digest of all code and data of the project, its tests left out."""
    root = Path(__file__).resolve().parents[1]
    packages = [path.parent for path in root.glob("*/__init__.py") if path.parent.name != "tests"]
    files = [path for package in packages for path in package.rglob("*") if path.suffix in _CODE]
    return blake2b(b"".join(sorted(path.read_bytes() for path in files)), digest_size=16).hexdigest()


def measure(plan: Plan, world: World, seed: int) -> dict[str, Any]:
    """Train, evaluate on the held-out queries beside every baseline, and on the training queries alone.

    Returns:
        The world's name, the seed, `curve` (steps and returns), and for both sides the queries and each
        team's returns and successes, (queries, agents) nested lists.
    """
    folder = plan.work / f"{world.name}-{seed}"
    flags: dict[str, object] = {**world.flags, "--seed": seed}
    _finish("train", folder / "summary.json", {**flags, "--num-env-steps": plan.steps}, world, plan)
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
        _finish("eval", file, evaluation, world, plan, *more)
        results[split] = _by_team(read_json(file))
    rows = read_lines(folder / "metrics.jsonl")
    points = [(row["step"], row["rollout/return"]) for row in rows if "rollout/return" in row]
    return {"world": world.name, "seed": seed, "curve": points, **results}


def solve(world: World, queries: Sequence[str]) -> list[Solution]:
    """What the best, the random and every fixed policy are worth on these queries."""
    game = Game(persona=load_persona(world.persona), mutators=load_mutators(DEFAULT_MUTATORS))
    return [game.solve(query) for query in queries]


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


def _finish(
    command: str, result: Path, flags: Mapping[str, object], world: World, plan: Plan, *more: str
) -> None:
    """Run a command that ends with the file `result`, or resume it; nothing where it has ended already.

    Raises:
        subprocess.CalledProcessError: the command failed; its message stands on stderr.
    """
    if result.exists() and read_json(result).get("stopped") is None:
        return
    folder = result.parent
    where = "--resume" if (folder / "config.toml").exists() else "--run-dir"
    print(command, folder.name, "...", file=sys.stderr, flush=True)
    run_mutagym(command, {**flags, "--cache": plan.work / f"cache-{world.name}", where: folder}, *more)


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


def report(results: Sequence[Mapping[str, Any]], figure: Path) -> Iterator[Section]:
    """The sections of all worlds; the curves are drawn into `figure`."""
    curves, levels = {}, {}
    for world in WORLDS:
        rows = [each for each in results if each["world"] == world.name]
        held, own = (ceiling(world, rows[0][side]["queries"]) for side in ("held-out", "train"))
        yield _seeds(world, rows, held, own)
        yield _policies(world, rows, held)
        curves[world.name] = _curve(rows)
        levels[world.name] = {
            "optimum": own.best[0],
            f"best fixed ({own.name})": own.best_fixed[0],
            "random": own.random[0],
        }
    draw_curves(figure, curves, levels)


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
            "Interquartile means over the seeds with their 95 % bootstrap intervals. Baselines "
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
        np.array([_overall(result["held-out"]["teams"][name][key]) for result in results])
        for key in ("return", "success")
    )
    return {
        "policy": name,
        "return": _with_interval(returns),
        "success": _with_interval(success, percent=True),
        "share": held.share(float(interquartile_mean(returns))),
    }


def _with_interval(scores: NDArray[np.float64], *, percent: bool = False) -> str:
    """The interquartile mean of scores (runs,) and its interval."""
    low, high = bootstrap_interval(scores)
    ends = (interquartile_mean(scores), low, high)
    middle, left, right = (f"{float(x):.1%}" if percent else _figure(float(x)) for x in ends)
    return f"{middle} [{left}, {right}]"


def _curve(results: Sequence[Mapping[str, Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps (P,) and smoothed returns (runs, P)."""
    returns = np.array([[value for _, value in result["curve"]] for result in results])
    width = min(SMOOTHED, returns.shape[1])
    window = np.ones(width) / width
    smooth = np.array([np.convolve(row, window, mode="valid") for row in returns])
    return np.array([step for step, _ in results[0]["curve"]], float)[width - 1 :], smooth


def _mean(values: Sequence[tuple[float, float]]) -> tuple[float, float]:
    returns, success = np.mean(np.array(values), axis=0)
    return float(returns), float(success)


def _overall(by_query: Sequence[Sequence[float]]) -> float:
    """The mean over queries of the mean over episodes, as the computed values are."""
    return float(np.mean([np.mean(values) for values in by_query if values]))


def _figure(value: float) -> str:
    return f"{value:.3f}"


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
