"""How busy an evolving population keeps a server.

    python -m benchmarks.search --only equal evolution generations

All counts are the server's own.
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.reporting import Section, at_least, at_most
from benchmarks.search_speed import MODEL, Scale, Watched, serving
from search.evolution import (
    AsyncEvaluationPipeline,
    AsyncEvolutionConfig,
    AsyncEvolutionController,
    Generation,
    Genome,
)
from search.task import Task, bundled_task
from simulator.process import EmbeddedServer

_LOOK_EVERY = 25
"""Calls between two looks at the server's counts."""


def time_equal(scale: Scale) -> Section:
    """A population on a panel whose replies all take as long: what is lost is lost between the calls."""
    return _timed(scale, "25", "of 25 tokens (0.1 s) each", seeds=1, title=", equal replies")


def time_evolution(scale: Scale) -> Section:
    """The same with replies of which some take long, and may be the last."""
    tokens = "lognormal:mean=25,sigma=1.0"
    section = _timed(
        scale,
        tokens,
        f"of `{tokens}` tokens (0.1 s on the mean)",
        seeds=scale.runs,
        title="lognormal replies",
    )
    busy = median(row["slots_busy"] for row in section.rows if row["cap"] != 1)
    return replace(section, checks=[*section.checks, at_least("slots busy, median", 0.93, busy)])


def _timed(scale: Scale, tokens: str, shown: str, *, seeds: int, title: str = "") -> Section:
    """A population on a panel, one call at a time and ten at once."""
    genomes = [Genome(f"Answer the question in the manner of guide {k}.") for k in range(30)]
    everyday = bundled_task()
    task = Task(name=everyday.name, problems=everyday.problems[:50], scorer=everyday.scorer)
    fast, slow = (
        [_population(scale, genomes, task, tokens, cap=cap, seed=run) for run in range(seeds)]
        for cap in (10, 1)
    )
    for together, alone in zip(fast, slow, strict=True):
        together["speedup"], alone["speedup"] = alone["wall_s"] / together["wall_s"], 1.0
    return Section(
        title=f"Evolution: 30 genomes on 50 problems{title}",
        about=(
            f"`AsyncEvaluationPipeline` on 10 slots, replies {shown}, early stopping off, so that all 1,500 "
            "calls are made; `max_concurrent_requests=10`, and the same with one call at a time. *Slots "
            "busy* leaves the last calls aside; *seconds* do not, and how long the last replies are depends "
            "on the seed."
        ),
        rows=[*fast, *slow],
        columns={
            "cap": "max_concurrent_requests",
            "seed": "seed",
            "calls": "calls",
            "wall_s": "seconds",
            "calls_per_s": "calls/s",
            "speedup": "times faster",
            "max_in_flight": "most in flight",
            "slots_busy": "slots busy",
        },
        checks=[
            at_least("times faster than one at a time, median", 9.5, median(row["speedup"] for row in fast)),
            at_least("most in flight", 10, min(row["max_in_flight"] for row in fast)),
            at_most("most in flight", 10, max(row["max_in_flight"] for row in fast)),
        ],
    )


def _population(
    scale: Scale, genomes: list[Genome], task: Task, tokens: str, *, cap: int, seed: int
) -> dict[str, Any]:
    calls = len(genomes) * len(task.problems)
    with serving(scale, 10, tokens, seed=seed) as (server, dispatcher):
        watched = Watched(dispatcher, cap, server=server, calls=calls)
        config = AsyncEvolutionConfig(
            max_concurrent_requests=cap,
            population_size=len(genomes),
            early_stop_level=None,
            rate_limit_per_minute=None,
        )
        pipeline = AsyncEvaluationPipeline(watched, task, model=MODEL, config=config)
        server.reset_stats()
        began_s = time.perf_counter()
        pipeline.evaluate(genomes)
        wall_s = time.perf_counter() - began_s
        stats = server.stats()
    return {
        "cap": cap,
        "seed": seed,
        "calls": stats["calls"],
        "wall_s": wall_s,
        "calls_per_s": stats["calls"] / wall_s,
        "max_in_flight": stats["max_in_flight"],
        "slots_busy": watched.busy / cap,
    }


class Windows:
    """Of each generation: the slots that were busy on average until its last calls went out."""

    def __init__(self, server: EmbeddedServer, cap: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self._server, self._cap = server, cap
        self._ended = 0
        self._begun = self._stats()
        self._begun_at = 0
        self._looks: list[tuple[int, dict[str, Any]]] = []

    def tick(self) -> None:
        """A call ended."""
        self._ended += 1
        if self._ended % _LOOK_EVERY == 0:
            self._looks.append((self._ended, self._stats()))

    def generation(self, record: Generation) -> None:
        """A generation is over; with its last `cap` calls nothing waits any more."""
        last = max((look for look in self._looks if look[0] <= self._ended - self._cap), default=None)
        calls = self._ended - self._begun_at
        if last is not None and calls > 2 * self._cap:
            busy_s = last[1]["busy_slot_s"] - self._begun["busy_slot_s"]
            busy = busy_s / (last[1]["window_s"] - self._begun["window_s"])
            self.rows.append(
                {"generation": record.generation, "calls": calls, "slots_busy": busy / self._cap}
            )
        self._begun, self._begun_at, self._looks = self._stats(), self._ended, []

    def _stats(self) -> dict[str, Any]:
        return self._server.stats()


def time_generations(scale: Scale) -> Section:
    """A whole evolution, rewordings by model and early stopping included."""
    cap = 10
    with serving(scale, cap, "lognormal:mean=50,sigma=1.0") as (server, dispatcher):
        config = AsyncEvolutionConfig(
            population_size=30,
            max_generations=4,
            panel_size=50,
            max_concurrent_requests=cap,
            rate_limit_per_minute=None,
        )
        server.reset_stats()
        windows = Windows(server, cap)
        AsyncEvolutionController(
            config,
            dispatcher=dispatcher,
            model=MODEL,
            mutator_model="sim-mutator",
            on_generation=windows.generation,
            tick=windows.tick,
        ).run_evolution()
        most = server.stats()["max_in_flight"]
    return Section(
        title="Evolution: slots busy, generation by generation",
        about=(
            "`AsyncEvolutionController`, 30 genomes on 50 problems, cap 10, with rewording calls and early "
            "stopping, replies lognormal (0.2 s on the mean); the last 10 calls of each generation aside."
        ),
        rows=windows.rows,
        columns={"generation": "generation", "calls": "calls", "slots_busy": "slots busy"},
        checks=[
            at_least("slots busy, median", 0.93, median(row["slots_busy"] for row in windows.rows)),
            at_most("most in flight", cap, most),
        ],
    )
