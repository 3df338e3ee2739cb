"""Measure everything that is claimed of speed, and write docs/performance.md from it.

    make bench                                     # or python -m benchmarks.performance: half an hour
    python -m benchmarks.performance --quick       # small and fast, to stdout: figures of no meaning
    python -m benchmarks.performance --only judge  # some sections alone, to stdout
    python -m benchmarks.performance --again judge # some sections anew, into the report, which says so

One thing is timed at a time; leave the machine alone meanwhile.

The sections of docs/performance.md whose rows other benchmarks make: steps, calls, limits, swaps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import calls, limits, step_cost, swaps
from benchmarks.eval_throughput import time_evaluation
from benchmarks.reporting import DOCS, Check, Report, Section, at_least, at_most, heading
from benchmarks.rollouts import Scale, time_judge, time_pools, time_schedules, time_sweep, time_training
from benchmarks.wrappers import time_wrappers

SWAPS = (
    swaps.Load(max_in_flight=1, steps=5, time_scale=0.2),
    swaps.Load(steps=6),
    swaps.Load(roles=3, slots=4, rule_share=0.3, steps=6),
)
"""One call in flight is what a server of one slot gets."""
CHOICE = """\
Calls go through the official `ollama.Client`, on threads, over a transport of our own. Most of what the
client costs as it comes is httpx's transport (httpcore's pool and h11), then httpx's client, which joins
URL, headers and cookies anew for each request; the package's own types cost next to nothing. So each
connection is read by the standard library's HTTP reader, and requests, which differ in nothing but their
JSON, take a short way through httpx's client. An async engine would have to hand every call over to it and
back, for every lane, search and judge is a plain thread. Nothing is built per call: threads, the client and
the TLS context are shared, and as many connections stay open as there were calls at once."""
LIMIT_S = 5.0
"""How long each limit is watched."""


def cost_steps(scale: Scale) -> Section:
    """CPU time of a step."""
    rows = step_cost.rows(num_steps=scale.cost_steps, time_scale=scale.time_scale, runs=scale.seeds)
    return Section(
        title="What a step costs",
        about=(
            "CPU milliseconds a step under `lanes`, then those of the HTTP client and of the encoder in the "
            "same rollout made once more; the rest is what environments, schedule and dispatcher take. Code "
            "that runs now and then starts from cold caches, all the more on a shared machine: the last "
            "column is the rest where known replies and rows come at once. "
            f"Medians of {scale.seeds} runs. `python -m benchmarks.step_cost`"
        ),
        rows=rows,
        columns={
            "num_processes": "lanes",
            "slots": "slots",
            "env_steps": "steps",
            "cpu_ms_per_step": "CPU ms a step",
            "http_cpu_ms_per_step": "of it HTTP",
            "encode_cpu_ms_per_step": "of it encoding",
            "own_cpu_ms_per_step": "the rest",
            "warm_cpu_ms_per_step": "the rest, warm",
        },
        checks=[
            at_most("CPU ms a step outside HTTP and encoding", 1.0, rows[0]["own_cpu_ms_per_step"]),
            at_most("the same where replies come at once", 1.0, rows[0]["warm_cpu_ms_per_step"]),
        ],
    )


def time_calls() -> Section:
    """What a call costs."""
    rows = calls.rows()
    pace = {row["client"]: row for row in rows if row["in_flight"] == 64}  # noqa: PLR2004 - the case of interest
    ours = pace["OllamaClient through a Dispatcher"]
    return Section(
        title="What a call costs",
        about=(
            f"Replies take {calls.REPLY_S * 1000:.0f} ms. Medians of {calls.RUNS} runs; the simulator's own "
            "CPU time is not counted, but has to come from the same machine. `python -m benchmarks.calls`"
            f"\n\n{CHOICE}"
        ),
        rows=rows,
        columns={
            "client": "client",
            "in_flight": "in flight",
            "calls_per_s": "calls/s",
            "most_calls_per_s": "at most",
            "cpu_s_per_1000_calls": "CPU s per 1,000",
            "failed": "failed",
        },
        checks=[
            at_least("calls/s through a Dispatcher, 64 in flight", 900, ours["calls_per_s"]),
            at_most("CPU s per 1,000 of them", 0.8, ours["cpu_s_per_1000_calls"]),
        ],
    )


def time_limits() -> Section:
    """The limit that is found, beside fixed ones."""
    rows = limits.compare_limits(seconds=LIMIT_S)
    return Section(
        title="The limit on calls in flight",
        about=(
            "More lanes than any limit admits, on servers whose number of slots nobody tells; `auto` finds "
            "it from the replies. Busy slots are the server's figure; the wait is the median of a call's "
            f"wait for a slot, in mean service times. {LIMIT_S:g} s a row. `python -m benchmarks.limits`"
        ),
        rows=rows,
        columns={
            "slots": "slots",
            "limit": "limit",
            "busy_slots": "busy slots",
            "relative": "of the best fixed one",
            "median_wait_in_services": "wait",
            "slots_found": "slots found",
            "limit_at_end": "limit at the end",
        },
        checks=[check for row in rows if row["limit"] == "auto" for check in _limit_checks(row)],
    )


def _limit_checks(row: Mapping[str, Any]) -> list[Check]:
    slots, most = row["slots"], 0.6 if row["slots"] == 1 else 0.3
    return [
        at_least(f"`auto` on {slots} slots, of the best fixed limit", 0.95, row["relative"]),
        at_most(f"`auto` on {slots} slots, wait", most, row["median_wait_in_services"]),
    ]


def follow_slots() -> Section:
    """Slots that change while calls are under way."""
    rows = limits.follow_slots()
    course = [dict(group) for group in _by_change(rows)]
    return Section(
        title="Slots that change",
        about=(
            "Under `auto` a server of 8 slots is cut to 2 and given back its 8. A row is a second; calls "
            "that began before a cut count as busy slots, too. `python -m benchmarks.limits`"
        ),
        rows=rows,
        columns={
            "slots": "slots",
            "second": "second",
            "busy_slots": "busy slots",
            "slots_found": "slots found",
            "limit": "limit",
        },
        checks=[
            at_most(f"seconds until {name}", 10, next((s for s, ok in seconds.items() if ok), 99))
            for name, seconds in zip(("2 slots are found", "8 slots are busy again"), course, strict=True)
        ],
    )


def _by_change(rows: list[dict[str, Any]]) -> list[dict[int, bool]]:
    """For the seconds after each change whether the new slots are found, and then whether they are busy."""
    cut = {row["second"]: row["limit"] <= 3 for row in rows[10:20]}  # noqa: PLR2004 - 2 slots and a probe
    back = {row["second"]: row["relative"] >= 0.95 for row in rows[20:]}  # noqa: PLR2004 - as for a limit
    return [cut, back]


def time_swaps() -> Section:
    """Models that do not fit into memory together."""
    rows = [_beside(load) for load in SWAPS]
    return Section(
        title="Models that do not fit together",
        about=(
            "One model fits into memory. Swaps and seconds per 1,000 calls, as calls come and where models "
            "take turns; the seconds are those at time scale 1. Loading at 2 to 5 GB/s is an assumption. As "
            "calls come, chance decides: lanes that meet at a model stay together, for Ollama lets calls "
            "join a model that is to be unloaded. With one call in flight a model none meet. "
            "`python -m benchmarks.swaps`"
        ),
        rows=rows,
        columns={
            "profile": "profile",
            "roles": "roles",
            "rule_share": "by rule",
            "slots": "slots",
            "max_in_flight": "in flight",
            "swaps": "swaps",
            "swaps_in_turns": "in turns",
            "fewer": "times fewer",
            "wall_s": "seconds",
            "wall_s_in_turns": "in turns ",
            "faster": "times faster",
        },
        checks=[
            at_least("times fewer swaps, two roles, one call in flight each", 8, rows[0]["fewer"]),
            at_least("times faster, two roles, one call in flight each", 3, rows[0]["faster"]),
        ],
    )


def _beside(load: swaps.Load) -> Mapping[str, Any]:
    """One load as it comes and in turns, in one row."""
    plain, turns = (swaps.measure(load, turns=turns) for turns in (False, True))
    return plain | {
        "swaps": plain["swaps_per_1000"],
        "swaps_in_turns": turns["swaps_per_1000"],
        "fewer": plain["swaps_per_1000"] / max(turns["swaps_per_1000"], 1),
        "wall_s": plain["wall_s_per_1000"],
        "wall_s_in_turns": turns["wall_s_per_1000"],
        "faster": plain["wall_s_per_1000"] / turns["wall_s_per_1000"],
    }


QUICK = Scale(num_steps=4, sweep_steps=2, cost_steps=2, seeds=1, time_scale=0.1, rollouts=1)
SECTIONS: Mapping[str, Callable[[Scale], Section]] = {
    "schedules": time_schedules,
    "pools": time_pools,
    "judge": time_judge,
    "training": time_training,
    "sweep": time_sweep,
    "cost": cost_steps,
    "calls": lambda _scale: time_calls(),
    "limits": lambda _scale: time_limits(),
    "slots": lambda _scale: follow_slots(),
    "swaps": lambda _scale: time_swaps(),
    "evaluation": time_evaluation,
    "policies": time_wrappers,
}
"""In the order of the report."""
REPORT = Report(
    module="benchmarks.performance",
    about="Measure everything that is claimed of speed, and write docs/performance.md from it.",
    path=DOCS / "performance.md",
    heading=heading,
    sections=SECTIONS,
    scale=Scale(),
    quick=QUICK,
)

if __name__ == "__main__":
    sys.exit(REPORT.main())
