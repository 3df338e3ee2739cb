"""How busy rollouts and whole training runs keep a server: schedules, lanes for slots, a judge, many lanes.

python -m benchmarks.rollouts

Each table is made by the command that its section names.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import LOGNORMAL, read_json, run_mutagym
from benchmarks.reporting import Check, Rows, Section, at_least, at_most, run
from cli.bench import MODEL
from mutators.registry import model_mutators
from ollama_utils.connect import EMBEDDED
from simulator.process import EmbeddedServer
from simulator.settings import Settings

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
    "memory_mib": "MiB",
    "startup_s": "start s",
}
"""What the rows of `mutagym bench` are headed by in the document."""
BARRIERS = {"phased8": 1.7, "gym-async": 1.5, "sb3-subproc": 1.5}
"""What lanes are compared with, and how many times as fast they are to be."""
POOLS = ((32, 8, 0.95), (64, 16, 0.93), (128, 32, 0.92))
"""Lanes, slots, and the share of slots to be kept busy."""
SWEEP = (1, 4, 16, 64, 256)
SLOTS = 8
TRAINING_LANES = 32
SEEDS, SEED_LANES = 3, 16
_LOOK_S = 0.1
LANES_OF_16: Mapping[str, object] = {
    "--num-processes": 16,
    "--slots": SLOTS,
    "--reply-tokens": LOGNORMAL,
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How thoroughly is measured."""

    num_steps: int = 32
    sweep_steps: int = 8
    seeds: int = 3
    time_scale: float = 1.0
    rollouts: int = 2
    """Of the training run."""
    seed_rollouts: int = 4
    """Of each seed's run, where several are side by side."""

    def flags(self, flags: Mapping[str, object]) -> dict[str, object]:
        """A command's flags, with those of the scale that it does not set itself."""
        common: dict[str, object] = {"--num-steps": self.num_steps, "--seeds": self.seeds}
        if self.time_scale != 1:
            common["--time-scale"] = self.time_scale
        return {**flags, **{name: value for name, value in common.items() if name not in flags}}


QUICK = Scale(num_steps=4, sweep_steps=2, seeds=1, time_scale=0.1, rollouts=1, seed_rollouts=2)


def sections(*, quick: bool) -> Iterator[Section]:
    """All tables, in the order of the document."""
    scale = QUICK if quick else Scale()
    yield time_schedules(scale)
    yield time_pools(scale)
    yield time_judge(scale)
    yield time_training(scale)
    yield time_seeds(scale)
    yield time_sweep(scale)


def time_schedules(scale: Scale) -> Section:
    """All schedules at 16 lanes on 8 slots."""
    flags = {**LANES_OF_16, "--schedules": ",".join(["sequential", *BARRIERS, "lanes"])}
    rows = _bench(scale, flags)
    checks = [
        at_least("steps/s of lanes over sequential", 7.0, _median(rows, "lanes", "speedup")),
        *(
            at_least(
                f"steps/s of lanes over {schedule}, median over seeds",
                times,
                _ratio(rows, schedule),
            )
            for schedule, times in BARRIERS.items()
        ),
        at_least("slots busy under lanes", 0.90, _median(rows, "lanes", "slot_utilisation")),
        at_most("different `transitions_sha256` of one seed", 1, _most_hashes(rows)),
    ]
    return Section(
        title="Schedules: 16 lanes on 8 slots",
        about=(
            "A step makes two calls: a rewrite and a question. `phased8` is 8 threads with a barrier after "
            "each phase; `gym-async` is Gymnasium's AsyncVectorEnv (SAME_STEP) and `sb3-subproc` SB3's "
            "SubprocVecEnv, the same environments in 16 processes with a barrier after each step; `lanes` "
            f"has one barrier, at the end. {_command(scale, flags)}"
        ),
        rows=_shown(summary_rows(rows)),
        checks=checks,
    )


def time_pools(scale: Scale) -> Section:
    """Lanes on more slots."""
    flags: dict[str, object] = {"--schedules": "lanes", "--reply-tokens": LOGNORMAL}
    rows: list[Mapping[str, Any]] = []
    checks: list[Check] = []
    for lanes, slots, target in POOLS:
        more = _bench(scale, {**flags, "--num-processes": lanes, "--slots": slots})
        busy = _median(more, "lanes", "slot_utilisation")
        checks.append(at_least(f"slots busy, {lanes} lanes on {slots} slots", target, busy))
        rows += summary_rows(more)
    shown = _command(scale, {**flags, "--num-processes": "LANES", "--slots": "SLOTS"})
    return Section(
        title="Lanes for slots",
        about=f"The same steps under `lanes` with other numbers of lanes and slots. {shown}",
        rows=_shown(rows, speedup=False),
        checks=checks,
    )


def time_judge(scale: Scale) -> Section:
    """With a verdict as third call, and without."""
    flags = {"--schedules": "lanes", **LANES_OF_16}
    without, judged = (summary_rows(_bench(scale, flags, *more)) for more in ((), ("--judge",)))
    busy, busy_judged = (_median(rows, "lanes", "slot_utilisation") for rows in (without, judged))
    return Section(
        title="With a judge",
        about=f"A third call a step: the same model judges the answer. {_command(scale, flags, '--judge')}",
        rows=[
            {"judge": judge, "calls": row["llm_calls"], **shown}
            for judge, rows in ((False, without), (True, judged))
            for row, shown in zip(rows, _shown(rows, speedup=False), strict=True)
        ],
        checks=[
            at_most(
                "slots busy, difference with and without a judge", 0.02, abs(busy_judged - busy)
            )
        ],
    )


def time_sweep(scale: Scale) -> Section:
    """More and more lanes on the same slots."""
    flags = {
        "--schedules": "lanes",
        "--sweep-lanes": ",".join(map(str, SWEEP)),
        "--slots": SLOTS,
        "--reply-tokens": 50,
        "--num-steps": scale.sweep_steps,
        "--seeds": 1,
    }
    rows = _bench(scale, flags)
    pace = {row["num_processes"]: row["env_steps_per_s"] for row in rows}
    growing = min(pace[n] / (n * pace[1]) for n in SWEEP if n <= SLOTS)
    full = [pace[n] for n in SWEEP if n >= SLOTS]
    flat = min(after / max(full[: k + 1]) for k, after in enumerate(full))
    checks = [
        at_least(
            "steps/s, share of n times that of one lane, while there are slots for n", 0.95, growing
        ),
        at_least(
            "steps/s with more lanes, share of the best with fewer, from there on", 0.95, flat
        ),
    ]
    if rows[0]["memory_mib"] is not None:
        more_mib = rows[-1]["memory_mib"] - rows[0]["memory_mib"]
        mib_a_lane = more_mib / (SWEEP[-1] - SWEEP[0])
        checks.append(at_most("MiB for each lane more, its steps included", 1.0, mib_a_lane))
    return Section(
        title="More and more lanes on 8 slots",
        about=(
            "Every reply has the same length here, so that only the harness can slow lanes down, and not one "
            f"lane's long replies at the end of a short rollout. {_command(scale, flags)}"
        ),
        rows=_shown(rows),
        checks=checks,
    )


def time_training(scale: Scale) -> Section:
    """A whole training run under `lanes`."""
    row = _train(scale)
    return Section(
        title="Whole training runs",
        about=(
            f"`mutagym train` with {TRAINING_LANES} lanes on {SLOTS} slots, mutators by model, the hashing "
            f"encoder and everything else by default, on a simulator with replies of `{LOGNORMAL}` tokens. "
            "Its seconds go from the start of the first rollout to the end of the last update: rollouts, "
            "updates, logs, checkpoints. The bound is the pace at which no slot would be idle in them."
        ),
        rows=[row],
        checks=[at_least("share of the bound", 0.90, row["of the bound"])],
    )


def time_seeds(scale: Scale) -> Section:
    """Several seeds side by side, and one alone."""
    alone, together = (_train_seeds(scale, seeds) for seeds in (1, SEEDS))
    return Section(
        title="Seeds side by side",
        about=(
            f"`mutagym train --seeds {SEEDS}` with {SEED_LANES} lanes a seed on {SLOTS} slots, otherwise as "
            "above, beside one seed alone. Slots busy by the server's own counts, from its first call until "
            "the first seed is over, its last update included, and until all are. What idles between the two "
            "is the last tail and the last update, with no other seed to fill them: as long in a long run."
        ),
        rows=[alone, together],
        checks=[
            at_least(
                f"slots busy under {SEEDS} seeds, until the first is done",
                0.99,
                together["busy, first"],
            ),
        ],
    )


def _train_seeds(scale: Scale, seeds: int) -> dict[str, Any]:
    steps = SEED_LANES * scale.num_steps * scale.seed_rollouts
    with EmbeddedServer(_settings(scale)) as server, tempfile.TemporaryDirectory() as folder:
        flags = _flags(scale, server.host, SEED_LANES, steps, Path(folder))
        with busy_slots(server) as busy_s:
            run_mutagym("train", flags | ({"--seeds": seeds} if seeds > 1 else {}))
        summary = read_json(Path(folder) / "summary.json")
        ends = [path.stat().st_mtime for path in Path(folder).glob("**/policy.safetensors")]
    began = max(at for at, busy in busy_s if not busy)
    last = max(ends)
    until = {end: [busy for at, busy in busy_s if at <= end][-1] for end in ends}
    return {
        "seeds": seeds,
        "lanes": seeds * SEED_LANES,
        "slots": SLOTS,
        "rollouts": scale.seed_rollouts,
        "steps": summary["env_steps"],
        "calls": summary["llm_calls"],
        "seconds": last - began,
        "steps/s": summary["env_steps"] / (last - began),
        "busy, first": until[min(ends)] / (SLOTS * (min(ends) - began)),
        "busy, all": until[last] / (SLOTS * (last - began)),
    }


@contextmanager
def busy_slots(server: EmbeddedServer) -> Iterator[list[tuple[float, float]]]:
    """Within `with`: a list grows of moments, and how many seconds slots were busy until then, in all."""
    seen: list[tuple[float, float]] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            seen.append((time.time(), server.stats()["busy_slot_s"]))
            over.wait(_LOOK_S)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join()


def _settings(scale: Scale) -> Settings:
    return Settings(slots=SLOTS, reply_tokens=LOGNORMAL, time_scale=scale.time_scale)


def _flags(scale: Scale, host: str, lanes: int, steps: int, folder: Path) -> dict[str, object]:
    """Those of a training."""
    return {
        "--ollama-host": host,
        "--target-model": MODEL,
        "--schedule": "lanes",
        "--num-processes": lanes,
        "--num-steps": scale.num_steps,
        "--num-env-steps": steps,
        "--mutators": ",".join(model_mutators()),
        "--encoder": "hashing",
        "--run-dir": folder,
    }


def _train(scale: Scale) -> dict[str, Any]:
    steps = TRAINING_LANES * scale.num_steps * scale.rollouts
    with EmbeddedServer(_settings(scale)) as server, tempfile.TemporaryDirectory() as folder:
        run_mutagym("train", _flags(scale, server.host, TRAINING_LANES, steps, Path(folder)))
        busy_s = server.stats()["busy_slot_s"]
        summary = read_json(Path(folder) / "summary.json")
    pace, bound = steps / summary["wall_s"], steps * SLOTS / busy_s
    return {
        "schedule": summary["schedule"],
        "lanes": summary["num_processes"],
        "slots": SLOTS,
        "rollouts": scale.rollouts,
        "steps": summary["env_steps"],
        "calls": summary["llm_calls"],
        "seconds": summary["wall_s"],
        "steps/s": pace,
        "bound": bound,
        "of the bound": pace / bound,
    }


def _shown(rows: Rows, *, speedup: bool = True) -> list[dict[str, Any]]:
    """Rows of `mutagym bench` under the document's headings."""
    columns = {key: title for key, title in COLUMNS.items() if speedup or key != "speedup"}
    return [{title: row[key] for key, title in columns.items()} for row in rows]


def summary_rows(rows: Rows) -> list[Mapping[str, Any]]:
    """The medians, and the rows that have none because there is one seed."""
    in_medians = {_group(row) for row in rows if row["seed"] is None}
    return [row for row in rows if row["seed"] is None or _group(row) not in in_medians]


def _bench(scale: Scale, flags: Mapping[str, object], *more: str) -> list[dict[str, Any]]:
    """The rows of one `mutagym bench`, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        run_mutagym(
            "bench", {**scale.flags(flags), "--ollama-host": EMBEDDED, "--json": path}, *more
        )
        rows: list[dict[str, Any]] = read_json(path)
    return rows


def _command(scale: Scale, flags: Mapping[str, object], *more: str) -> str:
    pairs = (f"{name} {value}" for name, value in scale.flags(flags).items())
    return f"`mutagym bench {' '.join([*pairs, *more])}`"


def _group(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["schedule"], row["num_processes"], row["max_workers"], row["slots"]


def _median(rows: Rows, schedule: str, key: str) -> float:
    """Over the seeds."""
    return float(next(row[key] for row in summary_rows(rows) if row["schedule"] == schedule))


def _ratio(rows: Rows, schedule: str) -> float:
    """The steps/s of lanes over those of another schedule: the median of the ratios seed by seed."""
    pace = {(row["schedule"], row["seed"]): row["env_steps_per_s"] for row in rows}
    seeds = [seed for named, seed in pace if named == schedule and seed is not None]
    return float(median(pace["lanes", seed] / pace[schedule, seed] for seed in seeds))


def _most_hashes(rows: Rows) -> int:
    """How many different transitions there are for one seed, at most."""
    hashes: dict[int, set[str]] = {}
    for row in rows:
        if row["seed"] is not None:
            hashes.setdefault(row["seed"], set()).add(row["transitions_sha256"])
    return max(map(len, hashes.values()))


if __name__ == "__main__":
    sys.exit(run("rollouts", "performance.md"))
