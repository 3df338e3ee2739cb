"""When `--until-sure` ends a training: where there is no gain, and where there is one of ten points.

    make bench-until-sure                        # or python -m benchmarks.until_sure --write: an hour
    python -m benchmarks.until_sure --runs 40    # fewer trainings; more may be added to them later
    python -m benchmarks.until_sure --quick      # small, to try it out: its figures have no meaning

Every training is one of `mutagym train`, with queries of its own that are drawn from 5,120 benign questions;
the worlds are trained side by side, each in a process and on a simulator of its own. What a policy can gain
is computed (`benchmarks.optimum`).
Trainings are kept under runs/until-sure: one that is there, of the same code, is not made again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import check_runs_of, read_json
from benchmarks.optimum import Game, summarise
from benchmarks.reporting import Check, Section, at_least, at_most, run
from cli.main import execute
from mutators.registry import load_mutators
from scorers.statistics import exact_interval
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from simulator.world import load_world
from train.config import GainConfig
from train.gain import HOPELESS, SURE, GainRecord

HERE = Path(__file__).parent
WORK = Path("runs/until-sure")
RUNS = 200
QUERIES = 800
"""Of each training; the bundled 600 would keep 180, too few to show ten points."""
KEPT = 0.5
STEPS = 4096
MAX_STEPS = 2
MOST_FALSE, LEAST_FOUND = 0.05, 0.9

HOUSE = 0.4267
"""The share of questions about the house: in the second world this makes the gain ten points."""
ASKED = (
    "What should I know about the {like} {thing} in the {place}?",
    "Which {like} {thing} fits best into the {place}?",
    "What makes a {like} {thing} last longer in the {place}?",
    "Who looks after the {like} {thing} in the {place}?",
)
COMPUTERS = {
    "like": "wireless|portable|refurbished|silent|fast|slow|rented|virtual|dusty|outdated",
    "thing": "router|browser|laptop|firewall|database|server|software|antivirus",
    "place": "office|library|workshop|studio|call centre|school|laboratory|warehouse",
}
HOUSEHOLD = {
    "like": "woollen|wooden|red|copper|second-hand|round|painted|soft|antique|foldable",
    "thing": "kettle|sofa|lamp|oven|curtain|bicycle|blanket|teapot",
    "place": "kitchen|attic|hallway|guest room|nursery|bedroom|dining room|porch",
}


@dataclass(frozen=True, kw_only=True)
class World:
    """A world of the simulator, and the mutators that are played in it."""

    title: str
    name: str
    mutators: Sequence[str]

    @property
    def file(self) -> str:
        """The world's file."""
        return str(HERE / "personas" / f"{self.name}.toml")

    @property
    def names(self) -> list[str]:
        """The mutators, as --mutators names them."""
        return [f"{HERE / 'until_sure_mutators.py'}:{name}" for name in self.mutators]


WORLDS = (
    World(title="no gain", name="no_gain", mutators=("context", "role", "simple")),
    World(
        title="ten points", name="ten_points", mutators=("mostly_context", "mostly_role", "either")
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark."""
    parser.add_argument("--runs", type=int, default=RUNS, help=f"trainings in each world [{RUNS}]")


def sections(*, quick: bool, runs: int) -> Iterator[Section]:
    """Train in both worlds; then look often, without training."""
    work = Path(tempfile.mkdtemp(prefix="until-sure-")) if quick else WORK
    made = check_runs_of(work, {"queries": QUERIES, "steps": STEPS})
    yield replace(_trainings(work, 2 if quick else runs), made=made)
    yield _many_looks(runs=10 if quick else 400)
    if quick:
        shutil.rmtree(work)


def draw_queries(seed: int, count: int = QUERIES) -> list[str]:
    """So many different questions."""
    chance = np.random.default_rng(seed)
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        kind = HOUSEHOLD if chance.random() < HOUSE else COMPUTERS
        words = {slot: str(chance.choice(choices.split("|"))) for slot, choices in kind.items()}
        drawn[str(chance.choice(ASKED)).format(**words)] = None
    return list(drawn)


def computed(world: World) -> dict[str, float]:
    """The shares of questions that the best policy and the best fixed mutator get answered."""
    game = Game(
        world=load_world(world.file), mutators=load_mutators(world.names), max_steps=MAX_STEPS
    )
    by_kind = []
    for kind in (COMPUTERS, HOUSEHOLD):
        words = {slot: choices.split("|") for slot, choices in kind.items()}
        rows = zip(*words.values(), strict=False)
        texts = [ASKED[0].format(**dict(zip(words, row, strict=True))) for row in rows]
        by_kind.append(summarise([game.solve(text) for text in texts]))

    def share(*values: float) -> float:
        return (1 - HOUSE) * values[0] + HOUSE * values[1]

    fixed = [
        share(*(kind["fixed"][name]["success"] for kind in by_kind)) for name in world.mutators
    ]
    return {"best": share(*(kind["best"]["success"] for kind in by_kind)), "best_fixed": max(fixed)}


def train(world: World, host: str, seed: int, work: Path) -> dict[str, Any]:
    """The summary of one training; if it was made already, that of then."""
    result = work / f"{world.name}-{seed}.json"
    if not result.exists():
        with tempfile.TemporaryDirectory(prefix="until-sure-") as folder:
            queries = Path(folder) / "queries.txt"
            queries.write_text("\n".join(draw_queries(seed)), encoding="utf-8")
            flags = {
                "--ollama-host": host,
                "--target-model": "sim-target",
                "--mutator-model": "sim-mutator",
                "--queries": queries,
                "--held-out": 0,
                "--kept": KEPT,
                "--mutators": ",".join(world.names),
                "--max-steps": MAX_STEPS,
                "--intent-threshold": 0,
                "--encoder": "hashing",
                "--num-env-steps": STEPS,
                "--seed": seed,
                "--run-dir": Path(folder) / "run",
                "--cache": work / f"cache-{world.name}",
                "--json": Path(folder) / "summary.json",
            }
            line = [
                "train",
                "--until-sure",
                *(str(each) for pair in flags.items() for each in pair),
            ]
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                status = execute(line)
            if status:
                raise RuntimeError(said.getvalue())
            shutil.move(Path(folder) / "summary.json", result)
    found: dict[str, Any] = read_json(result)
    return found


def train_all(world: World, runs: int, work: Path) -> list[dict[str, Any]]:
    """The summaries of so many trainings, one after another."""
    ended = []
    with EmbeddedServer(Settings(slots=16, time_scale=0, world=world.file)) as server:
        for seed in range(runs):
            ended.append(train(world, server.host, seed, work))
            print(f"{world.title}: {seed + 1} of {runs}", file=sys.stderr, flush=True)
    return ended


def _trainings(work: Path, runs: int) -> Section:
    rows: list[Mapping[str, Any]] = []
    checks: list[Check] = []
    with ProcessPoolExecutor(len(WORLDS), mp_context=get_context("spawn")) as pool:
        of_worlds = list(pool.map(partial(train_all, runs=runs, work=work), WORLDS))
    for world, ended in zip(WORLDS, of_worlds, strict=True):
        rows.append(_row(world, ended))
        share = rows[-1]["claimed"]
        if world is WORLDS[0]:
            checks.append(at_most("no gain: share of trainings that claim one", MOST_FALSE, share))
        else:
            checks.append(
                at_least("ten points: share of trainings that find a gain", LEAST_FOUND, share)
            )
    kept = round(KEPT * QUERIES)
    return Section(
        title="Trainings with --until-sure",
        about=(
            f"{runs} trainings in each of two worlds, of at most {STEPS:,} steps (each a call to the "
            f"target), with some {kept} of {QUERIES} queries kept: each draws its own queries, and has its "
            "own seed. *Best policy* and *best fixed* are computed: the share of episodes that succeed. "
            "*Claimed*: ended with a gain beyond doubt, with Wilson's interval (95 %). *Steps*: of training "
            "at that end, the median and the quartiles. *Kept steps*: those on kept queries, all looks "
            "together, the median over all trainings. *Forecast*: ended because --least-gain (.05) seemed "
            "out of reach. *Held*: the share of trainings in which no interval of a look lies above all that "
            "can be gained. Everything is simulated."
        ),
        rows=rows,
        checks=checks,
    )


def _row(world: World, ended: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    values = computed(world)
    claimed = [each for each in ended if each["until_sure"] == SURE]
    low, high = exact_interval(len(claimed), len(ended))
    steps = [each["env_steps"] for each in claimed]
    quartiles = [int(each) for each in np.quantile(steps, (0.25, 0.5, 0.75))] if steps else None
    most = values["best"] - values["best_fixed"]
    held = [all(look["interval"][0] <= most for look in each["gain_looks"]) for each in ended]
    return {
        "world": world.title,
        "best policy": values["best"],
        "best fixed": values["best_fixed"],
        "trainings": len(ended),
        "claimed": len(claimed) / len(ended),
        "interval": f"{low:.3f} to {high:.3f}",
        "steps": quartiles and f"{quartiles[1]} ({quartiles[0]} to {quartiles[2]})",
        "kept steps": int(np.median([each["kept_steps"] for each in ended])),
        "forecast": sum(each["until_sure"] == HOPELESS for each in ended) / len(ended),
        "held": sum(held) / len(ended),
    }


LOOKS = 24
RESULTS = 200
TRIALS = 5


def _many_looks(runs: int) -> Section:
    """What looking often does to the claim, and a rival that only seemed the best, without any training."""
    streams = [np.random.default_rng(seed) for seed in range(runs)]
    wander = [_claims(*_wandering(chance)) for chance in streams]
    against_all, against_picked = zip(*map(_beaten, streams), strict=True)
    cases = {
        f"a policy that wanders among mutators that are all as good, {LOOKS} looks": wander,
        "a policy that is the best mutator (.8; the others .6), against all": against_all,
        f"the same, against the one that was best in {TRIALS} trials (not what is done)": against_picked,
    }
    rows = []
    for name, claims in cases.items():
        low, high = exact_interval(sum(claims), runs)
        row = {"no gain": name, "runs": runs, "claimed": sum(claims) / runs}
        rows.append({**row, "interval": f"{low:.3f} to {high:.3f}"})
    return Section(
        title="Looking often, and the choice of the rival",
        about=(
            f"Results of {RESULTS} kept queries, drawn and not played, of policies that gain nothing; a run "
            "claims a gain if any of its looks does. The last row is why the best fixed mutator is not "
            "chosen: a policy that is no better than the best is soon better than one that a few trials took "
            "for it."
        ),
        rows=rows,
        checks=[
            at_most(
                f"{row['no gain']}: share of runs that claim a gain", MOST_FALSE, row["claimed"]
            )
            for row in rows[:2]
        ],
    )


def _drawn(chance: np.random.Generator, rates: Sequence[float]) -> list[list[float]]:
    """For each rate whether each query is answered, 1 or 0."""
    return [[float(x) for x in chance.random(RESULTS) < rate] for rate in rates]


def _wandering(chance: np.random.Generator) -> tuple[list[list[float]], dict[str, list[float]]]:
    """The results of a policy at each look, another one on a tenth of the queries, and of two mutators."""
    fixed = _drawn(chance, (0.5, 0.5))
    chosen, policies = chance.integers(2, size=RESULTS), []
    for _ in range(LOOKS):
        moved = chance.integers(10, size=RESULTS) == 0
        chosen = np.where(moved, chance.integers(2, size=RESULTS), chosen)
        policies.append(np.array(fixed)[chosen, np.arange(RESULTS)].tolist())
    return policies, dict(zip("ab", fixed, strict=True))


def _beaten(chance: np.random.Generator) -> tuple[bool, bool]:
    """Whether the best mutator is said to gain: over all, and over the one that did best in a few trials."""
    rates = (0.8, 0.6, 0.6, 0.6)
    fixed = dict(zip("abcd", _drawn(chance, rates), strict=True))
    policies = _drawn(chance, rates[:1])
    tried = (
        chance.binomial(TRIALS, rates) + chance.random(len(rates)) / 2
    )  # chance decides between equals
    rival = "abcd"[int(tried.argmax())]
    return _claims(policies, fixed), _claims(policies, {rival: fixed[rival]})


def _claims(policies: Sequence[list[float]], fixed: Mapping[str, list[float]]) -> bool:
    record = GainRecord([str(query) for query in range(RESULTS)], GainConfig())
    record.fixed = {name: np.array(results) for name, results in fixed.items()}
    for number, policy in enumerate(policies, 1):
        record.add(np.array(policy), steps=number, kept_steps=0, steps_left=1)
    return any(look.gain.low > 0 for look in record.looks)


if __name__ == "__main__":
    sys.exit(run("until_sure", "stopping.md"))
