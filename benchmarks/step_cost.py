"""What a step of a lane costs in CPU time, with and without the HTTP client and the encoder.

python -m benchmarks.step_cost
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, Self
from unittest.mock import patch

from cli.bench import MODEL, Setting, World, ready, roll
from envs.queries import load_queries
from ollama_utils.client import OllamaClient
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import HashingEncoder
from simulator.process import EmbeddedServer
from simulator.settings import Settings

POOLS = ((32, 8), (128, 32))
"""Lanes and slots. Of two servers with as long replies, the one with more slots has each lane's code run more
often, and so from warmer caches."""
NUM_STEPS = 16
REPLY_TOKENS = "lognormal:mean=50,sigma=1.0"
RUNS = 3


def rows(
    *,
    pools: Sequence[tuple[int, int]] = POOLS,
    num_steps: int = NUM_STEPS,
    time_scale: float = 1.0,
    runs: int = RUNS,
) -> list[dict[str, Any]]:
    """One row for each number of lanes and slots, medians over runs, each of which has its own seed.

    All figures are CPU milliseconds a step, of all threads of this process. `cpu_ms_per_step` is that of a
    rollout under `lanes`. The same rollout once more, with a clock of each thread's CPU time around the
    client and around the encoder, gives `http_cpu_ms_per_step` and `encode_cpu_ms_per_step`: where they are
    called, for code that runs every few milliseconds costs several times what it does in a loop. What is
    left, `own_cpu_ms_per_step`, is spent by environments, schedule and dispatcher. `warm_cpu_ms_per_step` is
    the same rollout where the replies and rows of before come at once, so that nothing is left but this.
    """
    return [_row(lanes, slots, num_steps, time_scale, runs) for lanes, slots in pools]


def _row(lanes: int, slots: int, num_steps: int, time_scale: float, runs: int) -> dict[str, Any]:
    settings = Settings(slots=slots, reply_tokens=REPLY_TOKENS, time_scale=time_scale)
    with EmbeddedServer(settings) as server:
        measured = [_parts(server, lanes, num_steps, seed) for seed in range(runs)]
    medians = {key: round(median(each[key] for each in measured), 3) for key in measured[0]}
    steps = {"env_steps": lanes * num_steps, "runs": runs, "simulated": True}
    return {"num_processes": lanes, "slots": slots} | steps | medians


def _parts(server: EmbeddedServer, lanes: int, num_steps: int, seed: int) -> dict[str, float]:
    """One run's parts, in milliseconds a step."""
    cpu = _roll(server, lanes, num_steps, seed)
    client, encoder = _Watched(OllamaClient, "generate"), _Watched(HashingEncoder, "encode")
    _roll(server, lanes, num_steps, seed, client, encoder)
    client.knows = encoder.knows = True
    warm = _roll(server, lanes, num_steps, seed, client, encoder)
    http, encoding = (1000 * sum(each.spent_s) / (lanes * num_steps) for each in (client, encoder))
    return {
        "cpu_ms_per_step": cpu,
        "http_cpu_ms_per_step": http,
        "encode_cpu_ms_per_step": encoding,
        "own_cpu_ms_per_step": cpu - http - encoding,
        "warm_cpu_ms_per_step": warm,
    }


def _roll(server: EmbeddedServer, lanes: int, num_steps: int, seed: int, *watched: _Watched) -> float:
    """CPU milliseconds a step of a rollout like those of `mutagym bench`, whose reset is left out."""
    setting = Setting(schedule="lanes", num_processes=lanes, max_workers=None, seed=seed)
    queries = tuple(query.text for query in load_queries(None))
    world = World(host=server.host, model=MODEL, queries=queries, encoder="hashing", judge=False)
    with (
        Dispatcher([server.host], max_in_flight=max(64, lanes), cache_size=0) as dispatcher,
        ready(world, dispatcher, setting) as env,
        ExitStack() as watching,
    ):
        for each in watched:
            watching.enter_context(each)
        spent_s = roll(env, setting, num_steps).cpu_s
    return 1000 * spent_s / (lanes * num_steps)


class _Watched:
    """Within `with`: a method that counts its CPU time, and later gives what it gave before at once."""

    def __init__(self, owner: type, name: str) -> None:
        self.spent_s: list[float] = []
        """Of each call, on the thread that made it."""
        self.knows = False
        """Whether it gives what it gave before."""
        self._known: dict[str, Any] = {}
        self._method: Callable[..., Any] = getattr(owner, name)
        self._patch = patch.object(owner, name, lambda *given: self._call(*given))  # noqa: PLW0108 - to be bound

    def __enter__(self) -> Self:
        self._patch.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._patch.stop()

    def _call(self, owner: object, asked: object) -> Any:  # noqa: ANN401 - whatever the method gives
        if self.knows:
            return self._known[repr(asked)]
        began_s = time.thread_time()
        given = self._method(owner, asked)
        self.spent_s.append(time.thread_time() - began_s)
        self._known[repr(asked)] = given
        return given


if __name__ == "__main__":
    json.dump(rows(), sys.stdout, indent=2)
    print()
