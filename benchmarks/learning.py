"""How much is learned from how many target calls, by PPO, the bandits and `auto`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from benchmarks.measured import PAGE
from benchmarks.optimum import optimum
from benchmarks.results import Check, Table, at_least, mutagym, run
from envs.queries import load_queries
from envs.query_sets import split_queries
from scorers.statistics import student_interval
from simulator.settings import WORLDS

ABOUT = """\
Simulated: `mutagym train` and then `mutagym eval` on the embedded simulator's two worlds, whose
best possible return is computed by dynamic programming (`benchmarks/optimum.py`). In `cautious`
constants were tuned; `drawn` was drawn by chance, and nothing was tuned in it. All flags of the
algorithms have their defaults. A training goes to the first number of target calls, is evaluated
on the held-out queries, and goes on with `--resume`. A step is one call to the target at most, as
equal questions are asked once; numbers are rounded up to whole rollouts. `auto` is LinUCB up to
3,008 steps and PPO from there, so one training gives the figures of both.

Queries are reworded at once (`--always-reword`), which is the game that the optimum is known of.
The *share of the way* is 0 for a policy that leaves every query as it is, and 1 for the optimum,
which no policy reaches: it knows nothing of rewordings that are turned down for their meaning.
Every policy plays the same queries with the same seeds; the intervals (95 %, Student's) are over
the seeds of training and evaluation."""
TRAINED = {
    "ppo": (500, 1000, 3000, 8000),
    "auto": (500, 1000, 3000, 8000),
    "thompson": (500, 1000, 3000),
}
"""The numbers of target calls that each is trained to."""
ALGORITHMS = {**TRAINED, "linucb": (500, 1000, 3000)}
BASELINES = ("noop", "random", "best_fixed", "cascade")
FIT_CALLS = 3000
"""Target calls that the last two are fitted with."""
SEEDS, JOBS = 5, 2
Returns = Mapping[tuple[str, int], float]
"""By algorithm and target calls the mean return on the held-out queries."""
Floats = NDArray[np.float64]


def measure(*, quick: bool) -> Iterator[Table | Check]:
    """Train with every seed in every world; the tables, and the picture in docs/."""
    seeds, scale, episodes = (2, 0.02, 4) if quick else (SEEDS, 1.0, None)
    worlds = WORLDS[:1] if quick else WORLDS
    _, held_out = split_queries(load_queries(None), held_out=0.3, split_seed=0)
    jobs = product(worlds, range(seeds))
    played = Parallel(n_jobs=JOBS, verbose=10)(
        delayed(train)(world, seed, scale, episodes) for world, seed in jobs
    )
    shares: dict[str, dict[tuple[str, int], Floats]] = {}
    for index, world in enumerate(worlds):
        bounds = optimum(world, [query.text for query in held_out])
        span = bounds["optimum"] - bounds["noop"]
        of_world = played[index * seeds : (index + 1) * seeds]
        shares[world] = {
            key: (np.array([each[key] for each in of_world]) - bounds["noop"]) / span
            for key in of_world[0]
        }
        yield table(world, shares[world], bounds)
        yield from checks(world, shares[world])
    if not quick:
        draw(PAGE.with_name("learning.svg"), shares)


def train(world: str, seed: int, scale: float, episodes: int | None) -> Returns:
    """Train every algorithm to each of its numbers of calls, and evaluate it and the baselines."""
    common: dict[str, Any] = {"ollama_host": "embedded", "slots": 16, "time_scale": 0}
    common |= {"world": world, "seed": seed, "always_reword": True}
    found = {}
    with TemporaryDirectory() as folder:

        def evaluate(policies: Sequence[object]) -> list[float]:
            options: dict[str, Any] = {**common, "policy": list(policies), "baselines": ""}
            options |= {
                "cache": Path(folder) / "cache",
                "fit_calls": max(100, round(FIT_CALLS * scale)),
            }
            if episodes:
                options["episodes"] = episodes
            return [rate["return"]["mean"] for rate in mutagym("eval", **options)["rates"]]

        for algorithm, budgets in TRAINED.items():
            run_dir = Path(folder) / algorithm
            for budget in budgets:
                options = common | {"num_env_steps": round(budget * scale)}
                if run_dir.exists():
                    mutagym("train", **options, resume=run_dir)
                else:
                    mutagym("train", **options, algorithm=algorithm, run_dir=run_dir, kept=0)
                (found[algorithm, budget],) = evaluate([run_dir])
        for name, value in zip(BASELINES, evaluate(BASELINES), strict=True):
            found[name, 0] = value
    return found | {("linucb", budget): found["auto", budget] for budget in ALGORITHMS["linucb"]}


def interval(shares: Floats) -> tuple[float, float, float]:
    """The mean over seeds and its ends, by Student's t."""
    return float(shares.mean()), *student_interval([shares[None]])


def table(
    world: str, shares: Mapping[tuple[str, int], Floats], bounds: Mapping[str, float]
) -> Table:
    """A row for each policy, a column for each number of target calls."""
    text = {key: "{:.2f} [{:.2f}, {:.2f}]".format(*interval(each)) for key, each in shares.items()}
    rows = [
        {"policy": algorithm} | {f"{n:,}": text[algorithm, n] for n in budgets}
        for algorithm, budgets in ALGORITHMS.items()
    ]
    fitted = f"{FIT_CALLS:,}"
    rows += [
        {"policy": name, (fitted if name in BASELINES[2:] else "none"): text[name, 0]}
        for name in BASELINES
    ]
    return Table(
        title=f"Share of the way by target calls: {world}",
        about=(
            f"Held-out queries, {len(next(iter(shares.values())))} seeds. The return is "
            f"{bounds['noop']:.3f} for `noop` and {bounds['optimum']:.3f} for the optimum."
            "\n\n![The share of the way by target calls, in both worlds](learning.svg)"
        ),
        rows=rows,
    )


def checks(world: str, shares: Mapping[tuple[str, int], Floats]) -> Iterator[Check]:
    """What learning has to reach."""
    for algorithm in ("auto", "linucb"):
        gain = shares[algorithm, 1000] - shares["best_fixed", 0]
        what = f"{world}: {algorithm} after 1,000 calls less best_fixed, lower end by seed"
        yield at_least(what, 0.0, interval(gain)[1])
    gain = shares["ppo", 8000] - shares["best_fixed", 0]
    yield at_least(
        f"{world}: PPO after 8,000 calls less best_fixed, likewise", 0, interval(gain)[1]
    )


def draw(path: Path, shares: Mapping[str, Mapping[tuple[str, int], Floats]]) -> None:
    """Draw shares of the way over target calls: a panel a world, a line an algorithm."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "mutagym", "svg.fonttype": "none"}  # equal figure, equal file
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (world, of_world) in zip(
        figure.subplots(1, len(shares), sharey=True), shares.items(), strict=True
    ):
        for algorithm, budgets in ALGORITHMS.items():
            mean, low, high = zip(*(interval(of_world[algorithm, n]) for n in budgets), strict=True)
            axes.fill_between(budgets, low, high, alpha=0.2, linewidth=0)
            axes.plot(budgets, mean, marker=".", label=algorithm)
        best_fixed = float(of_world["best_fixed", 0].mean())
        axes.axhline(best_fixed, linestyle=":", color="0.4", label="best_fixed")
        axes.set(xscale="log", xlabel="target calls", title=world)
    figure.axes[0].set_ylabel("share of the way, held out")
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(run("learning", ABOUT, measure))
