"""Time the same rollout under each schedule, and say whether all give the same transitions.

    mutagym bench --num-processes 16 --slots 8
    mutagym bench --ollama-host http://127.0.0.1:11434 --target-model llama3.2 --num-predict 64
    mutagym bench --schedules lanes --sweep-lanes 1,4,16,64,256 --slots 8

Every step makes a rewrite call and a question (with --judge a verdict too), all to one model and
its slots unless more are named: mutators that work by rule and the reply cache are left out, so
that all schedules have the same number of calls to make. There is a row for each combination of
lanes, schedules, workers and seeds, measured as `train/timing.py` says. On the simulator it is an
error if the transitions of rows that do the same work differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from cyclopts import Parameter

from cli.output import print_tables, write_json
from envs.mission import MissionConfig
from envs.query_sets import load_query_set
from mutators.registry import model_mutators
from ollama_utils.connect import Roles, ServerConfig, SimulatorConfig, connect
from records.errors import RunStoppedError, UserError
from records.outputs import check_writable
from records.progress import digits
from records.settings import MOST_LANES, Count, JsonPlace, Lanes, Positive, Seed, comma_list
from records.terminal import prints_on_stderr
from report.table import NONE, Table
from train.timing import SCHEDULES, LaneConfig, Setting, compared, time_rows

MODEL = "sim-model"
"""The simulator's model that plays target, mutator and judge, as the one model of a user who names
one."""
COLUMNS = {
    "schedule": "schedule",
    "num_processes": "lanes",
    "max_workers": "workers",
    "seed": "seed",
    "env_steps_per_s": "steps/s",
    "speedup": "speed-up",
    "slot_utilisation": "slots busy",
    "fraction_of_bound": "of bound",
    "cpu_ms_per_step": "CPU ms",
}
"""The keys of a row that the table shows, each with the name of its column."""
OF_EMBEDDED = {"memory_mib": "MiB", "startup_s": "start s"}
"""More columns, on the embedded simulator."""
OF_OTHERS = {"equal_replies": "equal replies"}
"""More columns, on any other server."""
OF_REPLIES = (
    "equal replies: the share of requests that got the same reply as in the first row with as many "
    "lanes and the same seed"
)


@Parameter(name="*", group="Simulator")
@dataclass(frozen=True, kw_only=True)
class TimedSimulator(SimulatorConfig):
    """The simulator at its own pace, with slots to be kept busy."""

    slots: Count = 16
    """Calls one model serves at once (OLLAMA_NUM_PARALLEL), also of `smollm2` and `gguf:`."""
    time_scale: Positive = 1.0
    """1 is 4 ms a token; 0.1 is ten times faster."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TimedServer(ServerConfig):
    """The server; a model that is not named is the target."""

    simulator: TimedSimulator = field(default_factory=TimedSimulator)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TimedMission(MissionConfig):
    """A mission whose steps all make as many calls, and which needs no weights of an encoder."""

    mutators: Annotated[tuple[str, ...], comma_list()] = field(default_factory=model_mutators)
    """Mutators to draw from, by comma [those by model]."""
    encoder: str = "hashing"
    """Sentence encoder."""


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
    max_workers: Annotated[tuple[str, ...], comma_list()] = ()
    """Threads of a phase, or most lanes at work; several by comma make a row each [one per
    lane]."""
    schedules: Annotated[tuple[str, ...], comma_list()] = ("sequential", "phased", "lanes")
    """Schedules to time, by comma: sequential, phased, lanes, gym-async, sb3-subproc."""
    judge: bool = False
    """Let an LLM judge score each answer, in place of --reward: a third call [to the target]."""
    seed: Seed = 0
    """Decides queries, actions and replies."""
    seeds: Count = 1
    """Rows for so many seeds from --seed on, and their medians; `sequential` with the first
    alone."""
    json: JsonPlace = None
    """Write the rows here, as JSON; `-` is stdout, in the place of the table."""
    mission: TimedMission = field(default_factory=TimedMission)
    server: TimedServer = field(default_factory=TimedServer)


def bench(config: BenchConfig = BenchConfig()) -> None:
    """Time the same rollout under each schedule, on one server."""
    plan = plan_rows(config)
    check_writable(config.json)
    if config.server.simulator.faults is not None:
        raise UserError("--faults hit each row of a benchmark differently: leave it out")
    mission = replace(config.mission, reward="judge") if config.judge else config.mission
    with prints_on_stderr():
        mission.check()
    queries = load_query_set(mission.query_set, mission.reward).train
    with connect(config.server, memory_bytes=0, simulated_target=MODEL) as connection:
        target = connection.roles.target
        mutator = config.server.mutator_model or target
        roles = Roles(target=target, mutator=mutator, judge=config.server.judge_model or target)
        lane = LaneConfig(mission=mission, roles=roles, queries=queries, server=config.server)
        with prints_on_stderr():
            rows = time_rows(lane, connection, plan, config.num_steps)
    report = compared(rows)
    others = ", ".join(
        dict.fromkeys(row["schedule"] for row in rows if not row["equal_transitions"])
    )
    if not write_json(report, config.json):
        columns = COLUMNS | (OF_EMBEDDED if connection.embedded else OF_OTHERS)
        models, slots = ", ".join(sorted(lane.models)), report[0]["slots"] or "unknown"
        table = Table(
            caption=f"One rollout under each schedule: {models}, slots: {slots}",
            columns=list(columns.values()),
            rows=[[_cell(key, row) for key in columns] for row in report],
        )
        line = "transitions: identical in all rows of as many lanes and the same seed"
        if others:
            line = f"transitions: not identical under {others}: equal requests got other replies"
        lines = [line] if connection.embedded else [OF_REPLIES, line]
        print_tables([table], lines, simulated=connection.simulated)
    if others and connection.simulated:
        raise RunStoppedError(
            f"transitions DIFFER under {others}, which no schedule may cause: see the --json rows"
        )


def plan_rows(config: BenchConfig) -> list[Setting]:
    """The settings of all rows, in their order; `sequential` is timed with the first seed alone."""
    if not config.schedules or not set(config.schedules) <= set(SCHEDULES):
        given, expected = ",".join(config.schedules), ", ".join(SCHEDULES)
        raise UserError(f"--schedules is {given!r}; expected some of {expected}, by comma")
    sweep = _counts(config.sweep_lanes, "--sweep-lanes") or [config.num_processes]
    pools = _counts(config.max_workers, "--max-workers")
    seeds = range(config.seed, config.seed + config.seeds)
    workers = {"sequential": [1], "phased": pools, "lanes": pools}
    return [
        Setting(schedule=schedule, num_processes=lanes, max_workers=most, seed=seed)
        for lanes in sweep
        for schedule in dict.fromkeys(config.schedules)
        for most in workers.get(schedule) or [lanes]
        for seed in (seeds[:1] if schedule == "sequential" else seeds)
    ]


def _counts(texts: Sequence[str], flag: str) -> list[int]:
    numbers = [int(text) if text.isdecimal() else 0 for text in texts]
    if not all(1 <= number <= MOST_LANES for number in numbers):
        given = ",".join(texts)
        raise UserError(f"{flag} has {given!r}; expected numbers from 1 to {MOST_LANES}")
    return list(dict.fromkeys(numbers))


def _cell(key: str, row: Mapping[str, Any]) -> str:
    value = row[key]
    if value is None:
        return "median" if key == "seed" else NONE
    if key == "equal_replies":
        return f"{int(100 * value)} % of {row['compared_replies']}"  # 100 % is all of them
    return digits(value) if isinstance(value, float) else str(value)
