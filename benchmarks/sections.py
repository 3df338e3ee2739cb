"""The sections of docs/performance.md whose rows other benchmarks make: steps, calls, limits, swaps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import calls, limits, step_cost, swaps
from benchmarks.rollouts import Scale
from benchmarks.tables import Section, at_most

LIMIT_S = 5.0
"""How long each limit is watched."""


def cost_steps(scale: Scale) -> Section:
    """CPU time of a step."""
    rows = step_cost.rows(num_steps=scale.cost_steps, runs=scale.seeds)
    return Section(
        title="What a step costs",
        about=(
            "CPU milliseconds a step under `lanes`, then of the same requests sent by as many threads "
            "through the bare client, then of encoding the same texts; the rest is what environments, "
            f"schedule and dispatcher take. Medians of {scale.seeds} runs. `python -m benchmarks.step_cost`"
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
        },
        checks=[at_most("CPU ms a step outside HTTP and encoding", 1.0, rows[0]["own_cpu_ms_per_step"])],
    )


def time_calls() -> Section:
    """What a call costs."""
    return Section(
        title="What a call costs",
        about=(
            f"Replies take {calls.REPLY_S * 1000:.0f} ms. Medians of {calls.RUNS} runs; the simulator's own "
            "CPU time is not counted, but has to come from the same machine. `python -m benchmarks.calls`"
        ),
        rows=calls.rows(),
        columns={
            "client": "client",
            "in_flight": "in flight",
            "calls_per_s": "calls/s",
            "most_calls_per_s": "at most",
            "cpu_s_per_1000_calls": "CPU s per 1,000",
            "failed": "failed",
        },
    )


def time_limits() -> Section:
    """The limit that is found, beside fixed ones."""
    return Section(
        title="The limit on calls in flight",
        about=(
            "More lanes than any limit admits, on servers whose number of slots nobody tells; `auto` finds "
            "it from the replies. Busy slots are the server's figure; the wait is the median of a call's "
            f"wait for a slot, in mean service times. {LIMIT_S:g} s a row. `python -m benchmarks.limits`"
        ),
        rows=limits.compare_limits(seconds=LIMIT_S),
        columns={
            "slots": "slots",
            "limit": "limit",
            "busy_slots": "busy slots",
            "relative": "of the best fixed one",
            "median_wait_in_services": "wait",
            "slots_found": "slots found",
            "limit_at_end": "limit at the end",
        },
    )


def time_swaps() -> Section:
    """Models that do not fit into memory together."""
    return Section(
        title="Models that do not fit together",
        about=(
            "One model fits into memory. Swaps and seconds per 1,000 calls, as calls come and where models "
            "take turns; the seconds are those at time scale 1. Loading at 2 to 5 GB/s is an assumption. "
            "`python -m benchmarks.swaps`"
        ),
        rows=[_beside(load) for load in swaps.LOADS],
        columns={
            "profile": "profile",
            "roles": "roles",
            "rule_share": "by rule",
            "slots": "slots",
            "swaps": "swaps",
            "swaps_in_turns": "in turns",
            "fewer": "times fewer",
            "wall_s": "seconds",
            "wall_s_in_turns": "in turns ",
            "faster": "times faster",
        },
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
