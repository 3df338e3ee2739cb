"""What a step of a lane costs in CPU time, with and without the HTTP client and the encoder.

python -m benchmarks.step_cost
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any, Self
from unittest.mock import patch

from benchmarks.commands import LOGNORMAL
from benchmarks.reporting import Section, at_most, run
from cli.bench import MODEL, TimedMission
from envs.queries import load_queries
from ollama_utils.connect import Roles
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import HashingEncoder
from ollama_utils.ollama import OllamaClient
from ollama_utils.sentence_encoder import MiniLMEncoder
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from train.timing import LaneConfig, Setting, ready

POOLS = ((32, 8, "hashing"), (128, 32, "hashing"), (32, 8, "all-MiniLM-L6-v2"))
"""Lanes, slots and encoder. Of two servers with as long replies, the one with more slots has each lane's code
run more often, and so from warmer caches."""

ENCODERS = {"hashing": HashingEncoder, "all-MiniLM-L6-v2": MiniLMEncoder}


def sections(*, quick: bool) -> Iterator[Section]:
    """The CPU time of a step."""
    num_steps, time_scale, runs = (2, 0.1, 1) if quick else (16, 1.0, 3)
    rows = [measure(*pool, num_steps, time_scale, runs) for pool in POOLS]
    yield Section(
        title="What a step costs",
        about=(
            "CPU milliseconds a step under `lanes`, then those of the HTTP client and of the encoder in the "
            "same rollout made once more; the rest is what environments, schedule and dispatcher take. Code "
            "that runs now and then starts from cold caches, all the more on a shared machine: the last "
            f"column is the rest where known replies and rows come at once. Medians of {runs} runs."
        ),
        rows=rows,
        checks=[
            at_most("CPU ms a step outside HTTP and encoding", 1.0, rows[0]["the rest"]),
            at_most("the same where replies come at once", 1.0, rows[0]["the rest, warm"]),
            at_most("CPU ms a step with all-MiniLM-L6-v2, in all", 5.0, rows[2]["CPU ms a step"]),
        ],
    )


def measure(
    lanes: int, slots: int, encoder: str, num_steps: int, time_scale: float, runs: int
) -> dict[str, Any]:
    """One row: medians over runs, each with its own seed, in CPU milliseconds a step of all threads.

    First that of a rollout under `lanes`. The same rollout once more, with a clock of each thread's CPU time
    around the client and around the encoder, gives those of HTTP and encoding: where they are called, for
    code that runs every few milliseconds costs several times what it does in a loop. The rest is spent by
    environments, schedule and dispatcher; warm it is that of the same rollout where the replies and rows of
    before come at once, so that nothing is left but this. all-MiniLM-L6-v2 computes on threads of its
    library: its texts are encoded once more by themselves, and the CPU time of the process is taken.
    """
    settings = Settings(slots=slots, reply_tokens=LOGNORMAL, time_scale=time_scale)
    with EmbeddedServer(settings) as server:
        measured = [_parts(server, lanes, encoder, num_steps, seed) for seed in range(runs)]
    medians = {key: round(median(each[key] for each in measured), 3) for key in measured[0]}
    return {
        "lanes": lanes,
        "slots": slots,
        "encoder": encoder,
        "steps": lanes * num_steps,
        **medians,
    }


def _parts(
    server: EmbeddedServer, lanes: int, name: str, num_steps: int, seed: int
) -> dict[str, float]:
    """One run's parts, in milliseconds a step."""
    cpu = _roll(server, lanes, name, num_steps, seed)
    client, encoder = _Timed(OllamaClient, "generate"), _Timed(ENCODERS[name], "encode")
    _roll(server, lanes, name, num_steps, seed, client, encoder)
    encoding_s = sum(encoder.spent_s) if name == "hashing" else encoder.again_s()
    client.replays = encoder.replays = True
    warm = _roll(server, lanes, name, num_steps, seed, client, encoder)
    http, encoding = (
        1000 * spent_s / (lanes * num_steps) for spent_s in (sum(client.spent_s), encoding_s)
    )
    return {
        "CPU ms a step": cpu,
        "of it HTTP": http,
        "of it encoding": encoding,
        "the rest": cpu - http - encoding,
        "the rest, warm": warm,
    }


def _roll(
    server: EmbeddedServer, lanes: int, encoder: str, num_steps: int, seed: int, *timed: _Timed
) -> float:
    """CPU milliseconds a step of a rollout like those of `mutagym bench`, whose reset is left out."""
    setting = Setting(schedule="lanes", num_processes=lanes, max_workers=lanes, seed=seed)
    roles = Roles(target=MODEL, mutator=MODEL, judge=None)
    mission = TimedMission(encoder=encoder)
    lane = LaneConfig(roles=roles, queries=load_queries(None), mission=mission)
    with (
        Dispatcher([server.host], max_in_flight=max(64, lanes), memory_bytes=0) as dispatcher,
        ready(lane, dispatcher, setting) as roll,
        ExitStack() as patches,
    ):
        for each in timed:
            patches.enter_context(each)
        spent_s = roll(num_steps).cpu_s
    return 1000 * spent_s / (lanes * num_steps)


class _Timed:
    """Within `with`: a method whose CPU time is added up, and whose earlier results can be given at once."""

    def __init__(self, owner: type, name: str) -> None:
        self.spent_s: list[float] = []
        """Of each call, on the thread that made it."""
        self.replays = False
        """Whether it returns what an equal call returned before."""
        self._results: dict[str, Any] = {}
        self._calls: list[Callable[[], Any]] = []
        self._method: Callable[..., Any] = getattr(owner, name)

        def call(owner: object, *given: object, **named: object) -> Any:  # noqa: ANN401 - whatever the method returns
            return self._call(owner, [*given, *named.values()][0], given, named)

        self._patch = patch.object(owner, name, call)

    def again_s(self) -> float:
        """CPU seconds of this process for the same calls, one after another."""
        began_s = time.process_time()
        for again in self._calls:
            again()
        return time.process_time() - began_s

    def __enter__(self) -> Self:
        self._patch.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._patch.stop()

    def _call(self, owner: object, argument: object, given: Any, named: Any) -> Any:  # noqa: ANN401 - the method's
        """The result of the method, which its first argument decides."""
        known = self._results.get(repr(argument))
        if (
            self.replays and known is not None
        ):  # which texts are new in a call depends on the others
            return known
        began_s = time.thread_time()
        result = self._method(owner, *given, **named)
        self.spent_s.append(time.thread_time() - began_s)
        self._results[repr(argument)] = result
        self._calls.append(partial(self._method, owner, *given, **named))
        return result


if __name__ == "__main__":
    sys.exit(run("step_cost", "performance.md"))
