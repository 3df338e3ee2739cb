"""Is the policy that a training saves ever worse than a fixed choice? In three kinds of world."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from benchmarks.results import Check, Table, at_least, mutagym, run
from scorers.statistics import student_interval
from simulator.world import load_world

ABOUT = """\
Simulated. `mutagym train --algorithm linucb` for 512 steps keeps a quarter of the training queries,
and saves the simplest of four policies that is within one standard error of the best on these:
`noop`, the best fixed mutator, a cascade, and what was learned. Then `mutagym eval` plays the
held-out queries with it, with what was learned, and with fixed policies that were fitted with as
many calls of their own. Success, in points, over the runs of each world. In one world one mutator
is best for all queries, in another each group of topics has one of its own, and in the third all
mutators do the same."""
STEPS, RUNS, JOBS = 512, 40, 2
FIXED = ("noop", "best_fixed", "cascade")
MARKS = ("context", "detail", "polite")
"""What mutations add: the groups of topics are opened by one each."""
ALL_MARKS = (*MARKS, "role", "intent", "simple", "formal", "passive", "terse")
WORST = -0.02
"""In the mean over the runs the saved policy may be so much worse than a fixed one."""


def weights(kind: str, number: int) -> tuple[float, Mapping[str, float]]:
    """The points of a topic: where it begins (3 is refused, 0 answered), and what marks change."""
    if kind == "one mutator is best":
        return 3.0, {MARKS[0]: -3.0, **dict.fromkeys(ALL_MARKS[1:], 0.0)}
    if kind == "a mutator for each group":
        return 3.0, {mark: -3.0 * (mark == MARKS[number % len(MARKS)]) for mark in ALL_MARKS}
    return 3.0 + 3.0 * (number % 2), dict.fromkeys(ALL_MARKS, -3.0)


KINDS = ("one mutator is best", "a mutator for each group", "all mutators do the same")


def write_world(kind: str, path: Path) -> None:
    """The world as a TOML file."""
    lines = ['extends = "cautious"', f'name = "{kind}"', "[target]"]
    lines += ["partly_from = 1", "refused_from = 3"]
    for number, topic in enumerate(load_world("cautious").file.topics):
        base, points = weights(kind, number)
        table = ", ".join(f"{mark} = {value}" for mark, value in points.items())
        forms = ", ".join(f"{form} = 0" for form in ("knowing", "why", "doing"))
        lines += [f"[topics.{topic}]", f"base = {base}", "harsh = 0"]
        lines += [f"forms = {{ {forms} }}", f"weights = {{ {table} }}"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def one_run(kind: str, seed: int, steps: int, episodes: int | None) -> dict[str, Any]:
    """What was saved, and the success of each policy on the held-out queries."""
    with TemporaryDirectory() as folder:
        world, trained = Path(folder) / "world.toml", Path(folder) / "run"
        write_world(kind, world)
        common: dict[str, Any] = {"ollama_host": "embedded", "slots": 16, "time_scale": 0}
        common |= {"world": world, "seed": seed}
        summary = mutagym(
            "train", **common, algorithm="linucb", num_env_steps=steps, run_dir=trained
        )
        options = common | {"policy": [trained], "baselines": ",".join(FIXED), "fit_calls": steps}
        if episodes:
            options["episodes"] = episodes
        report = mutagym("eval", **options)
        success = {Path(rate["team"]).name: rate["success"]["rate"] for rate in report["rates"]}
        if (trained / "learned.safetensors").exists():
            (trained / "learned.safetensors").replace(trained / "policy.safetensors")
            only = mutagym("eval", **options | {"baselines": ""})
            success["learned"] = only["rates"][0]["success"]["rate"]
        else:
            success["learned"] = success["run"]
    return {"saved": summary["saved"], **success}


def add_arguments(parser: ArgumentParser) -> None:
    """How many runs."""
    parser.add_argument("--runs", type=int, default=RUNS, help="trainings in each world")


def measure(*, quick: bool, runs: int) -> Iterator[Table | Check]:
    """Train and evaluate in every world with every seed."""
    steps, episodes, runs = (128, 8, 2) if quick else (STEPS, None, runs)
    jobs = list(product(KINDS, range(runs)))
    played = Parallel(n_jobs=JOBS, verbose=10)(
        delayed(one_run)(kind, seed, steps, episodes) for kind, seed in jobs
    )
    rows, checks = [], []
    for kind in KINDS:
        found = [each for (of, _), each in zip(jobs, played, strict=True) if of == kind]
        saved = np.array([each["run"] for each in found])
        row: dict[str, Any] = {"world": kind, "saved policy": f"{saved.mean():.1%}"}
        for name in (*FIXED, "learned"):
            less = saved - np.array([each[name] for each in found])
            low, high = student_interval([less[None]]) if len(less) > 1 else (0, 0)
            row[f"less {name}"] = f"{100 * less.mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
            if name in FIXED:
                what = f"{kind}: saved less {name}, mean over the runs"
                checks.append(at_least(what, WORST, float(less.mean())))
        row["what was saved"] = ", ".join(
            f"{name} {sum(each['saved'] == name for each in found)}"
            for name in ("noop", "best fixed", "cascade", "learned")
        )
        rows.append(row)
    yield Table(
        title=f"The saved policy against each fixed one, {runs} runs in each world",
        about="Success on held-out queries; differences in points, with intervals over the runs.",
        rows=rows,
    )
    yield from checks


if __name__ == "__main__":
    sys.exit(run("choices", ABOUT, measure, add_arguments))
