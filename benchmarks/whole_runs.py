"""Whole training runs one call after another and batched: on the simulator, and on a small real model.

    python -m benchmarks.whole_runs --write    # some 25 minutes; nothing else may run meanwhile
    python -m benchmarks.whole_runs --quick    # small, to try it out: its figures have no meaning

A run is timed from the start of its process to its end. How much batching can gain is the server's to say:
on the real one the requests of the batched run are sent again by a plain client, a pool of threads without
lanes, limits or retries, with 1 and with 16 calls in flight. Runs are kept under runs/whole-runs; one that
is there, of the same code, is not made again.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.commands import LOGNORMAL, check_runs_of, read_json, run_mutagym
from benchmarks.reporting import Section, at_least, run
from ollama_utils.hosts import OPENAI
from ollama_utils.smollm2 import SmolLM2Server
from ollama_utils.types import Call
from ollama_utils.wires import open_client
from records.run_folder import REPLIES

SLOTS = 8
IN_FLIGHT = 16
"""Lanes of a training, and calls that the plain client has in flight."""
SPEEDUP = 5.0
"""How many times as fast batching is to be on the simulator."""
OF_PLAIN = 0.9
"""The share of the plain client's gain that batching is to have on the real server."""
_PATIENCE_S = 3600.0
"""Of 16 calls at once llama.cpp's server was seen to leave three in its queue until no more came: 246 s."""
REAL_SERVER: Mapping[str, object] = {"--ollama-host": "smollm2", "--num-predict": 24}
REAL = "SmolLM2"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is run."""

    simulated_steps: int = 512
    time_scale: float = 1.0
    """Of the simulator."""
    real_steps: int = 192
    """Two rollouts of all lanes: a training ends with a whole one."""
    bench_steps: int = 4
    """Steps of each lane where the schedules are compared."""
    work: Path = Path("runs/whole-runs")


QUICK = Plan(time_scale=0.1, real_steps=96, bench_steps=1, work=Path("runs/whole-runs-quick"))


def sections(*, quick: bool) -> Iterator[Section]:
    """Time whole runs, then the schedules."""
    plan = QUICK if quick else Plan()
    made = check_runs_of(plan.work, asdict(plan) | {"work": str(plan.work)})
    yield replace(_whole_runs(plan), made=made)
    yield replace(_schedules(plan), made=made)


def _whole_runs(plan: Plan) -> Section:
    rows, checks = [], []
    for number, (name, case) in enumerate(_cases(plan).items()):
        flags = {**case, "--slots": SLOTS, "--num-processes": IN_FLIGHT}
        one, batched = (
            timed(plan.work / f"{number}-{way}", _train, flags, way)
            for way in ("no-batching", "use-batching")
        )
        row: dict[str, Any] = {
            "server": name,
            "steps": read_json(plan.work / f"{number}-use-batching" / "summary.json")["env_steps"],
            "`--no-batching` s": one,
            "`--use-batching` s": batched,
            "times as fast": one / batched,
        }
        if name == REAL:
            replies = plan.work / f"{number}-use-batching" / REPLIES
            again = {
                calls: timed(
                    plan.work / f"{number}-plain-{calls}", replay, requests_of(replies), calls
                )
                for calls in (1, IN_FLIGHT)
            }
            row |= {"plain client, 1 s": again[1], f"plain client, {IN_FLIGHT} s": again[IN_FLIGHT]}
            share = (one / batched) / (again[1] / again[IN_FLIGHT])
            checks.append(at_least(f"{name}: share of the plain client's gain", OF_PLAIN, share))
        else:
            checks.append(at_least(f"{name}: times as fast", SPEEDUP, one / batched))
        rows.append(row)
    return Section(
        title="Whole training runs, one call after another and batched",
        about=(
            f"Seconds of `mutagym train` with the same seed, {SLOTS} slots and {IN_FLIGHT} lanes, from the "
            "start of the process to its end: imports, learning and saving are in them. Plain client: the "
            "requests of the batched run sent again to a new server, with 1 and with "
            f"{IN_FLIGHT} calls in flight and nothing else to do; its gain is what this server gives to "
            "these requests. On a CPU that is little: all replies are computed by the same cores, and a "
            "prompt is read no faster beside others than alone."
        ),
        rows=rows,
        checks=checks,
    )


def _cases(plan: Plan) -> dict[str, Mapping[str, object]]:
    """The servers and the flags of a training on them."""
    simulated = {
        "--ollama-host": "embedded",
        "--time-scale": plan.time_scale,
        "--num-env-steps": plan.simulated_steps,
    }
    return {
        "simulated, 50 tokens each": {**simulated, "--reply-tokens": "50"},
        f"simulated, {LOGNORMAL}": {**simulated, "--reply-tokens": LOGNORMAL},
        REAL: {**REAL_SERVER, "--num-steps": 6, "--num-env-steps": plan.real_steps},
    }


def timed(folder: Path, do: Callable[..., object], *arguments: object) -> float:
    """Seconds that something took which writes into a new folder; if it was done already, those of then."""
    file = folder / "timed.json"
    if not file.exists():
        shutil.rmtree(folder, ignore_errors=True)
        print(folder.name, "...", file=sys.stderr, flush=True)
        began_s = time.perf_counter()
        do(folder, *arguments)
        wall_s = time.perf_counter() - began_s
        folder.mkdir(exist_ok=True)
        file.write_text(json.dumps({"wall_s": wall_s}), encoding="utf-8")
    return float(read_json(file)["wall_s"])


def _train(folder: Path, flags: Mapping[str, object], way: str) -> None:
    run_mutagym("train", {**flags, "--run-dir": folder}, f"--{way}")


def requests_of(replies: Path) -> list[Call]:
    """The calls of a run, in the order of their replies; what it knew already is left out."""
    with closing(sqlite3.connect(replies)) as log:
        rows = log.execute(
            "SELECT model, request FROM replies WHERE attempts > 0 ORDER BY at_s"
        ).fetchall()
    calls = []
    for model, request in rows:
        fields = json.loads(request)
        examples = tuple((user, reply) for user, reply in fields.pop("examples", ()))
        calls.append(Call(model=model, examples=examples, **fields))
    return calls


def replay(_folder: Path, calls: Sequence[Call], in_flight: int) -> None:
    """Send calls to a new server, so many at once."""
    with SmolLM2Server(SLOTS) as server:
        client = open_client(f"{OPENAI}{server.host}/v1", timeout_s=_PATIENCE_S)
        with ThreadPoolExecutor(in_flight) as pool:
            list(pool.map(client.generate, calls))
        client.close()


def _schedules(plan: Plan) -> Section:
    file = plan.work / "schedules.json"
    if not file.exists():
        flags = {
            **REAL_SERVER,
            "--slots": SLOTS,
            "--num-processes": IN_FLIGHT,
            "--num-steps": plan.bench_steps,
            "--json": file,
        }
        run_mutagym("bench", flags)
    rows = [
        {
            "schedule": row["schedule"],
            "steps/s": row["env_steps_per_s"],
            f"slots busy of {SLOTS}": row["busy_slots"],
            "equal replies": row["equal_replies"],
            "of calls": row["compared_replies"],
            "CPU ms a step": row["cpu_ms_per_step"],
        }
        for row in read_json(file)
    ]
    return Section(
        title="SmolLM2 by schedule",
        about=(
            f"`mutagym bench --ollama-host smollm2`: the same rollout, {IN_FLIGHT} lanes of "
            f"{plan.bench_steps} steps, a rewording and an answer each step. *Equal replies*: of the calls "
            "that were made in the first row too, the share that got the same reply. *CPU*: of mutagym's "
            "process, the server's left out. The server keeps prompts that it has read, and every row finds "
            "its own among them. A training asks for new things and waits for prompts to be read, so that it "
            "gains less, as the table above shows."
        ),
        rows=rows,
    )


if __name__ == "__main__":
    sys.exit(run("whole_runs", "real.md"))
