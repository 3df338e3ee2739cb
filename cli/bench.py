"""Time the same rollout under each schedule, on one server, and say whether all give the same transitions.

    mutagym bench --num-processes 16 --slots 8
    mutagym bench --ollama-host http://127.0.0.1:11434 --target-model llama3.2 --num-predict 64
    mutagym bench --schedules phased --max-workers 8,16 --reply-tokens lognormal:mean=50,sigma=1.0
    mutagym bench --schedules lanes --sweep-lanes 1,4,16,64,256 --slots 8

Every step makes a rewrite call and a question (with --judge a verdict too), all to one model and its slots
unless more are named: mutators that work by rule and the reply cache are left out, so that all schedules have
the same number of calls to make. There is a row for each combination of lanes, schedules, workers and seeds,
measured as `cli/timed_rollout.py` says.

The simulator answers equal requests equally: there it is an error if transitions differ. Few real servers
do, so on those the sequential rollout is made twice, and each row says which share of its calls got the reply
that an equal call got in the first row. Many keep the prompts they have read, so on those every rollout is
made once beforehand, not counted: all rows find their prompts read, and differ in their schedule alone.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median
from typing import Annotated, Any

from cyclopts import Parameter

from cli.formats import WIDTH, prints_on_stderr, write_json
from cli.timed_rollout import (
    AGAIN,
    ClientMeter,
    Meter,
    ServerMeter,
    Setting,
    Steps,
    TimedMission,
    World,
    measure,
)
from envs.query_sets import load_query_set
from envs.transitions import transition_record
from mutators.registry import load_mutators
from ollama_utils.connect import Connection, Roles, ServerConfig, SimulatorConfig, connect
from records.errors import RunStoppedError, UserError, as_user_error
from records.json_lines import LinesHash
from records.outputs import check_writable
from records.settings import MOST_LANES, Count, JsonPlace, Lanes, Positive, Seed, comma_list
from records.terminal import printable, write_stderr

SCHEDULES = ("sequential", "phased", "phased8", "lanes", "gym-async", "sb3-subproc")
"""What `--schedules` takes; `phased8` is `phased` with 8 workers."""
MODEL = "sim-model"
"""The simulator's model that plays target, mutator and judge, as the one model of a user who names one."""
SAME_WORK = ("num_processes", "seed")
"""Rows that agree in these make the same transitions, on a server that answers equal requests equally."""
GROUP = ("schedule", "num_processes", "max_workers")
"""Rows that agree in these differ in their seed alone."""
COLUMNS = {
    "schedule": "schedule",
    "num_processes": "lanes",
    "max_workers": "workers",
    "seed": "seed",
    "env_steps_per_s": "steps/s",
    "speedup": "speed-up",
    "slot_utilisation": "slots busy",
    "fraction_of_bound": "of bound",
}
"""Keys of a row shown to people, and what they are called there."""
OF_CLIENT = {"peak_rss_mib": "MiB", "startup_s": "start s"}
"""Shown beside them on the embedded simulator ..."""
EQUAL = "equal_replies"
OF_REPLIES = {EQUAL: "equal replies"}
"""... and in their place on any other server."""


@Parameter(name="*", group="Simulator")
@dataclass(frozen=True, kw_only=True)
class TimedSimulator(SimulatorConfig):
    """The simulator at its own pace, with slots to be kept busy."""

    slots: Count = 16
    """Calls one model serves at once (OLLAMA_NUM_PARALLEL); also those of `--ollama-host smollm2`."""
    time_scale: Positive = 1.0
    """1 is 4 ms a token; 0.1 is ten times faster, 0 answers at once."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TimedServer(ServerConfig):
    """The server; a model that is not named is the target."""

    simulator: TimedSimulator = field(default_factory=TimedSimulator)


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
    """Threads of a phase, or most lanes at work; several by comma make a row each [one per lane]."""
    schedules: Annotated[tuple[str, ...], comma_list()] = ("sequential", "phased", "lanes")
    """Schedules to time, by comma: sequential, phased, phased8 (8 workers), lanes, gym-async, sb3-subproc."""
    judge: bool = False
    """Let an LLM judge score each answer, in place of --reward: a third call [to the target]."""
    seed: Seed = 0
    """Decides queries, actions and replies."""
    seeds: Count = 1
    """Rows for so many seeds from --seed on, and their medians; `sequential` with the first alone."""
    json: JsonPlace = None
    """Write the rows here, as JSON; `-` is stdout, in the place of the table."""
    mission: TimedMission = field(default_factory=TimedMission)
    server: TimedServer = field(default_factory=TimedServer)


def bench(config: BenchConfig = BenchConfig()) -> None:
    """Time the same rollout under each schedule, on one server."""
    plan = plan_rows(
        schedules=config.schedules,
        lanes=config.sweep_lanes or (str(config.num_processes),),
        max_workers=config.max_workers,
        seeds=range(config.seed, config.seed + config.seeds),
    )
    check_writable(config.json)
    if config.server.simulator.faults is not None:
        raise UserError(
            "--faults hit the rows of a benchmark differently, so nothing can be told: leave it out"
        )
    mission = replace(config.mission, reward="judge") if config.judge else config.mission
    with prints_on_stderr():
        mission.check()
    queries = load_query_set(mission.query_set, mission.reward).train
    with connect(config.server, memory_bytes=0, simulated_target=MODEL) as connection:
        world = World(
            hosts=connection.dispatcher.hosts,
            roles=timed_roles(config.server, connection),
            queries=queries,
            mission=mission,
            server=config.server,
        )
        with prints_on_stderr():
            measured = _measure(world, plan, connection, config.num_steps)

    rows = compared(measured)
    if write_json(rows, config.json):
        _check_equal(measured, connection)
    else:
        _print_table(rows, world, connection)
        _say_whether_equal(measured, connection)


def timed_roles(config: ServerConfig, connection: Connection) -> Roles:
    """All roles have one model and its slots, unless others are named."""
    target = connection.roles.target
    return Roles(target=target, mutator=config.mutator_model or target, judge=config.judge_model or target)


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


def _measure(
    world: World, plan: Sequence[Setting], connection: Connection, num_steps: int
) -> list[dict[str, Any]]:
    """The rows as they are measured, each said on stderr."""
    dispatcher, simulator = connection.dispatcher, connection.embedded
    by_model = {each.name for each in load_mutators(world.mission.mutators) if each.kind == "model"}
    meter: Meter = (
        ServerMeter(simulator, len(world.models)) if simulator else ClientMeter(dispatcher, world.models)
    )
    if simulator is None:
        plan = _with_repeats(plan)
    rows: list[dict[str, Any]] = []
    firsts: dict[tuple[Any, ...], Calls] = {}
    for setting in plan:
        work = tuple(getattr(setting, key) for key in SAME_WORK)
        if simulator is None and work not in firsts:
            _warm_up(world, meter, connection, setting, num_steps)
        write_stderr(f"{setting} ...")
        row, steps = timed_rollout(world, meter, connection, setting, num_steps)
        calls = calls_of(steps, by_model)
        first = firsts.setdefault(work, calls)
        same = equal_replies(first, calls) if first is not calls else equal_replies({}, {})
        sha256 = {"transitions_sha256": _sha256(steps), "simulated": connection.simulated}
        rows.append(row | same | sha256)
    return [row | _of_slots(row, meter.slots) for row in rows]


def _warm_up(world: World, meter: Meter, connection: Connection, setting: Setting, num_steps: int) -> None:
    """Do a row's work once: models are loaded, and a server that keeps prompts it has read has these."""
    write_stderr(f"warming up, not counted: {setting.num_processes} lanes ...")
    timed_rollout(world, meter, connection, replace(setting, schedule="lanes", max_workers=None), num_steps)


def _with_repeats(plan: Sequence[Setting]) -> list[Setting]:
    """The plan with each sequential rollout made twice."""
    twice = (
        [setting, replace(setting, schedule=AGAIN)] if setting.schedule == "sequential" else [setting]
        for setting in plan
    )
    return list(chain.from_iterable(twice))


def timed_rollout(
    world: World, meter: Meter, connection: Connection, setting: Setting, num_steps: int
) -> tuple[dict[str, Any], Steps]:
    """One row and its steps; those that could not be scored are said, and an error if they are all."""
    from ollama_utils.errors import OllamaError

    with as_user_error(OllamaError, ValueError):
        row, steps = measure(world, meter, connection.dispatcher, setting, num_steps)
    errors = [step.info["error"] for lanes in steps for step in lanes if step.info["unscored"]]
    if len(errors) == row["env_steps"]:
        raise RunStoppedError(f"{setting}: no step could be scored: {errors[0]}")
    if errors:
        write_stderr(f"{setting}: {len(errors)} of {row['env_steps']} steps could not be scored: {errors[0]}")
    return row, steps


def _of_slots(row: Mapping[str, Any], slots: int | None) -> dict[str, Any]:
    """What a row makes of the slots; None where they, or how long they were busy, are not known.

    `slot_utilisation` = busy_slots / slots. `bound_env_steps_per_s` = env_steps * min(slots, lanes) /
    busy_slot_s: the pace at which no slot would ever be idle, or with fewer lanes than slots no lane, for a
    lane makes one call at a time. `fraction_of_bound` = env_steps_per_s / bound_env_steps_per_s.
    """
    busy = row["busy_slots"]
    if not slots or not busy:
        unknown = dict.fromkeys(("slot_utilisation", "bound_env_steps_per_s", "fraction_of_bound"))
        return {"slots": slots, **unknown}
    fraction = busy / min(slots, row["num_processes"])
    return {
        "slots": slots,
        "slot_utilisation": round(busy / slots, 4),
        "bound_env_steps_per_s": row["env_steps_per_s"] / fraction,
        "fraction_of_bound": round(fraction, 4),
    }


Calls = Mapping[Hashable, str]
"""The rewordings and answers of a rollout, each by all that decides the call it came of."""


def calls_of(steps: Steps, by_model: Container[str]) -> Calls:
    """The calls of a rollout; a judge's are left out, and those of steps that could not be scored.

    Args:
        steps: the rollout's.
        by_model: the mutators that ask a model for their rewordings.

    A rewording depends on the queries of the episode so far, an answer on the query that was asked. The seeds
    of both depend on lane, episode, step and attempt.
    """
    calls: dict[Hashable, str] = {}
    for lane, taken in enumerate(zip(*steps, strict=True)):
        episode, queries = -1, [""]
        for info, _, _ in taken:
            if info["episode_number"] != episode:
                episode, queries = info["episode_number"], [info["original_query"]]
            if info["query_before"] != queries[-1]:
                queries.append(info["query_before"])
            if info["unscored"]:
                continue
            step = (lane, episode, info["step_number"], info["attempt"])
            asked = info["mutated_query"] if info["adopted"] else info["query_before"]
            if info["mutator"] in by_model:
                calls[*step, info["mutator"], *queries] = info["mutated_query"]
            calls[*step, asked] = info["reply"]
    return calls


def equal_replies(first: Calls, second: Calls) -> dict[str, Any]:
    """`compared_replies`: calls that both rollouts made; `equal_replies`: the share with the same reply."""
    both = first.keys() & second.keys()
    equal = sum(first[call] == second[call] for call in both)
    return {EQUAL: round(equal / len(both), 4) if both else None, "compared_replies": len(both)}


def compared(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with their `speedup`, and behind those that differ in their seed alone a row of medians.

    `speedup` is how many times as many tokens a second the server wrote as in the first row. Rows of one seed
    and as many lanes have the same tokens to write, so for them it is the ratio of their steps/s; between
    other rows it leaves out that one seed's replies are longer than another's, as it does on a server whose
    replies differ. It is None where the server tells no tokens. A row of medians has `seeds` above 1, no
    `seed`, no equal replies (they are those of a seed), and None where its rows differ in anything that is no
    number.
    """
    base = rows[0]["completion_tokens"] / rows[0]["wall_s"]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        speedup = round(row["completion_tokens"] / row["wall_s"] / base, 2) if base else None
        groups.setdefault(tuple(row[key] for key in GROUP), []).append(
            {**row, "seeds": 1, "speedup": speedup}
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


def _sha256(steps: Steps) -> str:
    """Of the transitions in (row, lane) order, whenever they came."""
    digest = LinesHash()
    for row, lanes in enumerate(steps):
        for lane, (info, terminated, truncated) in enumerate(lanes):
            digest.update(transition_record(row, lane, info, terminated=terminated, truncated=truncated))
    return digest.hexdigest()


def _medians(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: _median([row[key] for row in group]) for key in group[0]} | {
        "seed": None,
        "seeds": len(group),
        EQUAL: None,
        "compared_replies": None,
    }


def _median(values: Sequence[Any]) -> Any:  # noqa: ANN401 - numbers, texts or None
    if all(value == values[0] for value in values):
        return values[0]
    return median(values) if all(isinstance(value, int | float) for value in values) else None


def _print_table(rows: Sequence[dict[str, Any]], world: World, connection: Connection) -> None:
    from rich.console import Console
    from rich.table import Table

    from cli.tables import print_table

    columns = COLUMNS | (OF_CLIENT if connection.embedded else OF_REPLIES)
    table = Table(title=f"{printable(_what(rows, world, connection))}: one rollout under each schedule")
    for key, title in columns.items():
        table.add_column(title, justify="left" if key == "schedule" else "right")
    for row in rows:
        table.add_row(*(_cell(key, row) for key in columns))
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH
    print_table(table, console)


def _what(rows: Sequence[dict[str, Any]], world: World, connection: Connection) -> str:
    """What the figures are of."""
    if connection.simulated:
        return "simulated"
    slots = rows[0]["slots"]
    return f"{', '.join(sorted(world.models))}, {slots or 'unknown'} {'slot' if slots == 1 else 'slots'}"


def _cell(key: str, row: Mapping[str, Any]) -> str:
    value = row[key]
    if value is None:
        return "median" if key == "seed" else "-"
    if key == EQUAL:
        return f"{int(100 * value)} % of {row['compared_replies']:g}"  # 100 % is all of them
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _check_equal(measured: Sequence[Mapping[str, Any]], connection: Connection) -> str:
    """The schedules whose transitions differ from the first row's.

    Raises:
        RunStoppedError: there are some, on the simulator.
    """
    others = ", ".join(dict.fromkeys(differing(measured)))
    if others and connection.simulated:
        raise RunStoppedError(
            f"transitions DIFFER under {others}, which no schedule may cause: see the --json rows"
        )
    return others


def _say_whether_equal(measured: Sequence[Mapping[str, Any]], connection: Connection) -> None:
    """Say it; on the simulator it is an error if transitions differ."""
    others = _check_equal(measured, connection)
    if not connection.embedded:
        print(
            "equal replies: of the rewordings and answers asked for as in the first row of as many lanes and "
            "the same seed"
        )
    if others:
        print(f"transitions: not identical under {others}: this server answers equal requests unequally")
    else:
        print("transitions: identical in all rows of as many lanes and the same seed")
