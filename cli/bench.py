"""Time the same rollout under each schedule, on one simulator, and show that all give the same transitions.

    mutagym bench --num-processes 16 --slots 8
    mutagym bench --schedules phased --max-workers 8,16 --reply-tokens lognormal:mean=50,sigma=1.0
    mutagym bench --schedules lanes --sweep-lanes 1,4,16,64,256 --slots 8

Every step makes a rewrite call and a question (with --judge a verdict too), all to one model and its slots:
mutators that work by rule and the reply cache are left out, so that all schedules have the same number of
calls to make. There is a row for each combination of lanes, schedules, workers and seeds, measured by wall
clock, by CPU clock and by the server's own figures of its slots and calls (formulas are at `measure`). CPU
time and memory, read from /proc, are those of this process and its workers, without the simulator.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import numpy as np
from cyclopts import Parameter
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from cli.formats import WIDTH
from envs.batched import BatchedQueryMutationEnv
from envs.episode import transition_record
from envs.mission import MissionConfig, QueryConfig, load_query_set
from envs.parts import Parts, make_parts
from envs.query_mutation import EnvConfig, QueryMutationEnv
from envs.sb3 import GymnasiumVecEnv
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from ollama_utils.connect import (
    EMBEDDED,
    Connection,
    MaxInFlight,
    Roles,
    ServerConfig,
    SimulatorConfig,
    connect,
)
from ollama_utils.dispatcher import Dispatcher
from records.errors import RunStoppedError, UserError, as_user_error
from records.json_lines import LinesHash
from records.run_folder import check_writable
from records.settings import MOST_LANES, Count, Lanes, Positive, Seed, comma_list
from simulator.process import EmbeddedServer

SCHEDULES = ("sequential", "phased", "phased8", "lanes", "gym-async", "sb3-subproc")
"""What `--schedules` takes; `phased8` is `phased` with 8 workers."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one row is measured with."""

    schedule: str
    """As `--schedules` names it."""
    num_processes: int
    """Lanes."""
    max_workers: int | None
    """Threads of a phase, or most lanes at work; None: as many as there are lanes."""
    seed: int

    @property
    def driver(self) -> str:
        """The schedule, or whose vector environment."""
        return "phased" if self.schedule == "phased8" else self.schedule

    @property
    def workers(self) -> int:
        """How many calls there may be in flight."""
        return self.max_workers or self.num_processes

    def __str__(self) -> str:
        return f"{self.schedule}: {self.num_processes} lanes, {self.workers} workers, seed {self.seed}"


def plan_rows(
    *, schedules: Sequence[str], lanes: Sequence[str], max_workers: Sequence[str], seeds: range
) -> list[Setting]:
    """The settings of all rows, in their order; `sequential` is timed with the first seed alone.

    Raises:
        UserError: no schedule, an unknown one, or a number that is none.
    """
    expected = f"expected some of {', '.join(SCHEDULES)}"
    if not schedules:
        raise UserError(f"--schedules is empty; {expected}")
    for schedule in schedules:
        if schedule not in SCHEDULES:
            raise UserError(f"--schedules has {schedule!r}; {expected}")
    counts = list(dict.fromkeys(_count(text, "--sweep-lanes") for text in lanes))
    pools = list(dict.fromkeys(_count(text, "--max-workers") for text in max_workers))
    return [
        Setting(schedule=schedule, num_processes=count, max_workers=workers, seed=seed)
        for count in counts
        for schedule in dict.fromkeys(schedules)
        for workers in _workers(schedule, pools)
        for seed in (seeds[:1] if schedule == "sequential" else seeds)
    ]


def _workers(schedule: str, pools: Sequence[int]) -> Sequence[int | None]:
    """The numbers of workers that a schedule is timed with."""
    fixed: dict[str, Sequence[int | None]] = {"sequential": [1], "phased8": [8]}
    return fixed.get(schedule) or (pools if schedule in {"phased", "lanes"} and pools else [None])


def _count(text: str, flag: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_LANES:
        raise UserError(f"{flag} has {text!r}; expected numbers from 1 to {MOST_LANES}")
    return int(text)


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
    server = ServerConfig(
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
    with connect(server, cache_size=0) as connection:
        measured = _measure(config, plan, connection)

    rows = compared(measured)
    _print_table(rows)
    if config.json:
        config.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if others := differing(measured):
        raise RunStoppedError(
            f"transitions DIFFER under {', '.join(others)}, which no schedule may cause: see the --json rows"
        )
    print("transitions: identical in all rows of as many lanes and the same seed")


def _measure(config: BenchConfig, plan: Sequence[Setting], connection: Connection) -> list[dict[str, Any]]:
    """The rows as they are measured, each said on stderr."""
    from ollama_utils.errors import OllamaError

    if connection.embedded is None:
        raise UserError("bench reads the server's own figures: it runs on the embedded simulator alone")
    world = World(
        host=connection.dispatcher.hosts[0],
        model=MODEL,
        queries=tuple(query.text for query in load_query_set(QueryConfig()).train),
        encoder=config.encoder,
        judge=config.judge,
    )
    rows = []
    for setting in plan:
        print(f"{setting} ...", file=sys.stderr, flush=True)
        with as_user_error(OllamaError, ValueError):
            row, _ = measure(world, connection.embedded, connection.dispatcher, setting, config.num_steps)
        rows.append(row)
    return rows


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


@dataclass(frozen=True, kw_only=True)
class World:
    """What every lane is, as plain data: a process of its own can make one, too."""

    host: str
    model: str
    """Plays every role: its slots are all the slots there are."""
    queries: tuple[str, ...]
    encoder: str
    judge: bool

    def parts(self, dispatcher: Dispatcher) -> tuple[EnvConfig, Parts]:
        """The config and the parts of an environment, its encoder new: no row finds its texts encoded.

        Raises:
            ValueError: there is no such encoder.
            OllamaError: its model does not answer.
        """
        mission = MissionConfig(
            encoder=self.encoder,
            reward="judge" if self.judge else "refusal",
            mutators=tuple(each.name for each in load_mutators(DEFAULT_MUTATORS) if each.kind == "model"),
        )
        roles = Roles(target=self.model, mutator=self.model, judge=self.model)
        return make_parts(mission, dispatcher, roles, self.queries)

    def __call__(self) -> QueryMutationEnv:
        """One environment with a dispatcher of its own, for a process of its own."""
        config, parts = self.parts(Dispatcher([self.host], cache_size=0))
        return QueryMutationEnv(config, **parts)


def make_vec_env(world: World, dispatcher: Dispatcher, setting: Setting) -> VecEnv:
    """The lanes of a row.

    Under `gym-async` (SAME_STEP) and `sb3-subproc` each is a process with a dispatcher of its own, as these
    vector environments come; under the others all are in this process and share `dispatcher`.

    Raises:
        ValueError, OllamaError: see World.parts.
    """
    lanes = setting.num_processes
    if setting.driver == "gym-async":
        env = AsyncVectorEnv([world] * lanes, autoreset_mode=AutoresetMode.SAME_STEP)
        return GymnasiumVecEnv(env)
    if setting.driver == "sb3-subproc":
        return SubprocVecEnv([world] * lanes)
    config, parts = world.parts(dispatcher)
    more: dict[str, Any] = {"schedule": setting.driver, "max_workers": setting.max_workers}
    return GymnasiumVecEnv(BatchedQueryMutationEnv(config, lanes, **more, **parts))


_PROC = Path("/proc")
_FORGET_PEAK = "5"
_KIB_PER_MIB = 1024
_FIELDS_BEFORE_CPU = 11


def cpu_s() -> float:
    """CPU seconds so far of all threads of this process and its workers; of this one alone without /proc."""
    ticks = 0
    for pid in _worker_pids():
        fields = _read(pid, "stat").rpartition(")")[2].split()
        ticks += sum(map(int, fields[_FIELDS_BEFORE_CPU : _FIELDS_BEFORE_CPU + 2]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def forget_peak() -> None:
    """Let `peak_rss_mib` tell of what comes from now on, if the system lets us; else it tells of all."""
    with suppress(OSError):
        (_PROC / "self" / "clear_refs").write_text(_FORGET_PEAK, encoding="utf-8")


def peak_rss_mib() -> float | None:
    """The most memory that this process and its workers held, in MiB; None without /proc.

    Of each process what it holds now, where a page that n processes share counts 1/n (its PSS), and what it
    held more at its peak.
    """
    if not _PROC.is_dir():
        return None
    kib = sum(
        _kib(pid, "smaps_rollup", "Pss") + _kib(pid, "status", "VmHWM") - _kib(pid, "status", "VmRSS")
        for pid in (os.getpid(), *_worker_pids())
    )
    return kib / _KIB_PER_MIB


def _worker_pids() -> list[int]:
    if not _PROC.is_dir():
        return []
    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]


def _kib(pid: int, file: str, key: str) -> int:
    line = next(line for line in _read(pid, file).splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1])


def _read(pid: int, file: str) -> str:
    return (_PROC / str(pid) / file).read_text(encoding="utf-8")


Steps = list[list[tuple[Mapping[str, Any], bool]]]
"""Steps[row][lane]: the step's info, and whether it ended an episode."""
SAME_WORK = ("num_processes", "seed")
"""Rows that agree in these make the same transitions."""
GROUP = ("schedule", "num_processes", "max_workers")
"""Rows that agree in these differ in their seed alone."""


class Rollout(NamedTuple):
    """What a rollout gave, and what it took."""

    steps: Steps
    wall_s: float
    cpu_s: float
    """Of all threads of this process and of its workers."""


def measure(
    world: World, server: EmbeddedServer, dispatcher: Dispatcher, setting: Setting, num_steps: int
) -> tuple[dict[str, Any], Steps]:
    """One row, and its steps. The environments are made, reset and closed outside the timed window.

    `slot_utilisation` = busy_slot_s / (slots * wall_s), with the seconds that the server counted for its own
    slots. `bound_env_steps_per_s` = env_steps * min(slots, lanes) / busy_slot_s: the pace at which no slot
    would ever be idle, or with fewer lanes than slots no lane, for a lane makes one call at a time.
    `fraction_of_bound` = env_steps_per_s / bound_env_steps_per_s. `cpu_ms_per_step` is that of all threads of
    this process and its workers, the client's included; `startup_s` is making and the first reset.

    Raises:
        ValueError, OllamaError: the encoder is no good, or a query could not be embedded.
    """
    forget_peak()
    started_s = time.perf_counter()
    with ready(world, dispatcher, setting) as env:
        startup_s = time.perf_counter() - started_s
        server.reset_stats()
        rollout = roll(env, setting, num_steps)
        stats = server.stats()
        peak = peak_rss_mib()
    env_steps, slots, wall_s = setting.num_processes * num_steps, server.settings.slots, rollout.wall_s
    busy_s = stats["busy_slot_s"]
    bound = env_steps * min(slots, setting.num_processes) / busy_s
    row = {
        "schedule": setting.schedule,
        "num_processes": setting.num_processes,
        "max_workers": setting.workers,
        "slots": slots,
        "seed": setting.seed,
        "env_steps": env_steps,
        "wall_s": round(wall_s, 3),
        "env_steps_per_s": round(env_steps / wall_s, 3),
        "bound_env_steps_per_s": round(bound, 3),
        "fraction_of_bound": round(env_steps / wall_s / bound, 4),
        "slot_utilisation": round(busy_s / (slots * wall_s), 4),
        "max_in_flight": stats["max_in_flight"],
        "llm_calls": stats["calls"],
        "failed_calls": stats["failed"],
        "completion_tokens": stats["completion_tokens"],
        "cpu_ms_per_step": round(1000 * rollout.cpu_s / env_steps, 3),
        "cpu_s_per_1000_calls": round(1000 * rollout.cpu_s / max(stats["calls"], 1), 3),
        "peak_rss_mib": None if peak is None else round(peak, 1),
        "startup_s": round(startup_s, 3),
        "transitions_sha256": _sha256(rollout.steps),
        "simulated": True,
    }
    return row, rollout.steps


@contextmanager
def ready(world: World, dispatcher: Dispatcher, setting: Setting) -> Iterator[VecEnv]:
    """Within `with`: the environments of a row, seeded and reset.

    Raises:
        ValueError, OllamaError: the encoder is no good, or a query could not be embedded.
    """
    with closing(make_vec_env(world, dispatcher, setting)) as env:
        # The seed of lane 0, lane i has i more: far apart for neighbouring seeds.
        env.seed(int(np.random.SeedSequence(setting.seed).generate_state(1)[0]))
        env.reset()
        yield env


def roll(env: VecEnv, setting: Setting, num_steps: int) -> Rollout:
    """So many steps of every lane, with the actions that belong to the setting."""
    actions = _actions(setting, num_steps, int(env.action_space.n))  # type: ignore[attr-defined] # Discrete
    began_s, spent_s = time.perf_counter(), cpu_s()
    steps = _roll_lanes(env, actions) if setting.driver == "lanes" else _roll(env, actions)
    return Rollout(steps, time.perf_counter() - began_s, cpu_s() - spent_s)


def compared(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with their `speedup`, and behind those that differ in their seed alone a row of medians.

    `speedup` is how many times as many tokens a second the server wrote as in the first row. Rows of one seed
    and as many lanes have the same tokens to write, so for them it is the ratio of their steps/s; between
    other rows it leaves out that one seed's replies are longer than another's. A row of medians
    has `seeds` above 1, no `seed`, and None where its rows differ in anything that is no number.
    """
    base = rows[0]["completion_tokens"] / rows[0]["wall_s"]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        speedup = row["completion_tokens"] / row["wall_s"] / base
        groups.setdefault(tuple(row[key] for key in GROUP), []).append(
            {**row, "seeds": 1, "speedup": round(speedup, 2)}
        )
    return [
        row for group in groups.values() for row in (*group, *([_medians(group)] if len(group) > 1 else []))
    ]


def differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The schedules of rows that should have made the transitions of the first row like them, and did not."""
    first: dict[tuple[Any, ...], str] = {}
    return [
        str(row["schedule"])
        for row in rows
        if first.setdefault(tuple(row[key] for key in SAME_WORK), row["transitions_sha256"])
        != row["transitions_sha256"]
    ]


def _actions(setting: Setting, num_steps: int, num_actions: int) -> NDArray[np.int64]:
    """Uniformly random actions (steps, lanes), the same under every schedule."""
    stream = np.random.default_rng(setting.seed)
    return stream.integers(num_actions, size=(num_steps, setting.num_processes))


def _roll(env: VecEnv, actions: NDArray[np.int64]) -> Steps:
    """Row by row: every lane waits for all."""
    steps: Steps = []
    for row in actions:
        _, _, dones, infos = env.step(row)
        steps.append([(info, bool(done)) for info, done in zip(infos, dones, strict=True)])
    return steps


def _roll_lanes(env: VecEnv, actions: NDArray[np.int64]) -> Steps:
    """Each lane takes its steps, and waits for none."""
    if not isinstance(env, GymnasiumVecEnv):
        raise TypeError(f"expected lanes that can be stepped one by one, got {type(env).__name__!r}")
    num_steps, lanes = actions.shape
    taken: list[list[tuple[Mapping[str, Any], bool]]] = [[] for _ in range(lanes)]
    env.send(actions[0], range(lanes))
    left = actions.size
    while left:
        came = env.recv()
        left -= len(came)
        for step in came:
            taken[step.lane].append((step.info, step.done))
        going_on = [step.lane for step in came if len(taken[step.lane]) < num_steps]
        if going_on:
            env.send(np.array([actions[len(taken[lane]), lane] for lane in going_on]), going_on)
    return [list(row) for row in zip(*taken, strict=True)]


def _sha256(steps: Steps) -> str:
    """Of the transitions in (row, lane) order, whenever they came."""
    digest = LinesHash()
    for row, lanes in enumerate(steps):
        for lane, (info, done) in enumerate(lanes):
            digest.update(transition_record(row, lane, info, done))
    return digest.hexdigest()


def _medians(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: _median([row[key] for row in group]) for key in group[0]} | {
        "seed": None,
        "seeds": len(group),
    }


def _median(values: Sequence[Any]) -> Any:  # noqa: ANN401 - numbers, texts or None
    if all(value == values[0] for value in values):
        return values[0]
    return median(values) if all(isinstance(value, int | float) for value in values) else None
