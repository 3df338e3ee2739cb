"""The same rollout timed under each schedule: how fast, how busy the server, the same transitions?

`lanes` and `phased` are played here by short loops of their own: actions are drawn beforehand, so
that neither a policy nor its updates take time. `train.ppo.LanePPO` plays trainings.

The simulator answers equal requests equally. Few real servers do, so on those the sequential
rollout is made twice, and each row says for what share of its calls the reply was that of the equal
call of the first row. Many servers cache the prompts that they have read, so on those every rollout
is made once before it is timed: in all rows the prompts are cached, and only the schedule differs.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from numpy.typing import NDArray

from envs.batched import BatchedQueryMutationEnv
from envs.make import rules_and_models
from envs.mission import MissionConfig
from envs.models import Vector
from envs.queries import Query
from envs.query_mutation import QueryMutationEnv
from envs.transitions import transition_record
from mutators.registry import load_mutators
from ollama_utils.connect import Connection, Roles, ServerConfig, open_dispatcher
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import OllamaError
from ollama_utils.parallel import iterate_parallel
from ollama_utils.types import short_name
from records.errors import RunStoppedError, as_user_error
from records.json_lines import LinesHash
from records.terminal import write_stderr

SCHEDULES = ("sequential", "phased", "lanes", "gym-async", "sb3-subproc")
"""The last two are vector environments of Gymnasium and Stable-Baselines3."""
OF_PROCESSES = ("gym-async", "sb3-subproc")
"""Schedules with a process a lane, each with a dispatcher of its own."""
AGAIN = "sequential again"
"""A second sequential rollout: what differs between the two is not due to a schedule."""

Actions = NDArray[np.int64]
"""(rows, lanes)."""
PlayedStep = tuple[Mapping[str, Any], bool, bool]
"""The info of a step, and whether its episode terminated or was truncated."""
Steps = Sequence[Sequence[PlayedStep]]
"""Steps[row][lane]."""
Calls = Mapping[Hashable, str]
"""The rewordings and answers of a rollout, each by everything that decides its call."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one row is measured with."""

    schedule: str
    """One of SCHEDULES, or AGAIN."""
    num_processes: int
    """Lanes."""
    max_workers: int
    """Threads of a phase, or the most lanes that step at once."""
    seed: int

    def __str__(self) -> str:
        lanes, workers = self.num_processes, self.max_workers
        return f"{self.schedule}: {lanes} lanes, {workers} workers, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class LaneConfig:
    """What a lane is made of, as plain data, so that another process can make one, too."""

    mission: MissionConfig
    roles: Roles
    queries: Sequence[Query]
    server: ServerConfig = field(default_factory=ServerConfig)
    """The settings of the dispatcher that a process of its own opens."""

    @property
    def models(self) -> set[str]:
        """The models that are called, by short name."""
        roles, is_judged = self.roles, self.mission.reward == "judge" or self.mission.intent_judge
        called = (roles.target, roles.mutator, roles.judge if is_judged else None)
        return set(map(short_name, filter(None, called)))

    def environments(self, dispatcher: Dispatcher, count: int) -> list[QueryMutationEnv]:
        """So many lanes that share their models.

        Raises:
            ValueError, OllamaError: see `envs.make.rules_and_models`.
        """
        rules, models = rules_and_models(self.mission, dispatcher, self.roles, self.queries)
        return [QueryMutationEnv(rules, models, self.queries) for _ in range(count)]


class Worker(gymnasium.Wrapper[Vector, np.int64, Vector, np.int64]):
    """A lane in a process of its own, which can be asked for its steps and its CPU time."""

    def __init__(self, lane: LaneConfig, hosts: Sequence[str]) -> None:
        dispatcher = open_dispatcher(lane.server, hosts, memory_bytes=0)
        super().__init__(lane.environments(dispatcher, 1)[0])
        self.steps: list[PlayedStep] = []

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """The environment's own step."""
        seen, reward, terminated, truncated, info = self.env.step(action)
        self.steps.append((info, terminated, truncated))
        return seen, float(reward), terminated, truncated, info

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the process so far."""
        return time.process_time()


def time_rows(
    lane: LaneConfig, connection: Connection, plan: Sequence[Setting], num_steps: int
) -> list[dict[str, Any]]:
    """A row for each setting of the plan, each announced on stderr; see `time_rollout`.

    A row is compared with the first one of as many lanes and the same seed. `compared_replies`
    counts the calls that both made, `equal_replies` is the share of these whose replies are equal,
    and `equal_transitions` says whether all transitions are.
    `slot_utilisation` = busy_slots / slots. `fraction_of_bound` is the pace as a share of that at
    which no slot would ever be idle, or with fewer lanes than slots no lane, for a lane makes one
    call at a time.

    Raises:
        UserError: the encoder cannot be used, or a query could not be embedded.
        RunStoppedError: no step of a rollout could be scored.
    """
    embedded = connection.embedded
    by_model = {each.name for each in load_mutators(lane.mission.mutators) if each.kind == "model"}
    firsts: dict[tuple[int, int], tuple[Calls, str]] = {}
    rows = []
    for setting in plan:
        work, schedules = (setting.num_processes, setting.seed), [setting.schedule]
        if not embedded and setting.schedule == "sequential":
            schedules.append(AGAIN)
        if not embedded and work not in firsts:
            write_stderr(f"warming up, not counted: {setting.num_processes} lanes ...")
            warm_up = replace(setting, schedule="lanes", max_workers=setting.num_processes)
            time_rollout(lane, connection, warm_up, num_steps)
        for timed in [replace(setting, schedule=schedule) for schedule in schedules]:
            write_stderr(f"{timed} ...")
            row, lines = time_rollout(lane, connection, timed, num_steps)
            calls, sha256 = calls_of(lines, by_model), row["transitions_sha256"]
            first_calls, first_sha256 = firsts.setdefault(work, (calls, sha256))
            row |= equal_replies(first_calls, {} if first_calls is calls else calls)
            rows.append(row | {"equal_transitions": sha256 == first_sha256})
    # Last, for some servers show their slots in the course of the calls.
    capacities = connection.dispatcher.servers.capacities().items()
    found = [capacity.slots for (_, model), capacity in capacities if model in lane.models]
    slots = sum(filter(None, found)) if found and None not in found else None
    if embedded:
        slots = embedded.settings.slots * len(lane.models)
    for row in rows:
        busy, known = row["busy_slots"], slots or 0
        bound = min(known, row["num_processes"])
        row |= {
            "slots": slots,
            "slot_utilisation": round(busy / known, 4) if known and busy else None,
            "fraction_of_bound": round(busy / bound, 4) if known and busy else None,
        }
    return rows


def time_rollout(
    lane: LaneConfig, connection: Connection, setting: Setting, num_steps: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One row, and the lines of its steps, as in transitions.jsonl, in (row, lane) order.

    Actions are uniformly random, the same under every schedule.

    `busy_slots` is the mean number of slots that a call held: by the embedded simulator's own
    count, or by what the server reported of each call. What nobody counts is None, as the calls of
    other processes to another server are. `startup_s`, in which the lanes are made and reset, is no
    part of `wall_s`. Raises as `time_rows` does.
    """
    dispatcher, embedded = connection.dispatcher, connection.embedded
    has_workers = setting.schedule in OF_PROCESSES
    shape, num_actions = (num_steps, setting.num_processes), len(lane.mission.mutators)
    actions = np.random.default_rng(setting.seed).integers(num_actions, size=shape)
    started_s = time.perf_counter()
    with (
        as_user_error(OllamaError, ValueError),
        closing(_ready(lane, dispatcher, setting)) as vector,
    ):

        def cpu_s() -> float:
            workers = vector.get_attr("cpu_s") if has_workers else ()
            return time.process_time() + float(sum(workers))

        startup_s = time.perf_counter() - started_s
        before = embedded.reset_stats() if embedded else dispatcher.totals()
        spent_s, began_s = cpu_s(), time.perf_counter()
        steps = _PLAYED[setting.schedule](vector, actions)
        wall_s, spent_s = time.perf_counter() - began_s, cpu_s() - spent_s
        memory = memory_mib()
        counted: dict[str, Any] = {}
        if embedded:
            counted = embedded.stats()
        elif not has_workers:
            spent = {key: total - before[key] for key, total in dispatcher.totals().items()}
            counted = {"calls": int(spent["calls"]), "busy_slot_s": spent["busy_s"] or None}
    lines = [
        transition_record(row, column, info, terminated=terminated, truncated=truncated)
        for row, lanes in enumerate(steps)
        for column, (info, terminated, truncated) in enumerate(lanes)
    ]
    env_steps, busy_slot_s = len(lines), counted.get("busy_slot_s")
    errors = [line["not_hashed"]["error_message"] for line in lines if line["unscored"]]
    if len(errors) == env_steps:
        raise RunStoppedError(f"{setting}: no step could be scored: {errors[0]}")
    if errors:
        unscored = f"{len(errors)} of {env_steps} steps could not be scored"
        write_stderr(f"{setting}: {unscored}: {errors[0]}")
    row = {
        **asdict(setting),
        "env_steps": env_steps,
        "unscored_steps": len(errors),
        "wall_s": round(wall_s, 3),
        "env_steps_per_s": env_steps / wall_s,
        "busy_slots": None if busy_slot_s is None else round(busy_slot_s / wall_s, 4),
        "llm_calls": counted.get("calls"),
        "completion_tokens": sum(line["completion_tokens"] for line in lines),
        "cpu_ms_per_step": round(1000 * spent_s / env_steps, 3),
        "memory_mib": memory,
        "startup_s": round(startup_s, 3),
        "transitions_sha256": LinesHash(lines).hexdigest(),
        "simulated": connection.simulated,
    }
    return row, lines


def _ready(lane: LaneConfig, dispatcher: Dispatcher, setting: Setting) -> Any:  # noqa: ANN401 - Gymnasium's or SB3's
    """A vector environment of the lanes, seeded and reset.

    Under `gym-async` and `sb3-subproc` each lane is a process with a dispatcher of its own, as
    these vector environments come; under the others all share `dispatcher` in this process.
    """
    # The seed of lane 0, lane i has i more: far apart for neighbouring seeds.
    seed = int(np.random.SeedSequence(setting.seed).generate_state(1)[0])
    workers: list[Any] = [partial(Worker, lane, dispatcher.hosts)] * setting.num_processes
    if setting.schedule == "sb3-subproc":
        from stable_baselines3.common.vec_env import SubprocVecEnv  # torch takes long to import

        of_sb3 = SubprocVecEnv(workers)
        of_sb3.seed(seed)
        try:
            of_sb3.reset()
        except BaseException:
            for process in of_sb3.processes:  # `close` breaks where a worker did
                process.terminate()
            raise
        return of_sb3
    vector: Any
    if setting.schedule == "gym-async":
        vector = AsyncVectorEnv(workers, autoreset_mode=AutoresetMode.SAME_STEP)
    else:
        envs = lane.environments(dispatcher, setting.num_processes)
        vector = BatchedQueryMutationEnv(envs, max_workers=setting.max_workers)
    try:
        vector.reset(seed=seed)
    except BaseException:
        vector.close(terminate=True)
        raise
    return vector


def _play_phased(vector: BatchedQueryMutationEnv, actions: Actions) -> Steps:
    """Row by row: all rewordings, then all questions, then all verdicts."""
    rows = []
    for row in actions:
        steps = vector.step_envs(row)
        rows.append([(step.info, step.terminated, step.truncated) for step in steps])
        for env, step in zip(vector.envs, steps, strict=True):
            if step.is_over:
                env.reset()
    return rows


def _play_lanes(vector: BatchedQueryMutationEnv, actions: Actions) -> Steps:
    """Each lane takes its steps on a thread of its own, at most `max_workers` lanes at once."""
    places = threading.Semaphore(vector.max_workers)

    def play(lane: int) -> list[PlayedStep]:
        env, steps = vector.envs[lane], list[PlayedStep]()
        for action in actions[:, lane]:
            with places:
                _, _, terminated, truncated, info = env.step(action)
                if terminated or truncated:
                    env.reset()
            steps.append((info, terminated, truncated))
        return steps

    by_lane = iterate_parallel(play, range(vector.num_envs), vector.num_envs)
    return list(zip(*by_lane, strict=True))


def _play_apart(vector: Any, actions: Actions) -> Steps:  # noqa: ANN401 - Gymnasium's or SB3's
    """Row by row, each lane in a process of its own."""
    for row in actions:
        vector.step(row)
    return list(zip(*vector.get_attr("steps"), strict=True))


_PLAYED: Mapping[str, Callable[[Any, Actions], Steps]] = {
    **dict.fromkeys(("sequential", AGAIN, "lanes"), _play_lanes),
    "phased": _play_phased,
    **dict.fromkeys(OF_PROCESSES, _play_apart),
}


def memory_mib() -> float | None:
    """What this process and its workers hold now; None where /proc does not say.

    A page that n processes share counts 1/n for each (PSS): workers share most of theirs.
    """
    pids = ("self", *(child.pid for child in multiprocessing.active_children()))
    try:
        files = [Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii") for pid in pids]
    except OSError:
        return None
    lines = [line.split() for file in files for line in file.splitlines()]
    kib = sum(int(words[1]) for words in lines if words[0] == "Pss:")
    return round(kib / 1024, 1)


def calls_of(lines: Iterable[Mapping[str, Any]], by_model: Container[str]) -> Calls:
    """The calls of a rollout; a judge's are left out, and those of steps that could not be scored.

    A rewording depends on the queries of the episode so far, an answer on the query that was asked.
    The seeds of both depend on lane, episode, step and attempt.
    """
    calls: dict[Hashable, str] = {}
    queries: dict[Hashable, list[str]] = {}
    for line in lines:
        episode = line["lane"], line["episode_number"]
        so_far = queries.setdefault(episode, [])
        if line["query_before"] not in so_far[-1:]:
            so_far.append(line["query_before"])
        if line["unscored"]:
            continue
        step = (*episode, line["step_number"], line["attempt"])
        if line["mutator"] in by_model:
            calls[*step, line["mutator"], *so_far] = line["mutated_query"]
        asked = line["mutated_query"] if line["adopted"] else line["query_before"]
        calls[*step, asked] = line["reply"]
    return calls


def equal_replies(first: Calls, second: Calls) -> dict[str, Any]:
    """`compared_replies`: calls that both made; `equal_replies`: the share with equal replies."""
    both = first.keys() & second.keys()
    equal = sum(first[call] == second[call] for call in both)
    share = round(equal / len(both), 4) if both else None
    return {"equal_replies": share, "compared_replies": len(both)}


def compared(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with their `speedup`, and after rows that differ in their seed alone their medians.

    `speedup` is how many times as many tokens a second the server wrote as in the first row. Rows
    of one seed and as many lanes have the same tokens to write, so for them it is the ratio of
    their steps/s; between other rows it leaves out that one seed's replies are longer than
    another's, as it does on a server whose replies differ. It is None where the server reports no
    tokens. A row of medians has `seeds` above 1, and no `seed`; what is no number, or of one seed,
    is None where its rows differ in it.
    """
    base = rows[0]["completion_tokens"] / rows[0]["wall_s"]
    groups: dict[Hashable, list[dict[str, Any]]] = {}
    for row in rows:
        speedup = round(row["completion_tokens"] / row["wall_s"] / base, 2) if base else None
        group = groups.setdefault((row["schedule"], row["num_processes"], row["max_workers"]), [])
        group.append({**row, "seeds": 1, "speedup": speedup})
    for group in groups.values():
        if len(group) > 1:
            medians = {key: _median([row[key] for row in group]) for key in group[0]}
            of_one_seed = dict.fromkeys(("seed", "equal_replies", "compared_replies"))
            group.append(medians | of_one_seed | {"seeds": len(group)})
    return [row for group in groups.values() for row in group]


def _median(values: Sequence[Any]) -> Any:  # noqa: ANN401 - numbers, texts, flags or None
    if all(value == values[0] for value in values):
        return values[0]
    return median(values) if all(type(value) in {int, float} for value in values) else None
