"""What the process that drives a run spends: on a lane, and on a choice among servers.

python -m benchmarks.scaling
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

from benchmarks.reporting import Section, run
from cli.bench import MODEL, TimedMission
from envs.queries import load_queries
from ollama_utils.connect import Roles
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.servers import Servers
from ollama_utils.wires import open_client
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from train.timing import LaneConfig, Setting, ready

SLOTS = 8
"""Those of each server to choose from."""
SIZES = (64, 256, 1024)
"""Lanes, with half as many slots; replies last the longer the more there are: the pace is the same."""
POOLS = (1, 8, 100, 1000)
"""Servers to choose from."""
_LOOK_S = 0.05
_KIB = 1024


def sections(*, quick: bool) -> Iterator[Section]:
    """The driver's cost by lanes, and by servers."""
    yield Section(
        title="A lane",
        about=(
            "Lanes on one simulated server with half as many slots, the hashing encoder. Replies "
            "last the longer the more lanes there are, so that the servers' pace is the same in all rows; "
            "those of 1,024 lanes are streamed. "
            "Threads and open files are the most that were seen; memory is what came to it from before the "
            "lanes were made to the end, in a process of its own that ran two lanes before."
        ),
        rows=[
            _alone(by_lanes, lanes, 1 if quick else 3) for lanes in (SIZES[:1] if quick else SIZES)
        ],
    )
    yield Section(
        title="A choice among servers",
        about=(
            "CPU time of finding a call's place among servers that all have room, and of giving it back; no "
            "call is sent."
        ),
        rows=[by_servers(count) for count in POOLS],
    )


def _alone(
    measure: Callable[[int, int], dict[str, Any]], lanes: int, num_steps: int
) -> dict[str, Any]:
    """A row that a process of its own measures, once it has run two lanes."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(measure, 2, 2).result()
        return pool.submit(measure, lanes, num_steps).result()


def by_lanes(lanes: int, num_steps: int) -> dict[str, Any]:
    """A row for so many lanes."""
    settings = Settings(slots=lanes // 2, reply_tokens="50", time_scale=lanes / 50)
    with (
        EmbeddedServer(settings) as server,
        Dispatcher(
            [server.host], max_in_flight=lanes // 2 + 2, memory_bytes=0, timeout_s=600
        ) as dispatcher,
    ):
        roles = Roles(target=MODEL, mutator=MODEL, judge=None)
        lane = LaneConfig(roles=roles, queries=load_queries(None), mission=TimedMission())
        before_kib = _memory_kib()
        setting = Setting(schedule="lanes", num_processes=lanes, max_workers=lanes, seed=0)
        with ready(lane, dispatcher, setting) as roll, _Most() as most:
            spent_s = time.process_time()
            rollout = roll(num_steps)
            spent_s = time.process_time() - spent_s
            grown_kib = _memory_kib() - before_kib
    steps = lanes * num_steps
    return {
        "lanes": lanes,
        "slots": lanes // 2,
        "steps/s": round(steps / rollout.wall_s, 1),
        "driver CPU ms a step": round(1000 * spent_s / steps, 2),
        "MiB a lane": round(grown_kib / _KIB / lanes, 3),
        "threads": most.threads,
        "open files": most.files,
    }


def by_servers(count: int) -> dict[str, Any]:
    """A row for a choice among so many servers."""
    clients = [
        open_client(f"http://127.0.0.1:{port}", timeout_s=1.0) for port in range(1, count + 1)
    ]
    servers = Servers(clients, max_in_flight=SLOTS, max_outage_s=None)
    never = threading.Event()
    times = max(10, 10_000 // count)
    spent_s = time.process_time()
    for _ in range(times):
        servers.leave(servers.enter(MODEL, (), never))
    spent_s = time.process_time() - spent_s
    return {"servers": count, "CPU ms a choice": round(1000 * spent_s / times, 4)}


class _Most:
    """Within `with`: the most threads and open files of this process."""

    def __init__(self) -> None:
        self.threads = self.files = 0
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.threads = max(self.threads, len(list(Path("/proc/self/task").iterdir())))
            self.files = max(self.files, len(list(Path("/proc/self/fd").iterdir())))


def _memory_kib() -> int:
    """The memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // _KIB


if __name__ == "__main__":
    sys.exit(run("scaling", "scaling.md"))
