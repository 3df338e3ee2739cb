"""One rollout, timed: the lanes under one schedule, what they take and what the server did meanwhile.

`measure` gives a row of `mutagym bench`. What it took is told by wall clock, by CPU clock, and by a `Meter`
of the server's slots and calls: `ServerMeter` asks the embedded simulator, which counts them itself,
`ClientMeter` adds up what the replies of any server told. CPU time and memory, read from /proc, are those of
this process and its workers, without the server.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from cyclopts import Parameter
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from numpy.typing import NDArray

from envs.batched import BatchedQueryMutationEnv
from envs.make import Parts, make_parts
from envs.mission import MissionConfig
from envs.models import Vector
from envs.queries import Query
from envs.query_mutation import EnvConfig, QueryMutationEnv
from mutators.registry import load_mutators, model_mutators
from ollama_utils.connect import Roles, ServerConfig
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.parallel import ParallelError, map_parallel
from ollama_utils.types import short_name
from records.settings import comma_list
from simulator.process import EmbeddedServer

AGAIN = "sequential again"
"""The schedule of a second sequential rollout: what differs between the two is no schedule's doing."""
_DRIVERS = {"phased8": "phased", AGAIN: "sequential"}
OF_PROCESSES = ("gym-async", "sb3-subproc")
"""Schedules with a process a lane, each with a dispatcher of its own."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one row is measured with."""

    schedule: str
    """As `--schedules` names it, or `AGAIN`."""
    num_processes: int
    """Lanes."""
    max_workers: int | None
    """Threads of a phase, or most lanes at work; None: as many as there are lanes."""
    seed: int

    @property
    def driver(self) -> str:
        """The schedule, or whose vector environment."""
        return _DRIVERS.get(self.schedule, self.schedule)

    @property
    def of_processes(self) -> bool:
        """Whether each lane is a process, with a dispatcher of its own."""
        return self.driver in OF_PROCESSES

    @property
    def workers(self) -> int:
        """How many calls there may be in flight."""
        return self.max_workers or self.num_processes

    def __str__(self) -> str:
        return f"{self.schedule}: {self.num_processes} lanes, {self.workers} workers, seed {self.seed}"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TimedMission(MissionConfig):
    """A mission whose steps all make as many calls, and which needs no weights of an encoder."""

    mutators: Annotated[tuple[str, ...], comma_list()] = field(default_factory=model_mutators)
    """Mutators to draw from, by comma [those by model]."""
    encoder: str = "hashing"
    """Sentence encoder."""


@dataclass(frozen=True, kw_only=True)
class World:
    """What every lane is, as plain data: a process of its own can make one, too."""

    hosts: tuple[str, ...]
    roles: Roles
    queries: tuple[Query, ...]
    mission: MissionConfig = field(default_factory=TimedMission)
    server: ServerConfig = field(default_factory=ServerConfig)
    """How patient the dispatcher of a process of its own is."""

    @property
    def judged(self) -> bool:
        """Whether a model is asked for verdicts."""
        return self.mission.reward == "judge" or self.mission.intent_judge

    @property
    def models(self) -> frozenset[str]:
        """The models that are called, by short name; each has slots of its own."""
        called = (self.roles.target, self.roles.mutator, self.roles.judge if self.judged else None)
        return frozenset(map(short_name, filter(None, called)))

    def parts(self, dispatcher: Dispatcher) -> tuple[EnvConfig, Parts]:
        """The config and the parts of an environment, its encoder new: no row finds its texts encoded.

        Raises:
            ValueError: a part cannot be made, such as an encoder that there is not.
            OllamaError: its model does not answer.
        """
        return make_parts(self.mission, dispatcher, self.roles, self.queries)

    def __call__(self) -> NotedSteps:
        """One environment with a dispatcher of its own, for a process of its own."""
        patience: dict[str, Any] = {
            "timeout_s": self.server.call_timeout_s,
            "attempts": self.server.call_attempts,
            "max_reply_chars": self.server.max_reply_chars,
        }
        config, parts = self.parts(Dispatcher(self.hosts, memory_bytes=0, **patience))
        return NotedSteps(QueryMutationEnv(config, **parts))


class LaneStep(NamedTuple):
    """What is kept of one step of a lane."""

    info: Mapping[str, Any]
    terminated: bool
    truncated: bool


Steps = Sequence[Sequence[LaneStep]]
"""Steps[row][lane]."""
Play = Callable[[NDArray[np.int64]], Steps]
"""Plays so many rows of actions (rows, lanes)."""


class NotedSteps(gymnasium.Wrapper[Vector, np.int64, Vector, np.int64]):
    """Keeps the steps of an environment, which is in a process of its own, until they are asked for."""

    def __init__(self, env: QueryMutationEnv) -> None:
        super().__init__(env)
        self.steps: list[LaneStep] = []

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """The environment's own step."""
        seen, reward, terminated, truncated, info = self.env.step(action)
        self.steps.append(LaneStep(info, terminated, truncated))
        return seen, float(reward), terminated, truncated, info


class Rollout(NamedTuple):
    """What a rollout gave, and what it took."""

    steps: Steps
    wall_s: float
    cpu_s: float
    """Of all threads of this process and of its workers."""


class Counted(NamedTuple):
    """What a server did during a rollout; None is what nobody could tell."""

    busy_slot_s: float | None
    """Seconds that calls held a slot, summed over slots."""
    max_in_flight: int | None
    calls: int | None
    failed: int | None
    completion_tokens: int


class Meter(Protocol):
    """Counts what the server does for a rollout."""

    @property
    def slots(self) -> int | None:
        """How many calls the models serve at once, together; None: not known (yet)."""

    def restart(self) -> None:
        """Count from here on."""

    def read(self, setting: Setting, steps: Steps) -> Counted:
        """What was counted during the rollout that gave these steps."""


class ServerMeter:
    """The embedded simulator's own counts.

    Args:
        server: the simulator.
        models: how many models are called.
    """

    def __init__(self, server: EmbeddedServer, models: int = 1) -> None:
        self._server = server
        self.slots = server.settings.slots * models

    def restart(self) -> None:
        """Count from here on."""
        self._server.reset_stats()

    def read(self, _setting: Setting, _steps: Steps) -> Counted:
        """What the server counted."""
        stats = self._server.stats()
        return Counted(
            busy_slot_s=stats["busy_slot_s"],
            max_in_flight=stats["max_in_flight"],
            calls=stats["calls"],
            failed=stats["failed"],
            completion_tokens=stats["completion_tokens"],
        )


class ClientMeter:
    """What the replies of any server told: slots, and seconds in them, where it reports how long it served.

    The calls of lanes in processes of their own are not seen; the tokens are those of all steps' rewordings
    and answers, wherever they were asked for.

    Args:
        dispatcher: where the calls go.
        models: the models that are called, by short name.
    """

    def __init__(self, dispatcher: Dispatcher, models: frozenset[str]) -> None:
        self._dispatcher = dispatcher
        self._models = models
        self.restart()

    @property
    def slots(self) -> int | None:
        """See `Servers.capacities`; None while it is not known of a model that was called."""
        found = self._dispatcher.servers.capacities().items()
        slots = [capacity.slots for (_, model), capacity in found if model in self._models]
        return sum(filter(None, slots)) if slots and None not in slots else None

    def restart(self) -> None:
        """Count from here on."""
        self._before = self._dispatcher.totals()

    def read(self, setting: Setting, steps: Steps) -> Counted:
        """What the replies told since then."""
        totals = self._dispatcher.totals()
        spent = {key: total - self._before[key] for key, total in totals.items()}
        seen = not setting.of_processes
        return Counted(
            busy_slot_s=(spent["busy_s"] or None) if seen else None,
            max_in_flight=None,
            calls=int(spent["calls"]) if seen else None,
            failed=int(spent["failures"]) if seen else None,
            completion_tokens=int(
                sum(step.info["usage"]["completion_tokens"] for row in steps for step in row)
            ),
        )


def measure(
    world: World, meter: Meter, dispatcher: Dispatcher, setting: Setting, num_steps: int
) -> tuple[dict[str, Any], Steps]:
    """One row, and its steps. The environments are made, reset and closed outside the timed window.

    `busy_slots` = busy_slot_s / wall_s, the mean number of slots that a call held: by the server's own count,
    or by what it reported of each call. `cpu_ms_per_step` is that of all threads of this process and its
    workers, the client's included; `startup_s` is making and the first reset.

    Raises:
        ValueError, OllamaError: the encoder is no good, or a query could not be embedded.
    """
    forget_peak()
    started_s = time.perf_counter()
    with ready(world, dispatcher, setting) as play:
        startup_s = time.perf_counter() - started_s
        meter.restart()
        rollout = roll(play, world, setting, num_steps)
        counted = meter.read(setting, rollout.steps)
        peak = peak_rss_mib()
    env_steps, wall_s, busy_s = setting.num_processes * num_steps, rollout.wall_s, counted.busy_slot_s
    row = {
        "schedule": setting.schedule,
        "num_processes": setting.num_processes,
        "max_workers": setting.workers,
        "seed": setting.seed,
        "env_steps": env_steps,
        "unscored_steps": sum(step.info["unscored"] for row in rollout.steps for step in row),
        "wall_s": round(wall_s, 3),
        "env_steps_per_s": env_steps / wall_s,
        "busy_slots": None if busy_s is None else round(busy_s / wall_s, 4),
        "max_in_flight": counted.max_in_flight,
        "llm_calls": counted.calls,
        "failed_calls": counted.failed,
        "completion_tokens": counted.completion_tokens,
        "cpu_ms_per_step": round(1000 * rollout.cpu_s / env_steps, 3),
        "cpu_s_per_1000_calls": None
        if counted.calls is None
        else round(1000 * rollout.cpu_s / max(counted.calls, 1), 3),
        "peak_rss_mib": None if peak is None else round(peak, 1),
        "startup_s": round(startup_s, 3),
    }
    return row, rollout.steps


@contextmanager
def ready(world: World, dispatcher: Dispatcher, setting: Setting) -> Iterator[Play]:
    """Within `with`: plays the lanes of a row, which are seeded and reset.

    Under `gym-async` (SAME_STEP) and `sb3-subproc` each lane is a process with a dispatcher of its own, as
    these vector environments come; under the others all are in this process and share `dispatcher`.

    Raises:
        ValueError, OllamaError: the encoder is no good, or a query could not be embedded.
    """
    # The seed of lane 0, lane i has i more: far apart for neighbouring seeds.
    seed = int(np.random.SeedSequence(setting.seed).generate_state(1)[0])
    lanes = setting.num_processes
    if setting.driver == "gym-async":
        with closing(AsyncVectorEnv([world] * lanes, autoreset_mode=AutoresetMode.SAME_STEP)) as apart:
            apart.reset(seed=seed)
            yield lambda actions: _play_apart(apart.step, apart.get_attr, actions)
    elif setting.driver == "sb3-subproc":
        from stable_baselines3.common.vec_env import SubprocVecEnv  # torch takes long to import

        with closing(SubprocVecEnv([world] * lanes)) as processes:
            processes.seed(seed)
            processes.reset()
            yield lambda actions: _play_apart(processes.step, processes.get_attr, actions)
    else:
        config, parts = world.parts(dispatcher)
        together = BatchedQueryMutationEnv(config, lanes, max_workers=setting.workers, **parts)
        together.reset(seed=seed)
        play = {"lanes": _play_lanes, "phased": _play_phased, "sequential": _play_sequentially}
        yield lambda actions: play[setting.driver](together, actions)


def roll(play: Play, world: World, setting: Setting, num_steps: int) -> Rollout:
    """So many steps of every lane, with uniformly random actions, the same under every schedule."""
    num_actions = len(load_mutators(world.mission.mutators))
    stream = np.random.default_rng(setting.seed)
    actions = stream.integers(num_actions, size=(num_steps, setting.num_processes))
    began_s, spent_s = time.perf_counter(), cpu_s()
    steps = play(actions)
    return Rollout(steps, time.perf_counter() - began_s, cpu_s() - spent_s)


def _play_sequentially(envs: BatchedQueryMutationEnv, actions: NDArray[np.int64]) -> Steps:
    """One step after another."""
    return [[_step(env, action) for env, action in zip(envs.envs, row, strict=True)] for row in actions]


def _play_phased(envs: BatchedQueryMutationEnv, actions: NDArray[np.int64]) -> Steps:
    """Row by row: all rewordings, then all questions, then all verdicts."""
    steps = []
    for row in actions:
        taken = envs.step_envs(row)
        for env, transition in zip(envs.envs, taken, strict=True):
            if transition.is_over:
                env.reset()
        steps.append([LaneStep(each.info, each.terminated, each.truncated) for each in taken])
    return steps


def _play_lanes(envs: BatchedQueryMutationEnv, actions: NDArray[np.int64]) -> Steps:
    """Each lane takes its steps on a thread of its own, and waits for no other."""
    places = threading.Semaphore(envs.max_workers)

    def play(lane: int) -> list[LaneStep]:
        steps = []
        for action in actions[:, lane]:
            with places:
                steps.append(_step(envs.envs[lane], action))
        return steps

    try:
        by_lane = map_parallel(play, range(envs.num_envs), envs.num_envs)
    except ParallelError as error:
        raise error.failures[min(error.failures)] from error
    return list(zip(*by_lane, strict=True))


def _play_apart(
    step: Callable[[NDArray[np.int64]], object],
    get_attr: Callable[[str], Sequence[Sequence[LaneStep]]],
    actions: NDArray[np.int64],
) -> Steps:
    """Row by row, each lane in a process of its own."""
    for row in actions:
        step(row)
    return list(zip(*get_attr("steps"), strict=True))


def _step(env: QueryMutationEnv, action: np.int64) -> LaneStep:
    """A step of one lane; where it ends its episode the next one begins."""
    _, _, terminated, truncated, info = env.step(action)
    if terminated or truncated:
        env.reset()
    return LaneStep(info, terminated, truncated)


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
    """The most memory that this process and its workers held, in MiB; None where /proc does not tell.

    Of each process what it holds now, where a page that n processes share counts 1/n (its PSS), and what it
    held more at its peak.
    """
    try:
        kib = sum(
            _kib(pid, "smaps_rollup", "Pss") + _kib(pid, "status", "VmHWM") - _kib(pid, "status", "VmRSS")
            for pid in (os.getpid(), *_worker_pids())
        )
    except (OSError, LookupError):  # no /proc, or a sandbox's, which lacks some files
        return None
    return kib / _KIB_PER_MIB


def _worker_pids() -> list[int]:
    if not _PROC.is_dir():
        return []
    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]


def _kib(pid: int, file: str, key: str) -> int:
    told = dict(line.split(":", 1) for line in _read(pid, file).splitlines() if ":" in line)
    return int(told[key].split()[0])


def _read(pid: int, file: str) -> str:
    return (_PROC / str(pid) / file).read_text(encoding="utf-8")
