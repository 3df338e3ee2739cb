"""How busy searches keep a server: candidates, a critic's batches, an evolution.

python -m benchmarks.search_speed

All counts are the server's own (`GET /simulator/stats`). A window that leaves the last calls aside ends when
the last call goes out: from then on there is nothing to put into a slot that falls free.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.reporting import Section, at_least, at_most, run
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call, Completion
from scorers.judge import LLMCritic
from search import (
    PerformanceBenchmark,
    generate_candidates,
    generate_candidates_parallel,
    score_batch_parallel,
)
from search.task import bundled_task
from simulator.process import EmbeddedServer
from simulator.settings import Settings

MODEL, JUDGE = "sim-solver", "sim-judge"
CAP = 10
"""Calls in flight of the evolution."""
EVOLUTION_TIME_SCALE = 0.2
"""One call at a time it would take ten minutes."""
CLAIMED = 4.3
"""How many times faster the first system's document says 50 prompts on 100 problems are."""
WORKERS = (1, 4, 8, 16)
"""Scores that a critic is asked for at once."""
_LOOK_EVERY = 25
"""Calls between two looks at the server's counts."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How thoroughly is measured."""

    runs: int = 3
    """Of each case whose median is shown."""
    time_scale: float = 1.0
    evolution: tuple[int, int] = (50, 100)
    """Prompts and problems."""
    batches: Sequence[int] = (16, 64, 256)
    """Replies that a critic scores."""


def sections(*, quick: bool) -> Iterator[Section]:
    """All tables, in the order of the document."""
    small = Scale(runs=1, time_scale=0.05, evolution=(5, 10), batches=(16, 32))
    scale = small if quick else Scale()
    yield time_candidates(scale)
    yield time_critic(scale)
    yield time_evolution(scale)


@contextmanager
def serving(
    scale: Scale, slots: int, reply_tokens: str, seed: int = 0
) -> Iterator[tuple[EmbeddedServer, Dispatcher]]:
    """A simulator, and a dispatcher that knows its slots, with its connections open."""
    settings = Settings(
        slots=slots, reply_tokens=reply_tokens, time_scale=scale.time_scale, seed=seed
    )
    with (
        EmbeddedServer(settings) as server,
        Dispatcher([server.host], max_in_flight=slots, memory_bytes=0) as dispatcher,
    ):
        generate_candidates_parallel(
            dispatcher, "Warm up.", [str(k) for k in range(slots)], max_tokens=1, model=MODEL
        )
        yield server, dispatcher


class BusySlots:
    """The share of slots that were busy, in windows that leave the last calls aside.

    Args:
        server: where the calls go.
        slots: how many there are, and calls at once.
    """

    def __init__(self, server: EmbeddedServer, slots: int) -> None:
        self._server, self._slots = server, slots
        self._lock = threading.Lock()
        self._ended = 0
        self._looks: list[tuple[int, dict[str, Any]]] = []
        self._open_window()

    def tick(self) -> None:
        """A call ended."""
        with self._lock:
            self._ended += 1
            ended = self._ended
        if ended % _LOOK_EVERY == 0:
            self._looks.append((ended, self._server.stats()))

    def end_window(self) -> tuple[int, float | None]:
        """How many calls ended since the last window, and the share up to when the last of them went out.

        From then on nothing waits for a slot. The share is None where there were too few calls to say.
        """
        calls = self._ended - self._begun_at
        before_the_last = [look for look in self._looks if look[0] <= self._ended - self._slots]
        share = None
        if before_the_last and calls > 2 * self._slots:
            _, stats = max(before_the_last, key=lambda look: look[0])
            busy_s = stats["busy_slot_s"] - self._begun["busy_slot_s"]
            share = busy_s / (stats["window_s"] - self._begun["window_s"]) / self._slots
        self._open_window()
        return calls, share

    def _open_window(self) -> None:
        self._begun, self._begun_at = self._server.stats(), self._ended
        self._looks.clear()


class WatchedCalls:
    """Calls through a dispatcher that are seen as they end.

    Args:
        dispatcher: sends them.
        tick: is called as each ends.
    """

    def __init__(self, dispatcher: Dispatcher, tick: Callable[[], None] = lambda: None) -> None:
        self.served_s: list[float] = []
        """Seconds in a slot of each call."""
        self._dispatcher, self._tick = dispatcher, tick

    def generate(self, call: Call) -> Completion:
        """The reply to one call."""
        completion = self._dispatcher.generate(call)
        self._tick()
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
        checks=[
            at_least("K = 16 at once, equal replies, times faster", 15, rows[0]["times faster"]),
            at_least("K = 16 at once, lognormal, of the bound", 0.95, rows[1]["of the bound"]),
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
            together = generate_candidates_parallel(
                dispatcher, "What is 17 times 6?", prompts, model=MODEL
            )
            ended_s = time.perf_counter()
        sequential_s, parallel_s = between_s - began_s, ended_s - between_s
        runs.append(
            {
                "one after another, s": sequential_s,
                "at once, s": parallel_s,
                "times faster": sequential_s / parallel_s,
                "bound": sum(watched.served_s) / max(watched.served_s),
                "of the bound": max(watched.served_s) / parallel_s,
                "same replies": alone == together,
            }
        )
    medians = {heading: median(each[heading] for each in runs) for heading in runs[0]}
    return {"replies": shown, **medians, "same replies": all(each["same replies"] for each in runs)}


def time_critic(scale: Scale) -> Section:
    """A critic's batches, one score after another and several at once."""
    rows = [row for batch in scale.batches for row in _critic(scale, batch)]
    largest = {row["max_workers"]: row for row in rows if row["batch"] == max(scale.batches)}
    return Section(
        title="Critic: batches of replies to score",
        about=(
            "`score_batch_parallel(critic.score, items, max_workers)` with an `LLMCritic`, "
            f"{max(WORKERS)} slots, replies of 25 tokens (0.1 s) each. *Times faster*: than one score after "
            "another, which is measured, too; *of the most*: that over `max_workers`. Medians of "
            f"{scale.runs} runs."
        ),
        rows=rows,
        checks=[
            *(
                at_least(
                    f"largest batch, {workers} at once, of the most", 0.93, each["of the most"]
                )
                for workers, each in largest.items()
                if workers > 1
            ),
            at_most("batches with other scores", 0, sum(not row["same scores"] for row in rows)),
        ],
    )


def _critic(scale: Scale, batch: int) -> list[dict[str, Any]]:
    """A row for each number of workers."""
    problems = bundled_task().problems
    items = [
        (
            f"Answer in the manner of guide {k}.",
            problems[k % len(problems)].question,
            f"Answer: {k}",
        )
        for k in range(batch)
    ]
    runs = []
    for seed in range(scale.runs):
        with serving(scale, max(WORKERS), "25", seed=seed) as (_, dispatcher):
            LLMCritic(dispatcher, JUDGE).score("Answer.", "What is 2 + 2?", "Answer: 4")
            runs.append([_scored(dispatcher, items, workers) for workers in WORKERS])
    alone = median(run[0][0] for run in runs)
    rows = []
    for place, workers in enumerate(WORKERS):
        seconds = median(run[place][0] for run in runs)
        rows.append(
            {
                "batch": batch,
                "max_workers": workers,
                "seconds": seconds,
                "scores/s": batch / seconds,
                "times faster": alone / seconds,
                "of the most": alone / seconds / workers,
                "same scores": all(run[place][1] == run[0][1] for run in runs),
            }
        )
    return rows


def _scored(
    dispatcher: Dispatcher, items: Sequence[tuple[str, str, str]], workers: int
) -> tuple[float, list[float]]:
    """The seconds that the scores took, and the scores."""
    critic = LLMCritic(dispatcher, JUDGE)
    began_s = time.perf_counter()
    scores = score_batch_parallel(critic.score, items, max_workers=workers)
    return time.perf_counter() - began_s, scores


def time_evolution(scale: Scale) -> Section:
    """The first generation of a large population, one call at a time and ten at once."""
    benchmark = PerformanceBenchmark(
        {
            "population_size": scale.evolution[0],
            "num_problems": scale.evolution[1],
            "reply_tokens": "25",
            "max_concurrent_requests": CAP,
            "rate_limit_per_minute": None,
            "time_scale": scale.time_scale * EVOLUTION_TIME_SCALE,
        }
    )
    found = asyncio.run(benchmark.run_comprehensive_benchmark())
    rows = [
        {
            "calls at once": most,
            "calls": found[name]["calls"],
            "seconds": found[name]["time_s"],
            "calls/s": found[name]["calls_per_s"],
            "most in flight": found[name]["max_in_flight"],
            "slots busy": found[name]["utilisation"],
        }
        for name, most in (("sequential", 1), ("async", CAP))
    ]
    genomes, problems = scale.evolution
    return Section(
        title=f"Evolution: {genomes} prompts on {problems} problems",
        about=(
            f"`PerformanceBenchmark`: all prompts are scored on all problems, with one call at a "
            f"time and with {CAP}, each on a fresh server of {CAP} slots. Replies of 25 tokens, "
            f"{100 * EVOLUTION_TIME_SCALE:.0f} ms each. The target is what the first system's "
            "document claims."
        ),
        rows=rows,
        checks=[
            at_least("times faster", CLAIMED, found["speedup"]),
            at_most("most in flight", CAP, found["async"]["max_in_flight"]),
            at_most("runs with another result", 0, not found["same_result"]),
        ],
    )


if __name__ == "__main__":
    sys.exit(run("search_speed", "search.md"))
