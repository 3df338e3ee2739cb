"""Time the same rollout under each schedule, on one simulator, and show that all give the same transitions.

    mutagym bench --num-processes 16 --slots 16
    mutagym bench --max-workers 8,16 --reply-tokens lognormal:mean=64,sigma=1.0 --json rows.json

Every step makes a rewrite call and a question (with --judge a verdict too): mutators that work by rule and
the reply cache are left out, so that all schedules have the same number of calls to make. Slots and calls in
flight are the server's own figures.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from cyclopts import Parameter

from train.errors import RunStoppedError, UserError
from train.json_lines import LinesHash
from train.query_set import QueryConfig, load_query_set
from train.run_folder import check_writable
from train.server import EMBEDDED, Connection, ServerConfig, SimulatorConfig, connect
from train.settings import Count, Positive, Seed, comma_list

if TYPE_CHECKING:
    from envs.batched import BatchedQueryMutationEnv

COLUMNS = {
    "schedule": "schedule",
    "max_workers": "workers",
    "env_steps": "steps",
    "wall_s": "seconds",
    "env_steps_per_s": "steps/s",
    "speedup": "speed-up",
    "slot_utilisation": "slots busy",
}
"""Keys of a row shown to people, and what they are called there."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What is timed."""

    num_processes: Count = 16
    """Lanes."""
    num_steps: Count = 8
    """Steps of each lane."""
    slots: Count = 16
    """Calls the simulator's models serve at once."""
    max_workers: Annotated[tuple[str, ...], comma_list()] = ()
    """Threads of a phase; several by comma make a row each [one per lane]."""
    profile: str = "ideal"
    """The hardware whose speed is imitated."""
    reply_tokens: str = "64"
    """Reply length: a number, or `lognormal:mean=64,sigma=1.0`."""
    time_scale: Positive = 1.0
    """0.1 makes the simulated hardware ten times faster."""
    schedules: Annotated[tuple[str, ...], comma_list()] = ("sequential", "phased")
    """Schedules to time, by comma; the first is what the others are compared with."""
    encoder: str = "hashing"
    """Sentence encoder."""
    judge: bool = False
    """Let an LLM judge score each answer: a third call."""
    seed: Seed = 0
    """Decides queries, actions and replies."""
    json: Path | None = None
    """Write the rows here."""


def bench(config: BenchConfig = BenchConfig()) -> None:
    """Time the same rollout under each schedule, on one simulator."""
    simulator = SimulatorConfig(
        slots=config.slots,
        profile=config.profile,
        reply_tokens=config.reply_tokens,
        time_scale=config.time_scale,
    )
    server = ServerConfig(
        ollama_host=(EMBEDDED,), simulator=simulator, max_in_flight=max(64, config.num_processes)
    )
    rows: list[dict[str, Any]] = []
    plan = list(_plan(config))
    check_writable(config.json)
    with connect(server, cache_size=0) as connection:
        for schedule, max_workers in plan:
            env = _environment(config, connection, schedule, max_workers)
            print(f"{schedule} with {max_workers} workers ...", file=sys.stderr)
            rows.append(_measure(config, connection, env))
    base = rows[0]["env_steps_per_s"]
    rows = [{**row, "speedup": round(row["env_steps_per_s"] / base, 2)} for row in rows]
    _print_table(rows)
    if config.json:
        config.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if len({row["transitions_sha256"] for row in rows}) > 1:
        raise RunStoppedError(
            "transitions DIFFER between rows, which no schedule may cause: see the --json rows"
        )
    print("transitions: identical in all rows")


def _plan(config: BenchConfig) -> Iterator[tuple[str, int]]:
    """The (schedule, workers) of each row."""
    from envs.schedules import SCHEDULES

    if not config.schedules:
        raise UserError(f"--schedules is empty; expected some of {', '.join(SCHEDULES)}")
    for schedule in config.schedules:
        if schedule not in SCHEDULES:
            raise UserError(f"--schedules has {schedule!r}; expected some of {', '.join(SCHEDULES)}")
        if schedule == "sequential":
            yield schedule, 1
            continue
        for workers in config.max_workers or (str(config.num_processes),):
            if not workers.isdecimal() or int(workers) < 1:
                raise UserError(f"--max-workers has {workers!r}; expected numbers above 0")
            yield schedule, int(workers)


def _measure(config: BenchConfig, connection: Connection, env: BatchedQueryMutationEnv) -> dict[str, Any]:
    """One row: the rollout under one schedule, by wall clock, CPU clock and the server's own figures."""
    server = connection.embedded
    if server is None:
        raise UserError("bench reads the server's own figures: it runs on the embedded simulator alone")
    env.reset(seed=config.seed)
    server.reset_stats()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    digest = _roll(config, env)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    stats = server.stats()
    steps = config.num_steps * config.num_processes
    return {
        "schedule": env.schedule,
        "num_processes": config.num_processes,
        "max_workers": env.max_workers,
        "slots": config.slots,
        "env_steps": steps,
        "wall_s": round(wall_s, 3),
        "env_steps_per_s": round(steps / wall_s, 3),
        "slot_utilisation": round(stats["busy_slot_s"] / (config.slots * wall_s), 4),
        "max_in_flight": stats["max_in_flight"],
        "llm_calls": stats["calls"],
        "cpu_s_per_1000_calls": round(1000 * cpu_s / max(stats["calls"], 1), 3),
        "transitions_sha256": digest,
        "simulated": True,
    }


def _environment(
    config: BenchConfig, connection: Connection, schedule: str, max_workers: int
) -> BatchedQueryMutationEnv:
    """A row's environment, with an encoder of its own: no row finds its texts encoded by the one before."""
    from envs.batched import BatchedQueryMutationEnv
    from envs.parts import make_parts
    from mutators.registry import DEFAULT_MUTATORS, load_mutators
    from ollama_utils.errors import OllamaError

    try:
        env_config, parts = make_parts(
            connection.dispatcher,
            [query.text for query in load_query_set(QueryConfig()).train],
            target_model=connection.roles.target,
            mutator_model=connection.roles.mutator,
            judge_model=connection.roles.judge,
            encoder=config.encoder,
            reward="judge" if config.judge else "refusal",
            mutators=[m.name for m in load_mutators(DEFAULT_MUTATORS) if m.kind == "model"],
        )
    except (OllamaError, ValueError) as error:
        raise UserError(str(error)) from error
    return BatchedQueryMutationEnv(
        env_config,
        config.num_processes,
        schedule=schedule,  # type: ignore[arg-type] # checked by _plan
        max_workers=max_workers,
        **parts,
    )


def _roll(config: BenchConfig, env: BatchedQueryMutationEnv) -> str:
    """Uniformly random actions, the same under every schedule; returns the SHA-256 of the transitions."""
    from envs.sb3 import GymnasiumVecEnv
    from train.recorder import transition_record

    bridge = GymnasiumVecEnv(env)
    stream = np.random.default_rng(config.seed)
    digest = LinesHash()
    for row in range(config.num_steps):
        actions = stream.integers(env.envs[0].num_actions, size=env.num_envs)
        _, _, dones, infos = bridge.step(actions)
        for lane, (info, done) in enumerate(zip(infos, dones, strict=True)):
            digest.update(transition_record(row, lane, info, bool(done)))
    return digest.hexdigest()


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="simulated: one rollout under each schedule")
    for key, title in COLUMNS.items():
        table.add_column(title, justify="left" if key == "schedule" else "right")
    for row in rows:
        table.add_row(*(str(row[column]) for column in COLUMNS))
    Console().print(table)
