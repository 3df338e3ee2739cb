"""How much faster searches are with many calls in flight, and how well they choose."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from itertools import product
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from benchmarks.results import MODEL, Check, Table, at_least, mutagym, run
from scorers.statistics import exact_interval, student_interval
from search import make_selector
from search.select import SELECTORS

ABOUT = """\
Simulated: the embedded simulator and its bundled task, but for the selectors, which choose between
arms whose results are drawn. What is said of a search's speed holds for any server with as many
slots; what is said of how well it chooses holds for these arms and this task."""
SLOTS = 16
SEARCHES: Mapping[str, Mapping[str, Any]] = {
    "evolve": {"max_generations": 4},
    "select": {"mutators": "noop,shorten,expand,simplify,formalize", "selector": "brute_force"},
    "optimize": {"steps": 100},
}
"""What is timed, and its flags."""
MEANS = (0.80, 0.72, 0.65, 0.60, 0.55, 0.50, 0.45, 0.40, 0.30)
"""How likely each arm is to be right."""
CHOICES = {"model": (0, 1, 2), "prompt": (0, 1, 2)}
"""The arms in the order of their means."""
DATAPOINTS, DELTA, EPSILON = 200, 0.05, 0.01
WORLDS = {"independent": 0.0, "correlated": 0.5}
"""The share of the datapoint's difficulty in what decides whether an arm is right."""


def measure(*, quick: bool) -> Iterator[Table | Check]:
    """All tables."""
    yield from time_searches(0.02 if quick else 0.5)
    for world in WORLDS:
        yield from compare_selectors(world, tables=4 if quick else 200)
    yield from compare_actors(*((2, 16) if quick else (12, 400)))


def time_searches(time_scale: float) -> Iterator[Table | Check]:
    """The same search with one call at a time and with as many as there are slots."""
    rows = []
    for command, flags in SEARCHES.items():
        seconds, reports = {}, []
        for limit in (1, SLOTS):
            began_s = time.perf_counter()
            report = mutagym(
                command,
                ollama_host="embedded",
                target_model=MODEL,
                mutator_model=MODEL,
                judge_model=MODEL,
                slots=SLOTS,
                reply_tokens="25",
                time_scale=time_scale,
                max_in_flight=limit,
                **flags,
            )
            seconds[limit] = time.perf_counter() - began_s
            reports.append(report)
        rows.append(
            {
                "command": f"mutagym {command}",
                "one call at a time, s": seconds[1],
                f"{SLOTS} in flight, s": seconds[SLOTS],
                "times as fast": seconds[1] / seconds[SLOTS],
                "same result": reports[0] == reports[1],
            }
        )
    yield Table(
        title=f"Searches with one call at a time and {SLOTS} in flight",
        about=(
            "Seconds of the whole command; a reply takes "
            f"{100 * time_scale:.0f} ms. The result is the report that `--json` writes."
        ),
        rows=rows,
    )
    yield at_least("searches with the same result", len(rows), sum(r["same result"] for r in rows))
    for row in rows:
        yield at_least(f"times as fast: {row['command']}", 5.0, row["times as fast"])


def compare_selectors(world: str, tables: int) -> Iterator[Table | Check]:
    """How often each selector names the best arm, and with how many evaluations."""
    played = Parallel(n_jobs=2)(delayed(play)(world, seed) for seed in range(tables))
    rows: list[dict[str, Any]] = []
    for index, name in enumerate(SELECTORS):
        evaluations, right, near, regret = zip(*(each[index] for each in played), strict=True)
        low, high = exact_interval(sum(right), tables)
        rows.append(
            {
                "selector": name,
                "evaluations": fmean(evaluations),
                "names the best arm": fmean(right),
                "95 % interval": f"{low:.3f} to {high:.3f}",
                f"within {EPSILON} of it": fmean(near),
                "mean regret": fmean(regret),
            }
        )
    yield Table(
        title=f"Selectors: nine {world} arms",
        about=(
            f"{tables} tables of {DATAPOINTS} datapoints; the arms are right with probability "
            f"{', '.join(f'{mean:.2f}' for mean in MEANS)}. All settings are the default ones, "
            f"delta is {DELTA}. The best arm has the highest mean over all datapoints, which brute "
            "force knows; *regret* is by how much the named arm is less likely to be right."
        ),
        rows=rows,
    )
    by_name = {row["selector"]: row for row in rows}
    found = by_name["arm_elimination"]["names the best arm"]
    yield at_least(f"{world}: arm_elimination names the best arm", 1 - DELTA, found)
    found = by_name["epsilon_lucb"][f"within {EPSILON} of it"]
    yield at_least(f"{world}: epsilon_lucb is within {EPSILON}", 1 - DELTA, found)


def play(world: str, seed: int) -> list[tuple[int, bool, bool, float]]:
    """Of each selector on one table: evaluations, whether it is right or near, its regret."""
    chance, shared = np.random.default_rng([seed, 9]), WORLDS[world]
    own = chance.normal(size=(len(MEANS), DATAPOINTS))
    hardness = np.sqrt(shared) * chance.normal(size=DATAPOINTS) + np.sqrt(1 - shared) * own
    limits = np.array([NormalDist().inv_cdf(mean) for mean in MEANS])
    is_right = hardness < limits[:, None]
    means = is_right.mean(axis=1).round(12)

    def evaluate(arm: Mapping[str, int], datapoint: int) -> float:
        return float(is_right[3 * arm["model"] + arm["prompt"], datapoint])

    found = []
    for name in SELECTORS:
        selector = make_selector(name, CHOICES, range(DATAPOINTS), evaluate, seed=seed, delta=DELTA)
        result = selector.select_best(parallel=False)
        best = result.best.index
        short = float(means.max() - means[best])
        is_best, is_near = best == int(means.argmax()), short <= EPSILON + 1e-9
        found.append((result.evaluations, is_best, is_near, MEANS[0] - MEANS[best]))
    return found


def compare_actors(seeds: int, steps: int) -> Iterator[Table | Check]:
    """The hybrid search with an actor that learns beside one that chooses at random."""
    actors = ("learning", "random")
    jobs = list(product(actors, range(seeds)))
    played = Parallel(n_jobs=2)(delayed(optimize)(actor, seed, steps) for actor, seed in jobs)
    scores = {actor: np.array(played[k * seeds :][:seeds]) for k, actor in enumerate(actors)}
    rows = []
    for actor in actors:
        seed_prompt, best, favourite = scores[actor].mean(axis=0)
        rows.append({"actor": actor, "its choice": favourite, "its best prompt": best})
    rows.append({"actor": "seed prompt", "its choice": seed_prompt})
    lead = scores["learning"][:, 2] - scores["random"][:, 2]
    low, high = student_interval([lead[None]])
    yield Table(
        title="The hybrid search: a learning actor and a random one",
        about=(
            f"`mutagym optimize`, {steps} steps, {seeds} seeds, each with its own split. Shares of "
            "right answers on the questions held out: under the prompt that the actor chooses for "
            f"each, and under the prompt with the best record. The learning actor leads by "
            f"{lead.mean():+.3f} [{low:+.3f}, {high:+.3f}], paired by seed (Student's)."
        ),
        rows=rows,
    )
    yield at_least("lead of the learning actor, lower end", 0.0, low)


def optimize(actor: str, seed: int, steps: int) -> list[float]:
    """Shares of right answers held out: seed prompt, best prompt, the actor's choice."""
    report = mutagym(
        "optimize",
        ollama_host="embedded",
        slots=SLOTS,
        time_scale=0,
        actor=actor,
        seed=seed,
        steps=steps,
    )
    scores = {each["name"]: float(each["score"]) for each in report["held_out"]}
    return [scores["seed prompt"], scores["best prompt"], scores["actor"]]


if __name__ == "__main__":
    sys.exit(run("searches", ABOUT, measure))
