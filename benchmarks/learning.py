"""Does training help? PPO and every baseline at the same number of target calls, into docs/learning.md.

    make learning                                       # or python -m benchmarks.learning: about an hour
    python -m benchmarks.learning --quick               # small, to stdout: figures of no meaning

Everything goes through the commands that a user has, `mutagym train` and then `mutagym eval`, on the embedded
simulator. Runs are kept under runs/learning: what is there already, of the same code, is not made again.

Figures of several training runs: the interquartile mean, its interval, and the curves.

After Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv
2108.13264): runs are resampled within each task, so that every resample holds as many runs of each.

The runs behind docs/learning.md: one training and its evaluations, for a persona and a seed.

docs/learning.md: what was learned beside what could be, from the results of `benchmarks.learning`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.optimum import Game, Solution
from benchmarks.reporting import Section, at_least
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


def stratified_interval(
    scores: NDArray[np.float64], *, confidence: float = 0.95, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Percentile interval of the interquartile mean over all runs of all tasks.

    Args:
        scores: (runs, tasks, ...); runs are resampled within each task.
        confidence: how much of the resamples lies inside.
        seed: of the resampling.

    Returns:
        Its lower and upper end, each of shape (...).
    """
    stream = np.random.default_rng(seed)
    runs, tasks, *rest = scores.shape
    means = []
    for _ in range(RESAMPLES):
        drawn = stream.integers(runs, size=(runs, tasks))
        sample = scores[drawn, np.arange(tasks)]
        means.append(interquartile_mean(sample.reshape(runs * tasks, *rest)))
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
        levels: by task the names and heights of the lines to compare with.
    """
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "mutagym", "svg.fonttype": "none"}  # the same figure, the same file
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(curves), 3.4), layout="constrained")
    for axes, (task, (steps, returns)) in zip(
        np.atleast_1d(figure.subplots(1, len(curves), sharey=True)), curves.items(), strict=True
    ):
        low, high = stratified_interval(returns[:, None])
        axes.fill_between(steps, low, high, alpha=0.3, linewidth=0)
        axes.plot(steps, interquartile_mean(returns), label="PPO (sampled, in training)")
        for style, (name, height) in zip(_styles(len(levels[task])), levels[task].items(), strict=True):
            axes.axhline(height, linestyle=style, color="0.4", linewidth=1)
            axes.annotate(name, (steps[-1], height), ha="right", va="bottom", fontsize=8)
        axes.set(title=task, xlabel="target calls", ylabel="return of an episode")
        axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def _styles(count: int) -> Sequence[str]:
    return [("--", ":", "-.")[place % 3] for place in range(count)]


PERSONAS = Path(__file__).parent / "personas"
FITTED = ("best_fixed", "ucb1", "epsilon_greedy", "exp3")
"""Baselines that are fitted on as many target calls as PPO is trained on."""
UNFITTED = ("noop", "random", "round_robin")
PACKAGES = (
    "benchmarks",
    "cli",
    "envs",
    "evaluation",
    "mutators",
    "ollama_utils",
    "records",
    "scorers",
    "search",
    "simulator",
    "train",
)
_CODE = {".py", ".toml", ".json", ".csv"}


@dataclass(frozen=True, kw_only=True)
class World:
    """A persona of the simulator."""

    name: str
    persona: str | None
    """Its file; None is the shipped one."""

    @property
    def flags(self) -> tuple[str, ...]:
        """How a command is told of it."""
        server = ("--ollama-host", "embedded", "--slots", "16", "--time-scale", "0")
        return server if self.persona is None else (*server, "--persona", self.persona)


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


def check_made_of(plan: Plan) -> None:
    """Check that the runs that are there are of this code and this plan; the first ones write it down.

    Raises:
        SystemExit: they are not.
    """
    file, asked = plan.work / "made_of.json", asdict(plan) | {"code": _code(), "work": str(plan.work)}
    asked.pop("seeds")  # more seeds may be added
    if not file.exists() and not list(plan.work.glob("*/config.toml")):
        plan.work.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asked, indent=1) + "\n", encoding="utf-8")
    elif not file.exists() or json.loads(file.read_text(encoding="utf-8")) != asked:
        raise SystemExit(f"the runs in {plan.work} were made by other code or another plan: move them away")


def _code() -> str:
    """A digest of all code and data of the project."""
    root = Path(__file__).resolve().parents[1]
    files = [path for package in PACKAGES for path in (root / package).rglob("*") if path.suffix in _CODE]
    return blake2b(b"".join(sorted(path.read_bytes() for path in files)), digest_size=16).hexdigest()


def measure(plan: Plan, world: World, seed: int) -> dict[str, Any]:
    """Train, evaluate on the held-out queries beside every baseline, and on the training queries alone.

    Returns:
        The world's name, the seed, `curve` (steps and returns), and for both sides the queries and each
        team's returns and successes, (queries, agents) nested lists.
    """
    run = plan.work / f"{world.name}-{seed}"
    _finish(
        run / "summary.json",
        ["train", *world.flags, "--num-env-steps", str(plan.steps), "--seed", str(seed)],
        world,
        plan,
    )
    fit = ("--fit-calls", str(plan.steps))
    teams = [flag for name in (*FITTED, *UNFITTED) for flag in ("-p", name)]
    held = _evaluation(plan, world, run, seed, "held-out", [*teams, *fit], plan.agents)
    own = _evaluation(plan, world, run, seed, "train", ["--baselines", ""], plan.training_agents)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    points = [
        (row["step"], row["rollout/return"]) for row in map(json.loads, lines) if "rollout/return" in row
    ]
    return {"world": world.name, "seed": seed, "curve": points, "held-out": held, "train": own}


def solve(world: World, queries: Sequence[str]) -> list[Solution]:
    """What the best, the random and every fixed policy are worth on these queries."""
    game = Game(persona=load_persona(world.persona), mutators=load_mutators(DEFAULT_MUTATORS))
    return [game.solve(query) for query in queries]


def _evaluation(
    plan: Plan, world: World, run: Path, seed: int, split: str, more: Sequence[str], agents: int
) -> dict[str, Any]:
    folder = run.with_name(f"{run.name}-{split}")
    few = () if plan.episodes is None else ("--episodes", str(plan.episodes))
    told = ("eval", "-p", str(run), *world.flags, "--split", split, "--agents", str(agents), *few, *more)
    _finish(folder / "results.json", [*told, "--seed", str(seed)], world, plan)
    return _by_team(json.loads((folder / "results.json").read_text(encoding="utf-8")))


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


def _finish(result: Path, arguments: Sequence[str], world: World, plan: Plan) -> None:
    """Run a command that ends with the file `result`, or go on with it; not where it has ended already.

    Raises:
        subprocess.CalledProcessError: the command failed; what it said stands on stderr.
    """
    if result.exists() and json.loads(result.read_text(encoding="utf-8")).get("stopped") is None:
        return
    folder, cache = result.parent, plan.work / f"cache-{world.name}"
    place = ("--resume" if (folder / "config.toml").exists() else "--run-dir", str(folder))
    command = (sys.executable, "-m", "cli.main", *arguments, "--cache", str(cache), *place)
    print("$", *command[2:], file=sys.stderr, flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own command


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


DOCS = Path(__file__).resolve().parents[1] / "docs"
QUICK = Plan(steps=512, seeds=1, agents=2, episodes=8, work=Path("runs/learning-quick"))
AT_ONCE = 2
"""Runs side by side: on two cores more would only wait for each other."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train, evaluate, and write the report; the exit status is 1 where a target is missed."""
    given = _parser().parse_args(argv)
    plan = QUICK if given.quick else Plan(seeds=given.seeds)
    check_made_of(plan)
    jobs = [(world, seed) for seed in range(plan.seeds) for world in WORLDS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda job: measure(plan, *job), jobs))
    (plan.work / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text, missed = report(plan, results, None if given.quick else DOCS / "learning.svg")
    if given.quick:
        sys.stdout.write(text)
        return 0
    (DOCS / "learning.md").write_text(text, encoding="utf-8")
    print(f"{len(missed)} targets missed", *missed, sep="\n  ", file=sys.stderr)
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="small and fast, to stdout, to try it out")
    parser.add_argument("--seeds", type=int, default=Plan.seeds, help="so many training runs a world")
    return parser


if __name__ == "__main__":
    sys.exit(main())
