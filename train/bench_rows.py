"""One row of bench: a rollout under one schedule, by wall clock, CPU clock and the server's own figures."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from envs.sb3 import GymnasiumVecEnv
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.simulator.process import EmbeddedServer
from train.bench_environments import World, make_vec_env
from train.bench_plan import Setting
from train.bench_resources import cpu_s, forget_peak, peak_rss_mib
from train.json_lines import LinesHash
from train.transitions import transition_record

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
    env_steps, steps = setting.num_processes * num_steps, rollout.steps
    figures = _figures(setting, env_steps, server.settings.slots, rollout.wall_s, stats)
    more = {
        "cpu_ms_per_step": round(1000 * rollout.cpu_s / env_steps, 3),
        "cpu_s_per_1000_calls": round(1000 * rollout.cpu_s / max(stats["calls"], 1), 3),
        "peak_rss_mib": None if peak is None else round(peak, 1),
        "startup_s": round(startup_s, 3),
        "transitions_sha256": _sha256(steps),
        "simulated": True,
    }
    return figures | more, steps


@contextmanager
def ready(world: World, dispatcher: Dispatcher, setting: Setting) -> Iterator[VecEnv]:
    """Within `with`: the environments of a row, seeded and reset.

    Raises:
        ValueError, OllamaError: the encoder is no good, or a query could not be embedded.
    """
    with closing(make_vec_env(world, dispatcher, setting)) as env:
        env.seed(_lane_seed(setting.seed))
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


def _figures(
    setting: Setting, env_steps: int, slots: int, wall_s: float, stats: Mapping[str, Any]
) -> dict[str, Any]:
    """What wall clock and server say; for the formulas see `measure`."""
    busy_s = stats["busy_slot_s"]
    bound = env_steps * min(slots, setting.num_processes) / busy_s
    return {
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
    }


def _lane_seed(seed: int) -> int:
    """The seed of lane 0; lane i has i more. Far apart for neighbouring seeds."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0])


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
