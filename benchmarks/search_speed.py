"""How busy searches keep a server: candidates, an evolving population, the selection of combinations.

python -m benchmarks.search_speed

All counts are the server's own (`GET /simulator/stats`). A window that leaves the last calls aside ends when
the last call goes out: from then on there is nothing to put into a slot that falls free.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks.commands import LOGNORMAL
from benchmarks.reporting import Section, at_least, at_most, run
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call, Completion
from search import (
    AsyncEvaluationPipeline,
    AsyncEvolutionConfig,
    AsyncEvolutionController,
    generate_candidates,
    generate_candidates_parallel,
    make_selector,
)
from search.call_pool import CallPool
from search.evolution import Generation, Genome
from search.selectors.task_evaluation import TaskEvaluation
from search.task import Task, bundled_task
from simulator.process import EmbeddedServer
from simulator.settings import Settings

MODEL = "sim-solver"
POPULATION, PANEL, CAP = 30, 50, 10
"""Genomes, problems and calls in flight of the evolutions."""
_LOOK_EVERY = 25
"""Calls between two looks at the server's counts, of a whole evolution."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How thoroughly is measured."""

    runs: int = 3
    """Of each case whose median is shown."""
    time_scale: float = 1.0


def sections(*, quick: bool) -> Iterator[Section]:
    """All tables, in the order of the document."""
    scale = Scale(runs=1, time_scale=0.05) if quick else Scale()
    yield time_candidates(scale)
    yield time_equal_replies(scale)
    yield time_population(scale)
    yield time_generations(scale)
    yield time_selection(scale)


@contextmanager
def serving(
    scale: Scale, slots: int, reply_tokens: str, seed: int = 0
) -> Iterator[tuple[EmbeddedServer, Dispatcher]]:
    """A simulator, and a dispatcher that knows its slots, with its connections open."""
    settings = Settings(slots=slots, reply_tokens=reply_tokens, time_scale=scale.time_scale, seed=seed)
    with (
        EmbeddedServer(settings) as server,
        Dispatcher([server.host], max_in_flight=slots, cache_size=0) as dispatcher,
    ):
        generate_candidates_parallel(
            dispatcher, "Warm up.", [str(k) for k in range(slots)], max_tokens=1, model=MODEL
        )
        yield server, dispatcher


class BusySlots:
    """The share of slots that were busy until nothing waited for one: calls are counted as they end.

    Args:
        server: where the calls go.
        slots: how many there are, and calls at once.
        calls: how many there will be.
    """

    def __init__(self, server: EmbeddedServer, slots: int, calls: int) -> None:
        self._server, self._slots = server, slots
        self._left_until_look = calls - slots
        self._stats: dict[str, Any] = {}
        self._lock = threading.Lock()

    def tick(self) -> None:
        """A call ended; with so many left as there are slots, none of them waits."""
        with self._lock:
            self._left_until_look -= 1
            look = self._left_until_look == 0
        if look:
            self._stats = self._server.stats()

    @property
    def share(self) -> float:
        """From the last reset of the server's counts on, the last calls aside."""
        return float(self._stats["busy_slot_s"] / self._stats["window_s"]) / self._slots


class WatchedCalls:
    """Calls through a dispatcher that are seen as they end.

    Args:
        dispatcher: sends them.
        busy: hears of each; None: nobody does.
    """

    def __init__(self, dispatcher: Dispatcher, busy: BusySlots | None = None) -> None:
        self.served_s: list[float] = []
        """Seconds in a slot of each call."""
        self._dispatcher, self._busy = dispatcher, busy

    def generate(self, call: Call) -> Completion:
        """The reply to one call."""
        completion = self._dispatcher.generate(call)
        if self._busy is not None:
            self._busy.tick()
        if completion.usage is not None:
            self.served_s.append(completion.usage.prefill_s + completion.usage.decode_s)
        return completion


def time_candidates(scale: Scale) -> Section:
    """K candidates, one after another and all at once."""
    cases = (("250", "all equal, 1 s"), ("lognormal:mean=250,sigma=1.0", "lognormal, mean 1 s"))
    rows = [_candidates(scale, tokens, shown) for tokens, shown in cases]
    return Section(
        title="Candidates: K = 16 replies to one query",
        about=(
            "`generate_candidates` and `generate_candidates_parallel` for the same 16 system prompts on 16 "
            "slots. *Bound*: the seconds in a slot of all 16 over those of the longest, which no order can "
            f"beat. Medians of {scale.runs} runs."
        ),
        rows=rows,
        columns={
            "replies": "replies",
            "sequential_s": "one after another, s",
            "parallel_s": "at once, s",
            "speedup": "times faster",
            "bound": "bound",
            "fraction": "of the bound",
            "same": "same replies",
        },
        checks=[
            at_least("K = 16 at once, equal replies, times faster", 15, rows[0]["speedup"]),
            at_least("K = 16 at once, lognormal, of the bound", 0.95, rows[1]["fraction"]),
        ],
    )


def _candidates(scale: Scale, tokens: str, shown: str) -> dict[str, Any]:
    prompts = [f"Answer in the manner of guide {k}." for k in range(16)]
    runs = []
    for seed in range(scale.runs):
        with serving(scale, len(prompts), tokens, seed=seed) as (_, dispatcher):
            watched = WatchedCalls(dispatcher)
            began_s = time.perf_counter()
            alone = generate_candidates(watched, "What is 17 times 6?", prompts, model=MODEL)
            between_s = time.perf_counter()
            together = generate_candidates_parallel(dispatcher, "What is 17 times 6?", prompts, model=MODEL)
            ended_s = time.perf_counter()
        sequential_s, parallel_s = between_s - began_s, ended_s - between_s
        runs.append(
            {
                "sequential_s": sequential_s,
                "parallel_s": parallel_s,
                "speedup": sequential_s / parallel_s,
                "bound": sum(watched.served_s) / max(watched.served_s),
                "fraction": max(watched.served_s) / parallel_s,
                "same": alone == together,
            }
        )
    medians = {key: median(each[key] for each in runs) for key in runs[0] if key != "same"}
    return {"replies": shown, **medians, "same": all(each["same"] for each in runs)}


def time_equal_replies(scale: Scale) -> Section:
    """A population on a panel whose replies all take as long: what is lost is lost between the calls."""
    title = f"Evolution: {POPULATION} genomes on {PANEL} problems, equal replies"
    return _population_section(replace(scale, runs=1), title, "25", "of 25 tokens (0.1 s) each")


def time_population(scale: Scale) -> Section:
    """The same with replies of which some take long, and may be the last."""
    tokens = "lognormal:mean=25,sigma=1.0"
    title = f"Evolution: {POPULATION} genomes on {PANEL} problems"
    section = _population_section(scale, title, tokens, f"of `{tokens}` tokens (0.1 s on the mean)")
    busy = median(row["slots_busy"] for row in section.rows if row["cap"] != 1)
    return replace(section, checks=[*section.checks, at_least("slots busy, median", 0.93, busy)])


def _population_section(scale: Scale, title: str, tokens: str, shown: str) -> Section:
    """A population on a panel, one call at a time and ten at once."""
    genomes = [Genome(f"Answer the question in the manner of guide {k}.") for k in range(POPULATION)]
    everyday = bundled_task()
    task = Task(name=everyday.name, problems=everyday.problems[:PANEL], scorer=everyday.scorer)
    fast, slow = (
        [_population(scale, genomes, task, tokens, cap, seed) for seed in range(scale.runs)]
        for cap in (CAP, 1)
    )
    for together, alone in zip(fast, slow, strict=True):
        together["speedup"], alone["speedup"] = alone["wall_s"] / together["wall_s"], 1.0
    return Section(
        title=title,
        about=(
            f"`AsyncEvaluationPipeline` on {CAP} slots, replies {shown}, early stopping off, so that all "
            f"{POPULATION * PANEL:,} calls are made; `max_concurrent_requests={CAP}`, and the same with one "
            "call at a time. *Slots busy* leaves the last calls aside; *seconds* do not, and how long the "
            "last replies are depends on the seed."
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
            at_least("most in flight", CAP, min(row["max_in_flight"] for row in fast)),
            at_most("most in flight", CAP, max(row["max_in_flight"] for row in fast)),
        ],
    )


def _population(
    scale: Scale, genomes: Sequence[Genome], task: Task, tokens: str, cap: int, seed: int
) -> dict[str, Any]:
    with serving(scale, CAP, tokens, seed=seed) as (server, dispatcher):
        busy = BusySlots(server, cap, len(genomes) * len(task.problems))
        config = AsyncEvolutionConfig(
            max_concurrent_requests=cap,
            population_size=len(genomes),
            early_stop_level=None,
            rate_limit_per_minute=None,
        )
        pool = CallPool(dispatcher, cap)
        pipeline = AsyncEvaluationPipeline(pool, task, model=MODEL, config=config, tick=busy.tick)
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
        "slots_busy": busy.share,
    }


class GenerationWindows:
    """Of each generation: the share of slots that was busy until its last calls went out."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.rows: list[dict[str, Any]] = []
        self._server = server
        self._ended = 0
        self._begun, self._begun_at = server.stats(), 0
        self._looks: list[tuple[int, dict[str, Any]]] = []

    def tick(self) -> None:
        """A call ended."""
        self._ended += 1
        if self._ended % _LOOK_EVERY == 0:
            self._looks.append((self._ended, self._server.stats()))

    def generation(self, record: Generation) -> None:
        """A generation is over; once its last `CAP` calls are out nothing waits any more."""
        last = max((look for look in self._looks if look[0] <= self._ended - CAP), default=None)
        calls = self._ended - self._begun_at
        if last is not None and calls > 2 * CAP:
            busy_s = last[1]["busy_slot_s"] - self._begun["busy_slot_s"]
            share = busy_s / (last[1]["window_s"] - self._begun["window_s"]) / CAP
            self.rows.append({"generation": record.generation, "calls": calls, "slots_busy": share})
        self._begun, self._begun_at, self._looks = self._server.stats(), self._ended, []


def time_generations(scale: Scale) -> Section:
    """A whole evolution, rewordings by model and early stopping included."""
    with serving(scale, CAP, LOGNORMAL) as (server, dispatcher):
        config = AsyncEvolutionConfig(
            population_size=POPULATION,
            max_generations=4,
            panel_size=PANEL,
            max_concurrent_requests=CAP,
            rate_limit_per_minute=None,
        )
        server.reset_stats()
        windows = GenerationWindows(server)
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
            f"`AsyncEvolutionController`, {POPULATION} genomes on {PANEL} problems, cap {CAP}, with "
            "rewording calls and early stopping, replies lognormal (0.2 s on the mean); the last calls of "
            "each generation aside."
        ),
        rows=windows.rows,
        columns={"generation": "generation", "calls": "calls", "slots_busy": "slots busy"},
        checks=[
            at_least("slots busy, median", 0.93, median(row["slots_busy"] for row in windows.rows)),
            at_most("most in flight", CAP, most),
        ],
    )


def time_selection(scale: Scale) -> Section:
    """Combinations of prompts on datapoints, under several caps and batches."""
    cases = (
        ("equal", 50, 9, 100),
        ("lognormal", 50, 9, 100),
        *(("lognormal", 20, 440 // batch, batch) for batch in (11, 7, 3)),
    )
    rows = [_selection(scale, *case) for case in cases]
    return Section(
        title="Selection: `select_best(parallel=True, max_concurrent=...)`",
        about=(
            "Brute force over prompts on the bundled task's questions, on as many slots as the cap. A batch "
            "is the dataset, which every combination is evaluated on; `plan_concurrency` splits the cap, and "
            "what the split leaves over goes to the combinations that come next. *Busy* is the slots that "
            "were busy on average, the last calls aside; replies have 250 tokens (1 s) on the mean, with "
            "sigma 1.0 where they are lognormal."
        ),
        rows=rows,
        columns={
            "replies": "replies",
            "cap": "max_concurrent",
            "batch": "batch",
            "plan": "plan_concurrency",
            "combinations": "combinations",
            "calls": "calls",
            "wall_s": "seconds",
            "max_in_flight": "most in flight",
            "busy": "busy",
            "slots_busy": "of the cap",
        },
        checks=[
            at_least("cap 50: most in flight", 50, rows[0]["max_in_flight"]),
            at_most("cap 50: most in flight", 50, rows[0]["max_in_flight"]),
            *(at_least(f"cap 20, batch {row['batch']}: busy", 19.5, row["busy"]) for row in rows[2:]),
            at_least("slots busy, least of all", 0.93, min(row["slots_busy"] for row in rows)),
        ],
    )


def _selection(scale: Scale, replies: str, cap: int, combinations: int, batch: int) -> dict[str, Any]:
    everyday = bundled_task()
    tokens = "250" if replies == "equal" else "lognormal:mean=250,sigma=1.0"
    choices = {"prompt": [f"Answer the question in the manner of guide {k}." for k in range(combinations)]}
    with serving(scale, cap, tokens) as (server, dispatcher):
        busy = BusySlots(server, cap, combinations * batch)
        evaluate = TaskEvaluation(WatchedCalls(dispatcher, busy), everyday, model=MODEL)
        selector = make_selector("brute_force", choices, everyday.problems[:batch], evaluate)
        server.reset_stats()
        began_s = time.perf_counter()
        results = selector.select_best(parallel=True, max_concurrent=cap)
        wall_s = time.perf_counter() - began_s
        stats = server.stats()
    return {
        "replies": replies,
        "cap": cap,
        "batch": batch,
        "plan": "{} x {}".format(*(results.rounds[0].plan or ())),
        "combinations": combinations,
        "calls": stats["calls"],
        "wall_s": wall_s,
        "max_in_flight": stats["max_in_flight"],
        "busy": busy.share * cap,
        "slots_busy": busy.share,
    }


if __name__ == "__main__":
    sys.exit(run("search_speed", "search.md"))
