"""The tables that `mutagym bench` makes: schedules, lanes for slots, the judge, lanes without end.

Each function times one table with the command that its section names, and returns the section.

How much of a training run's time the server's slots are busy: rollouts, updates, logs and checkpoints.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.reporting import Check, Rows, Section, at_least, at_most
from cli.bench import MODEL
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from simulator.process import EmbeddedServer
from simulator.settings import Settings

LOGNORMAL = "lognormal:mean=50,sigma=1.0"
CONSTANT = "50"
COLUMNS = {
    "schedule": "schedule",
    "num_processes": "lanes",
    "slots": "slots",
    "seeds": "seeds",
    "env_steps_per_s": "steps/s",
    "speedup": "speed-up",
    "slot_utilisation": "slots busy",
    "fraction_of_bound": "of the bound",
    "max_in_flight": "most in flight",
    "cpu_ms_per_step": "CPU ms a step",
    "peak_rss_mib": "MiB",
    "startup_s": "start s",
}
BARRIERS = {"phased8": 1.7, "gym-async": 1.5, "sb3-subproc": 1.5}
"""What lanes are compared with, and how many times as fast they are to be."""
POOLS = ((32, 8, 0.95), (64, 16, 0.93), (128, 32, 0.92))
"""Lanes, slots, and the utilisation to be reached."""
SWEEP = (1, 4, 16, 64, 256)
SWEEP_SLOTS = 8


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How thoroughly is measured."""

    num_steps: int = 32
    sweep_steps: int = 8
    seeds: int = 3
    time_scale: float = 1.0
    cost_steps: int = 16
    """Steps of each lane whose CPU time is counted."""
    rollouts: int = 2
    """Of the training run."""


def time_schedules(scale: Scale) -> Section:
    """All schedules at 16 lanes on 8 slots."""
    flags = ("--num-processes", "16", "--slots", "8", "--reply-tokens", LOGNORMAL)
    named = ",".join(["sequential", *BARRIERS, "lanes"])
    rows = _bench(scale, *flags, "--schedules", named)
    checks = [
        at_least("steps/s of lanes over sequential", 7.0, _median(rows, "lanes", "speedup")),
        *(
            at_least(f"steps/s of lanes over {schedule}, median over seeds", times, _ratio(rows, schedule))
            for schedule, times in BARRIERS.items()
        ),
        at_least("slots busy under lanes", 0.90, _median(rows, "lanes", "slot_utilisation")),
        _one_hash(rows),
    ]
    return Section(
        title="Schedules: 16 lanes on 8 slots",
        about=(
            "A step makes two calls: a rewrite and a question. `phased8` is 8 threads with a barrier after "
            "each phase; `gym-async` is Gymnasium's AsyncVectorEnv (SAME_STEP) and `sb3-subproc` SB3's "
            "SubprocVecEnv, the same environments in 16 processes with a barrier after each step; `lanes` "
            f"has one barrier, at the end. {_command(scale, *flags, '--schedules', named)}"
        ),
        rows=summary_rows(rows),
        columns=COLUMNS,
        checks=checks,
    )


def time_pools(scale: Scale) -> Section:
    """Lanes on more slots."""
    flags = ("--schedules", "lanes", "--reply-tokens", LOGNORMAL)
    rows, checks = [], []
    for lanes, slots, target in POOLS:
        more = _bench(scale, *flags, "--num-processes", str(lanes), "--slots", str(slots))
        busy = _median(more, "lanes", "slot_utilisation")
        checks.append(at_least(f"slots busy, {lanes} lanes on {slots} slots", target, busy))
        rows += summary_rows(more)
    return Section(
        title="Lanes for slots",
        about=(
            "The same steps under `lanes` with other numbers of lanes and slots. "
            f"{_command(scale, *flags, '--num-processes', 'LANES', '--slots', 'SLOTS')}"
        ),
        rows=rows,
        columns=_without("speedup"),
        checks=checks,
    )


def time_judge(scale: Scale) -> Section:
    """With a verdict as third call, and without."""
    flags = ("--schedules", "lanes", "--num-processes", "16", "--slots", "8", "--reply-tokens", LOGNORMAL)
    rows = {judge: summary_rows(_bench(scale, *flags, *judge)) for judge in ((), ("--judge",))}
    without, judged = (_median(each, "lanes", "slot_utilisation") for each in rows.values())
    return Section(
        title="With a judge",
        about=f"A third call a step: the same model judges the answer. {_command(scale, *flags, '--judge')}",
        rows=[{**row, "judge": bool(judge)} for judge, each in rows.items() for row in each],
        columns={"judge": "judge", "llm_calls": "calls"} | _without("speedup"),
        checks=[at_most("slots busy, difference with and without a judge", 0.02, abs(judged - without))],
    )


def time_sweep(scale: Scale) -> Section:
    """More and more lanes on the same slots."""
    lanes = ",".join(map(str, SWEEP))
    flags = ("--schedules", "lanes", "--sweep-lanes", lanes, "--slots", str(SWEEP_SLOTS))
    fewer = ("--reply-tokens", CONSTANT, "--num-steps", str(scale.sweep_steps), "--seeds", "1")
    rows = _bench(scale, *flags, *fewer)
    pace = {row["num_processes"]: row["env_steps_per_s"] for row in rows}
    growing = min(pace[n] / (n * pace[1]) for n in SWEEP if n <= SWEEP_SLOTS)
    full = [pace[n] for n in SWEEP if n >= SWEEP_SLOTS]
    flat = min(after / max(full[: k + 1]) for k, after in enumerate(full))
    checks = [
        at_least("steps/s, share of n times that of one lane, while there are slots for n", 0.95, growing),
        at_least("steps/s with more lanes, share of the best with fewer, from there on", 0.95, flat),
    ]
    if rows[0]["peak_rss_mib"] is not None:
        more_mib = rows[-1]["peak_rss_mib"] - rows[0]["peak_rss_mib"]
        a_lane = more_mib / (SWEEP[-1] - SWEEP[0])
        checks.append(at_most("MiB for each lane more, its steps included", 1.0, a_lane))
    return Section(
        title="More and more lanes on 8 slots",
        about=(
            "Every reply has the same length here, so that only the harness can slow lanes down, and not one "
            f"lane's long replies at the end of a short rollout. {_command(scale, *flags, *fewer)}"
        ),
        rows=rows,
        columns=COLUMNS,
        checks=checks,
    )


def summary_rows(rows: Rows) -> list[Mapping[str, Any]]:
    """The medians, and the rows that have none because there is one seed."""
    in_medians = {_group(row) for row in rows if row["seed"] is None}
    return [row for row in rows if row["seed"] is None or _group(row) not in in_medians]


def _bench(scale: Scale, *flags: str) -> list[dict[str, Any]]:
    """The rows of one `mutagym bench`, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "cli.main", "bench", *_all_flags(scale, flags), "--json", str(path)]
        subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603 - our own command, our own flags
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return rows


def _all_flags(scale: Scale, flags: Sequence[str]) -> list[str]:
    """The flags, with those of the scale that they do not have."""
    common = {"--num-steps": str(scale.num_steps), "--seeds": str(scale.seeds)}
    if scale.time_scale != 1:
        common["--time-scale"] = str(scale.time_scale)
    return [*flags, *chain.from_iterable(item for item in common.items() if item[0] not in flags)]


def _command(scale: Scale, *flags: str) -> str:
    return f"`mutagym bench {' '.join(_all_flags(scale, flags))}`"


def _group(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["schedule"], row["num_processes"], row["max_workers"], row["slots"]


def _without(key: str) -> dict[str, str]:
    return {name: title for name, title in COLUMNS.items() if name != key}


def _median(rows: Rows, schedule: str, key: str) -> float:
    """Over the seeds."""
    return float(next(row[key] for row in summary_rows(rows) if row["schedule"] == schedule))


def _ratio(rows: Rows, schedule: str) -> float:
    """The steps/s of lanes over those of another schedule: the median of the ratios seed by seed."""
    pace = {(row["schedule"], row["seed"]): row["env_steps_per_s"] for row in rows}
    seeds = [seed for named, seed in pace if named == schedule and seed is not None]
    return float(median(pace["lanes", seed] / pace[schedule, seed] for seed in seeds))


def _one_hash(rows: Rows) -> Check:
    """How many different transitions there are for one seed."""
    hashes: dict[int, set[str]] = {}
    for row in rows:
        if row["seed"] is not None:
            hashes.setdefault(row["seed"], set()).add(row["transitions_sha256"])
    return at_most("different `transitions_sha256` of one seed", 1, max(map(len, hashes.values())))


LANES = 32
SLOTS = 8
TARGET = 0.90
COLUMNS = {
    "schedule": "schedule",
    "num_processes": "lanes",
    "slots": "slots",
    "rollouts": "rollouts",
    "env_steps": "steps",
    "llm_calls": "calls",
    "wall_s": "seconds",
    "env_steps_per_s": "steps/s",
    "bound_env_steps_per_s": "bound",
    "fraction_of_bound": "of the bound",
}


def time_training(scale: Scale) -> Section:
    """A whole training run under `lanes`."""
    row = _run(scale)
    return Section(
        title="Whole training runs",
        about=(
            f"`mutagym train` with {LANES} lanes on {SLOTS} slots, mutators by model, the hashing encoder "
            f"and everything else as it comes, on a simulator with replies of `{LOGNORMAL}` tokens. Its "
            "seconds go from the start of the first rollout to the end of the last update: rollouts, "
            "updates, logs, checkpoints. The bound is the pace at which no slot would be idle in them."
        ),
        rows=[row],
        columns=COLUMNS,
        checks=[at_least("share of the bound", TARGET, row["fraction_of_bound"])],
    )


def _run(scale: Scale) -> dict[str, Any]:
    steps = LANES * scale.num_steps * scale.rollouts
    settings = Settings(slots=SLOTS, reply_tokens=LOGNORMAL, time_scale=scale.time_scale)
    with EmbeddedServer(settings) as server, tempfile.TemporaryDirectory() as folder:
        flags = {
            "--ollama-host": server.host,
            "--target-model": MODEL,
            "--schedule": "lanes",
            "--num-processes": str(LANES),
            "--num-steps": str(scale.num_steps),
            "--num-env-steps": str(steps),
            "--mutators": ",".join(m.name for m in load_mutators(DEFAULT_MUTATORS) if m.kind == "model"),
            "--encoder": "hashing",
            "--run-dir": folder,
        }
        command = [
            sys.executable,
            "-m",
            "cli.main",
            "train",
            *(item for pair in flags.items() for item in pair),
        ]
        subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603 - our own command, our own flags
        busy_s = server.stats()["busy_slot_s"]
        summary = json.loads((Path(folder) / "summary.json").read_text(encoding="utf-8"))
    pace, bound = steps / summary["wall_s"], steps * SLOTS / busy_s
    return {
        "slots": SLOTS,
        "rollouts": scale.rollouts,
        "env_steps_per_s": pace,
        "bound_env_steps_per_s": bound,
        "fraction_of_bound": pace / bound,
        **{key: summary[key] for key in ("schedule", "num_processes", "env_steps", "llm_calls", "wall_s")},
    }
