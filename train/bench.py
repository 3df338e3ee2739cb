"""Time the same rollout under each schedule, on one simulator, and show that all give the same transitions.

    mutagym bench --num-processes 16 --slots 8
    mutagym bench --schedules phased --max-workers 8,16 --reply-tokens lognormal:mean=50,sigma=1.0
    mutagym bench --schedules lanes --sweep-lanes 1,4,16,64,256 --slots 8

Every step makes a rewrite call and a question (with --judge a verdict too), all to one model and its slots:
mutators that work by rule and the reply cache are left out, so that all schedules have the same number of
calls to make. Slots and calls in flight are the server's own figures; formulas are in `train/bench_rows.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from train.bench_plan import Setting, plan_rows
from train.errors import RunStoppedError, UserError
from train.query_set import QueryConfig, load_query_set
from train.run_folder import check_writable
from train.server import EMBEDDED, Connection, MaxInFlight, ServerConfig, SimulatorConfig, connect
from train.settings import Count, Lanes, Positive, Seed, comma_list

if TYPE_CHECKING:
    from train.bench_environments import World

MODEL = "sim-model"
"""Plays target, mutator and judge, as the one model of a user who names one."""
COLUMNS = {
    "schedule": "schedule",
    "num_processes": "lanes",
    "max_workers": "workers",
    "seed": "seed",
    "env_steps_per_s": "steps/s",
    "speedup": "speed-up",
    "slot_utilisation": "slots busy",
    "fraction_of_bound": "of bound",
    "peak_rss_mib": "MiB",
    "startup_s": "start s",
}
"""Keys of a row shown to people, and what they are called there."""
WIDTH = 110
"""Of the table where there is no terminal."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What is timed."""

    num_processes: Lanes = 16
    """Lanes."""
    sweep_lanes: Annotated[tuple[str, ...], comma_list()] = ()
    """Numbers of lanes, by comma, each with rows of its own; in place of --num-processes."""
    num_steps: Count = 8
    """Steps of each lane."""
    slots: Count = 16
    """Calls the simulator's model serves at once."""
    max_workers: Annotated[tuple[str, ...], comma_list()] = ()
    """Threads of a phase, or most lanes at work; several by comma make a row each [one per lane]."""
    max_in_flight: MaxInFlight = "auto"
    """Calls in flight at once; `auto` finds out how many keep the slots busy."""
    profile: str = "ideal"
    """The hardware whose speed is imitated."""
    reply_tokens: str = "64"
    """Reply length: a number, or `lognormal:mean=64,sigma=1.0`."""
    time_scale: Positive = 1.0
    """0.1 makes the simulated hardware ten times faster."""
    schedules: Annotated[tuple[str, ...], comma_list()] = ("sequential", "phased", "lanes")
    """Schedules to time, by comma: sequential, phased, phased8 (8 workers), lanes, gym-async, sb3-subproc."""
    encoder: str = "hashing"
    """Sentence encoder."""
    judge: bool = False
    """Let an LLM judge score each answer: a third call."""
    seed: Seed = 0
    """Decides queries, actions and replies."""
    seeds: Count = 1
    """Rows for so many seeds from --seed on, and their medians; `sequential` with the first alone."""
    json: Path | None = None
    """Write the rows here."""


def bench(config: BenchConfig = BenchConfig()) -> None:
    """Time the same rollout under each schedule, on one simulator."""
    plan = plan_rows(
        schedules=config.schedules,
        lanes=config.sweep_lanes or (str(config.num_processes),),
        max_workers=config.max_workers,
        seeds=range(config.seed, config.seed + config.seeds),
    )
    check_writable(config.json)
    with connect(_server(config), cache_size=0) as connection:
        measured = _measure(config, plan, connection)
    from train.bench_rows import compared, differing

    rows = compared(measured)
    _print_table(rows)
    if config.json:
        config.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if others := differing(measured):
        raise RunStoppedError(
            f"transitions DIFFER under {', '.join(others)}, which no schedule may cause: see the --json rows"
        )
    print("transitions: identical in all rows of as many lanes and the same seed")


def _server(config: BenchConfig) -> ServerConfig:
    return ServerConfig(
        ollama_host=(EMBEDDED,),
        target_model=MODEL,
        simulator=SimulatorConfig(
            slots=config.slots,
            profile=config.profile,
            reply_tokens=config.reply_tokens,
            time_scale=config.time_scale,
        ),
        max_in_flight=config.max_in_flight,
    )


def _measure(config: BenchConfig, plan: Sequence[Setting], connection: Connection) -> list[dict[str, Any]]:
    """The rows as they are measured, each said on stderr."""
    from ollama_utils.errors import OllamaError
    from train.bench_rows import measure

    if connection.embedded is None:
        raise UserError("bench reads the server's own figures: it runs on the embedded simulator alone")
    world = _world(config, connection)
    rows = []
    for setting in plan:
        print(f"{setting} ...", file=sys.stderr, flush=True)
        try:
            row, _ = measure(world, connection.embedded, connection.dispatcher, setting, config.num_steps)
        except (OllamaError, ValueError) as error:
            raise UserError(str(error)) from error
        rows.append(row)
    return rows


def _world(config: BenchConfig, connection: Connection) -> World:
    from train.bench_environments import World

    return World(
        host=connection.dispatcher.hosts[0],
        model=MODEL,
        queries=tuple(query.text for query in load_query_set(QueryConfig()).train),
        encoder=config.encoder,
        judge=config.judge,
    )


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="simulated: one rollout under each schedule")
    for key, title in COLUMNS.items():
        table.add_column(title, justify="left" if key == "schedule" else "right")
    for row in rows:
        table.add_row(*(_cell(key, row[key]) for key in COLUMNS))
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)


def _cell(key: str, value: Any) -> str:  # noqa: ANN401 - a number, a text or None
    if value is None:
        return "median" if key == "seed" else "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
