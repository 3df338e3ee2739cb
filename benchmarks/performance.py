"""Measure everything that is claimed of speed, and write docs/performance.md from it.

    make bench                                     # or python -m benchmarks.performance: half an hour
    python -m benchmarks.performance --quick       # small and fast, to stdout: figures of no meaning
    python -m benchmarks.performance --only judge  # some sections alone, to stdout
    python -m benchmarks.performance --again judge # some sections anew, into the report, which says so

One thing is timed at a time; leave the machine alone meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from benchmarks.eval_throughput import time_evaluation
from benchmarks.method import heading
from benchmarks.reporting import DOCS, Report
from benchmarks.rollouts import Scale, time_judge, time_pools, time_schedules, time_sweep
from benchmarks.sections import cost_steps, follow_slots, time_calls, time_limits, time_swaps
from benchmarks.tables import Section
from benchmarks.training import time_training
from benchmarks.wrappers import time_wrappers

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
