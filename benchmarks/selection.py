"""How well each selector chooses between nine arms.

python -m benchmarks.selection

Nine combinations answer each of 200 datapoints rightly or wrongly by chance. Every selector sees the same
tables of answers, one a seed, and none knows more of them than the cells that it asks for. No model is
called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.reporting import Check, Section, at_least, run
from scorers.statistics import wilson_interval
from search.selectors.lucb import EpsilonLUCBSelector
from search.selectors.registry import make_selector
from search.selectors.selector import Selector
from search.selectors.threshold import ThresholdSelector

MEANS = (0.80, 0.72, 0.65, 0.60, 0.55, 0.50, 0.45, 0.40, 0.30)
"""How likely each arm is to be right."""
CHOICES = {"model": (0, 1, 2), "prompt": (0, 1, 2)}
"""The arms, in the order of their means: three models with three prompts each."""
DATAPOINTS = 200
DELTA = 0.05
EPSILON = 0.01
THRESHOLD = 0.75

ABOUT = """\
The tables are the same for all selectors, whose settings are the default ones. In the order of their means
the arms are 3 models by 3 prompts, which hill climbing and Bayesian optimisation see. Brute force's arm is
the one with the highest mean over all datapoints; savings are the share of its evaluations that was not
needed; regret is by how much the named arm is less likely to be right than the best one. What a selector
claims is of all datapoints of the table, and may fail with probability delta. Random search and Bayesian
optimisation evaluate 3 of the 9 arms, matrix UCB a quarter of the cells: their savings are budgets, not
findings. Three climbs reach all of so few arms. With ahead 0 a round waits for the one before it, which
saves evaluations and leaves a server idle. In brackets are Wilson's intervals (95 %)."""

Table = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A selector with its settings."""

    label: str
    selector: str
    settings: dict[str, Any] = field(default_factory=dict)
    claim: str | None = None
    """What it claims to hold but for a chance of delta."""


AS_THEY_ARE = (
    Contestant(label="brute force", selector="brute_force"),
    Contestant(label="random search", selector="random"),
    Contestant(label="hill climbing", selector="hill_climbing"),
    Contestant(label="Bayesian optimisation", selector="bayesian"),
    Contestant(label="matrix UCB, rank 1", selector="matrix_ucb"),
    Contestant(label="matrix UCB, rank 0 (UCB-E)", selector="matrix_ucb", settings={"rank": 0}),
    Contestant(label="arm elimination", selector="arm_elimination", claim="brute force's arm"),
    Contestant(
        label="ε-LUCB",
        selector="epsilon_lucb",
        settings={"epsilon": EPSILON},
        claim=f"within {EPSILON} of the best",
    ),
    Contestant(
        label="threshold",
        selector="threshold",
        settings={"threshold": THRESHOLD},
        claim=f"which arms reach {THRESHOLD}",
    ),
)
CONTESTANTS = (
    *AS_THEY_ARE,
    *(
        replace(each, label=f"{each.label}, ahead 0", settings=each.settings | {"ahead": 0})
        for each in AS_THEY_ARE
        if each.claim
    ),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a selector made of one table."""

    as_brute_force: bool
    """It names the arm with the highest mean over all datapoints."""
    truly_best: bool
    """It names the arm that is likeliest to be right."""
    savings: float
    """The share of all evaluations that it did without."""
    regret: float
    """How much less likely to be right the named arm is than the best."""
    claim_holds: bool
    """What it claims of this table is so."""


@dataclass(frozen=True, kw_only=True)
class World:
    """How arms come to be right."""

    title: str
    about: str
    difficulty: float
    """The share of what decides an answer that is the datapoint's, the same for all arms."""

    def table(self, seed: int) -> Table:
        """(arms, datapoints): 1 where an arm is right."""
        chance = np.random.default_rng([seed, 9])
        own = chance.normal(size=(len(MEANS), DATAPOINTS))
        shared = chance.normal(size=DATAPOINTS)
        hardness = np.sqrt(self.difficulty) * shared + np.sqrt(1 - self.difficulty) * own
        limits = np.array([NormalDist().inv_cdf(mean) for mean in MEANS])
        return np.asarray(hardness < limits[:, None], dtype=np.float64)


def sections(*, quick: bool) -> Iterator[Section]:
    """All selectors in each world; a full table takes about a minute on two cores."""
    for world in WORLDS:
        yield compare_selectors(world, tables=4 if quick else 200)


WORLDS = {
    "independent": World(
        title="Choosing between nine independent arms",
        about="Whether an arm is right at a datapoint tells nothing of the others.",
        difficulty=0.0,
    ),
    "correlated": World(
        title="Choosing between nine arms that find the same datapoints hard",
        about="Half of what decides whether an arm is right is the datapoint's difficulty, the same for all.",
        difficulty=0.5,
    ),
}


def select(contestant: Contestant, table: Table, seed: int) -> Outcome:
    """Let a selector choose, evaluation by evaluation."""
    rows = range(len(MEANS))
    selector = make_selector(
        contestant.selector,
        CHOICES,
        range(DATAPOINTS),
        _not_called,
        seed=seed,
        delta=DELTA,
        **contestant.settings,
    )
    order = np.array(selector.datapoints)
    while requests := selector.ask():
        selector.tell([table[row, order[list(places)]].tolist() for row, places in requests])
    named = selector.named()
    if named is None:
        raise RuntimeError(f"{contestant.label} named no arm on the table of seed {seed}")
    means = table.mean(1).round(12)
    return Outcome(
        as_brute_force=named == int(means.argmax()),
        truly_best=named == max(rows, key=MEANS.__getitem__),
        savings=1 - float(selector.cells.seen.sum()) / table.size,
        regret=max(MEANS) - MEANS[named],
        claim_holds=_claim_holds(selector, named, means),
    )


def _not_called(combination: object, datapoint: object) -> float:
    """The evaluation that `select_best` would call; here `select` reads the table itself."""
    raise RuntimeError(f"expected no call, got {combination!r} at {datapoint!r}")


def _claim_holds(selector: Selector, named: int, means: Table) -> bool:
    """Whether what the selector claims is true of all datapoints of the table."""
    if isinstance(selector, ThresholdSelector):
        return all(says == (means[row] >= THRESHOLD) for row, says in selector.reaches.items())
    slack = EPSILON if isinstance(selector, EpsilonLUCBSelector) else 0.0
    return bool(means[named] >= means.max() - slack - 1e-9)


def _play(task: tuple[str, int]) -> list[Outcome]:
    """What all selectors make of one table; in a process of its own."""
    world, seed = task
    table = WORLDS[world].table(seed)
    return [select(contestant, table, seed) for contestant in CONTESTANTS]


def _play_in_processes(tasks: Sequence[tuple[str, int]], processes: int) -> list[list[Outcome]]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the processes load torch
    # A forked process has the locks that other threads of this one hold at that moment, for good.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_play, tasks, chunksize=5))


def compare_selectors(world: str, tables: int, processes: int = 2) -> Section:
    """All selectors in one of `WORLDS`.

    Args:
        world: its name.
        tables: how many each selector is given; each has its own seed.
        processes: that share the work; 0: this one does it.
    """
    tasks = [(world, seed) for seed in range(tables)]
    played = _play_in_processes(tasks, processes) if processes else list(map(_play, tasks))
    outcomes = {
        contestant.label: [each[place] for each in played] for place, contestant in enumerate(CONTESTANTS)
    }
    return Section(
        title=WORLDS[world].title,
        about=(
            f"{tables} tables of {DATAPOINTS} datapoints; the arms are right with probability "
            f"{', '.join(f'{mean:.2f}' for mean in MEANS)}. {WORLDS[world].about} Delta is {DELTA}.\n\n"
            f"{ABOUT}"
        ),
        rows=[_row(contestant, outcomes[contestant.label]) for contestant in CONTESTANTS],
        checks=list(_checks(outcomes)),
    )


def _row(contestant: Contestant, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    def rate(what: str) -> str:
        return _with_interval(sum(getattr(each, what) for each in outcomes), len(outcomes))

    return {
        "selector": contestant.label,
        "names brute force's arm": rate("as_brute_force"),
        "names the best arm": rate("truly_best"),
        "savings": fmean(each.savings for each in outcomes),
        "mean regret": fmean(each.regret for each in outcomes),
        "claims": contestant.claim,
        "which holds": rate("claim_holds") if contestant.claim else None,
    }


def _with_interval(successes: int, n: int) -> str:
    low, high = wilson_interval(successes, n)
    return f"{successes / n:.3f} [{low:.3f}, {high:.3f}]"


def _checks(outcomes: Mapping[str, Sequence[Outcome]]) -> Iterator[Check]:
    elimination = outcomes["arm elimination"]
    named = fmean(each.as_brute_force for each in elimination)
    yield at_least("arm elimination names brute force's arm", 0.94, named)
    yield at_least("savings of arm elimination", 0.3, fmean(each.savings for each in elimination))
    for label in ("ε-LUCB", "threshold"):
        holds = fmean(each.claim_holds for each in outcomes[label])
        yield at_least(f"what {label} claims holds", 1 - DELTA, holds)


if __name__ == "__main__":
    sys.exit(run("selection", "search.md"))
