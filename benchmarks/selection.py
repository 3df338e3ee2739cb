"""How well each selector chooses between nine arms, and how long it takes.

python -m benchmarks.selection

Nine combinations answer each datapoint rightly or wrongly by chance. Every selector sees the same
tables of answers, one a seed, and none knows more of them than the cells that it evaluates.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import NormalDist, fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.reporting import Section, at_least, at_most, run
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call
from scorers.statistics import exact_interval
from search.select import SELECTORS, Combination, SelectionResults, make_selector
from simulator.process import EmbeddedServer
from simulator.settings import Settings

MEANS = (0.80, 0.72, 0.65, 0.60, 0.55, 0.50, 0.45, 0.40, 0.30)
"""How likely each arm is to be right."""
CHOICES = {"model": (0, 1, 2), "prompt": (0, 1, 2)}
"""The arms, in the order of their means: three models with three prompts each."""
DATAPOINTS, TIMED_DATAPOINTS, CAP = 200, 100, 20
DELTA, EPSILON, THRESHOLD = 0.05, 0.01, 0.75
CLAIMS = {
    "arm_elimination": "brute force's arm",
    "epsilon_lucb": f"within {EPSILON} of the best",
    "threshold": f"which arms reach {THRESHOLD}",
}
"""What the sure selectors claim to hold but for a chance of delta."""
WORLDS = {
    "nine independent arms": (
        0.0,
        "Whether an arm is right at a datapoint tells nothing of the others.",
    ),
    "correlated": (
        0.5,
        "Half of what decides that is the datapoint's difficulty, the same for all.",
    ),
}
"""The share of the datapoint in what decides whether an arm is right, and that in words."""
REPLIES = {"equal": "25", "lognormal": "lognormal:mean=25,sigma=1.0"}
"""Tokens of the timed replies: 50 ms on the mean."""

Table = NDArray[np.float64]


def sections(*, quick: bool) -> Iterator[Section]:
    """All selectors in each world, and their seconds; some four minutes on two cores."""
    for world in WORLDS:
        yield compare(world, tables=4 if quick else 200)
    yield time_selectors(runs=1 if quick else 3, time_scale=0.05 if quick else 0.5)


def table_of(world: str, seed: int, size: int = DATAPOINTS) -> Table:
    """(arms, datapoints): 1 where an arm is right."""
    difficulty, _ = WORLDS[world]
    rng = np.random.default_rng([seed, 9])
    own, shared = rng.normal(size=(len(MEANS), size)), rng.normal(size=size)
    hardness = np.sqrt(difficulty) * shared + np.sqrt(1 - difficulty) * own
    limits = np.array([NormalDist().inv_cdf(mean) for mean in MEANS])
    return np.asarray(hardness < limits[:, None], dtype=np.float64)


def select(name: str, table: Table, seed: int) -> SelectionResults:
    """What a selector finds, cell by cell, without a call."""
    nobody = partial(float, 0)
    selector = make_selector(name, CHOICES, range(table.shape[1]), nobody, seed=seed, delta=DELTA)
    while cells := selector.ask():
        selector.tell([table[arm, selector.datapoints[place]] for arm, place in cells])
    return selector.results()


def claim_holds(name: str, found: SelectionResults, means: Table) -> bool:
    """Whether what a selector claims is true of all datapoints of the table."""
    if name == "threshold":
        reach = {row.index for row in found.rows if row.verdict == "reaches"}
        return reach == set(np.flatnonzero(means >= THRESHOLD).tolist())
    slack = EPSILON if name == "epsilon_lucb" else 0.0
    return bool(means[found.best.index] >= means.max() - slack - 1e-9)


def play(world: str, seed: int) -> list[dict[str, float]]:
    """What each selector makes of one table."""
    table = table_of(world, seed)
    means, played = table.mean(1).round(12), []
    for name in SELECTORS:
        found = select(name, table, seed)
        played.append(
            {
                "as brute force": found.best.index == means.argmax(),
                "savings": found.savings,
                "regret": MEANS[0] - MEANS[found.best.index],
                "claim": claim_holds(name, found, means),
                "covers": found.best.low <= MEANS[found.best.index] <= found.best.high,
            }
        )
    return played


def compare(world: str, tables: int) -> Section:
    """All selectors on tables of one world."""
    # A forked process has the locks that other threads of this one hold at that moment, for good.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        played = list(pool.map(partial(play, world), range(tables), chunksize=5))

    def rate(values: list[float]) -> str:
        low, high = exact_interval(int(sum(values)), tables)
        return f"{fmean(values):.3f} [{low:.3f}, {high:.3f}]"

    rows, checks = [], []
    for place, name in enumerate(SELECTORS):
        of = {key: [each[place][key] for each in played] for key in played[0][place]}
        rows.append(
            {
                "selector": name,
                "names brute force's arm": rate(of["as brute force"]),
                "savings": fmean(of["savings"]),
                "mean regret": fmean(of["regret"]),
                "claims": CLAIMS.get(name),
                "which holds": rate(of["claim"]) if name in CLAIMS else None,
                "interval of the named arm covers": rate(of["covers"]),
            }
        )
        if name in CLAIMS:
            checks.append(at_least(f"what {name} claims holds", 1 - DELTA, fmean(of["claim"])))
    return Section(
        title=f"Choosing between {world}",
        about=(
            f"{tables} tables of {DATAPOINTS} datapoints; the arms, 3 models by 3 prompts, are "
            f"right with probability {', '.join(f'{mean:.2f}' for mean in MEANS)}. "
            f"{WORLDS[world][1]} Settings are the default ones; delta is {DELTA}. *Brute force's "
            "arm* has the highest mean over all datapoints; *savings* are the share of its "
            "evaluations that was not needed; *regret* is by how much the named arm is less likely "
            "to be right than the best one. In brackets are exact intervals (95 %)."
        ),
        rows=rows,
        checks=checks,
    )


def seconds(name: str, replies: str, seed: int, time_scale: float) -> tuple[float, int, int]:
    """The seconds that a selection on the simulator takes, its calls, and the most in flight."""
    table = table_of("nine independent arms", seed, TIMED_DATAPOINTS)
    settings = Settings(slots=CAP, reply_tokens=REPLIES[replies], time_scale=time_scale, seed=seed)
    with (
        EmbeddedServer(settings) as server,
        Dispatcher([server.host], max_in_flight=CAP, memory_bytes=0) as dispatcher,
    ):

        def evaluate(arm: Combination, datapoint: int) -> float:
            prompt = f"What is {datapoint} times {arm['model']}{arm['prompt']}?"
            call = Call(model="sim-solver", prompt=prompt, options={"temperature": 0})
            if (reply := dispatcher.generate(call)).error:
                raise reply.error
            return float(table[3 * arm["model"] + arm["prompt"], datapoint])

        datapoints = range(TIMED_DATAPOINTS)
        selector = make_selector(name, CHOICES, datapoints, evaluate, seed=seed, delta=DELTA)
        server.reset_stats()
        began_s = time.perf_counter()
        selector.select_best(parallel=True, max_concurrent=CAP)
        wall_s, stats = time.perf_counter() - began_s, server.stats()
    return wall_s, stats["calls"], stats["max_in_flight"]


def time_selectors(runs: int, time_scale: float) -> Section:
    """Every selector on the same nine arms: its seconds beside brute force's."""
    rows: list[dict[str, Any]] = []
    most = 0
    for name in SELECTORS:
        row: dict[str, Any] = {"selector": name}
        for replies in REPLIES:
            played = [seconds(name, replies, seed, time_scale) for seed in range(runs)]
            row["calls"] = median(calls for _, calls, _ in played)
            row[f"{replies}, s"] = median(wall_s for wall_s, *_ in played)
            of_brute_force = row[f"{replies}, s"] / (rows or [row])[0][f"{replies}, s"]
            row[f"{replies}, of brute force's"] = of_brute_force
            most = max(most, *(in_flight for *_, in_flight in played))
        rows.append(row)
    longest = max(row[f"{replies}, of brute force's"] for row in rows for replies in REPLIES)
    return Section(
        title=f"Seconds of every selector: 9 arms, {TIMED_DATAPOINTS} datapoints, 50 ms a call",
        about=(
            f"`select_best(parallel=True, max_concurrent={CAP})` on {CAP} slots: nine independent "
            f"arms as above, {TIMED_DATAPOINTS} datapoints, a call of 50 ms each, or of lognormal "
            f"length with this mean and sigma 1.0. Medians of {runs} tables. At the end of a round "
            "slots are idle, so that rounds are few."
        ),
        rows=rows,
        checks=[
            at_most("seconds of brute force's, most of all", 1.05, longest),
            at_most("most in flight", CAP, most),
        ],
    )


if __name__ == "__main__":
    sys.exit(run("selection", "search.md"))
