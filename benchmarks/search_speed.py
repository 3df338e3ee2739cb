"""How busy candidates and selection keep a server; and what all benchmarks of searches share.

    python -m benchmarks.search --only candidates selection

All counts are the server's own (`GET /simulator/stats`). A window that leaves the last calls aside ends
when the last call goes out: from then on there is nothing to put into a slot that falls free.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.reporting import Section, at_least, at_most
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call, Completion
from search.call_pool import CallPool
from search.candidates import generate_candidates, generate_candidates_parallel
from search.selectors.registry import make_selector
from search.selectors.task_evaluation import TaskEvaluation
from search.task import bundled_task
from simulator.process import EmbeddedServer
from simulator.settings import Settings

MODEL = "sim-solver"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How thoroughly is measured."""

    runs: int = 3
    """Of each case whose median is shown; those that take one call at a time run once."""
    time_scale: float = 1.0
    seeds: int = 200
    """Of the selectors' table."""
    learning_seeds: int = 5
    """Of the hybrid flow."""
    rate_s: float = 30.0
    """Seconds for which the rate limit is watched."""


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


class Watched(CallPool):
    """A pool that looks at the server's counts when so many calls are left as fill its places.

    Args:
        dispatcher: as of `CallPool`.
        max_concurrent: likewise.
        server: where the calls go.
        calls: how many there will be.
    """

    def __init__(
        self, dispatcher: Dispatcher, max_concurrent: int, *, server: EmbeddedServer, calls: int
    ) -> None:
        super().__init__(dispatcher, max_concurrent)
        self.served_s: list[float] = []
        """Seconds in a slot of each call."""
        self.stats: dict[str, Any] = {}
        """The server's counts at that moment."""
        self._server = server
        self._calls = calls
        self._ended = 0
        self._watch = threading.Lock()

    def generate(self, call: Call) -> Completion:
        """The reply to one call."""
        completion = super().generate(call)
        with self._watch:
            self._ended += 1
            none_waits = self._ended == self._calls - self.max_concurrent
        if none_waits:
            self.stats = self._server.stats()
        if completion.usage is not None:
            self.served_s.append(completion.usage.prefill_s + completion.usage.decode_s)
        return completion

    @property
    def busy(self) -> float:
        """Slots that were busy on average, the last calls aside."""
        return float(self.stats["busy_slot_s"] / self.stats["window_s"])


def time_candidates(scale: Scale) -> Section:
    """K candidates, one after another and all at once."""
    cases = (("250", "all equal, 1 s"), ("lognormal:mean=250,sigma=1.0", "lognormal, mean 1 s"))
    rows = [_candidates(scale, tokens, shown) for tokens, shown in cases]
    return Section(
        title="Candidates: K = 16 replies to one query",
        about=(
            "`generate_candidates` and `generate_candidates_parallel` for the same 16 system prompts on 16 "
            "slots. *Bound*: the seconds in a slot of all 16 over those of the longest, which no order can "
            "beat. "
            f"Medians of {scale.runs} runs."
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
    for run in range(scale.runs):
        with serving(scale, len(prompts), tokens, seed=run) as (server, dispatcher):
            watched = Watched(dispatcher, len(prompts), server=server, calls=len(prompts))
            began_s = time.perf_counter()
            alone = generate_candidates(watched, "What is 17 times 6?", prompts, model=MODEL)
            between_s = time.perf_counter()
            together = generate_candidates_parallel(dispatcher, "What is 17 times 6?", prompts, model=MODEL)
            ended_s = time.perf_counter()
        sequential_s, parallel_s = between_s - began_s, ended_s - between_s
        bound = sum(watched.served_s) / max(watched.served_s)
        runs.append(
            {
                "sequential_s": sequential_s,
                "parallel_s": parallel_s,
                "speedup": sequential_s / parallel_s,
                "bound": bound,
                "fraction": sum(watched.served_s) / parallel_s / bound,
                "same": alone == together,
            }
        )
    middle = {key: median(run[key] for run in runs) for key in runs[0] if key != "same"}
    return {"replies": shown} | middle | {"same": all(run["same"] for run in runs)}


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
            *(at_least("cap 50: most in flight", 50, row["max_in_flight"]) for row in rows[:1]),
            *(at_most("cap 50: most in flight", 50, row["max_in_flight"]) for row in rows[:1]),
            *(at_least(f"cap 20, batch {row['batch']}: busy", 19.5, row["busy"]) for row in rows[2:]),
            at_least("slots busy, least of all", 0.93, min(row["slots_busy"] for row in rows)),
        ],
    )


def _selection(scale: Scale, replies: str, cap: int, combinations: int, batch: int) -> dict[str, Any]:
    everyday = bundled_task()
    tokens = "250" if replies == "equal" else "lognormal:mean=250,sigma=1.0"
    choices = {"prompt": [f"Answer the question in the manner of guide {k}." for k in range(combinations)]}
    with serving(scale, cap, tokens) as (server, dispatcher):
        watched = Watched(dispatcher, cap, server=server, calls=combinations * batch)
        evaluate = TaskEvaluation(watched, everyday, model=MODEL)
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
        "busy": watched.busy,
        "slots_busy": watched.busy / cap,
    }
