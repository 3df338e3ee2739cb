"""Measure everything that is claimed of speed, and write docs/performance.md from it.

    make bench                                     # or python -m benchmarks.performance: half an hour
    python -m benchmarks.performance --quick       # small and fast, to stdout: figures of no meaning
    python -m benchmarks.performance --only judge  # some sections alone, to stdout
    python -m benchmarks.performance --again judge # some sections anew, into the report, which says so

One thing is timed at a time; leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.eval_throughput import time_evaluation
from benchmarks.method import heading
from benchmarks.rollouts import Scale, time_judge, time_pools, time_schedules, time_sweep
from benchmarks.sections import cost_steps, follow_slots, time_calls, time_limits, time_swaps
from benchmarks.tables import Section
from benchmarks.training import time_training
from benchmarks.wrappers import time_wrappers

REPORT = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
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


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the report; the exit status is 1 where a target is missed."""
    given = _parser().parse_args(argv)
    if given.again:
        return _again(given.again)
    first = heading()
    sections = [_timed(name, QUICK if given.quick else Scale()) for name in given.only or SECTIONS]
    report = "\n\n".join([first, *(section.markdown() for section in sections)]) + "\n"
    if given.quick or given.only:
        sys.stdout.write(report)
    else:
        REPORT.write_text(report, encoding="utf-8")
    return _missed(sections) if not given.quick else 0


def _again(names: Sequence[str]) -> int:
    """Measure sections anew, in place of those of the report, or behind them where they are new."""
    parts = REPORT.read_text(encoding="utf-8").rstrip("\n").split("\n\n## ")
    sections = [_timed(name, Scale()) for name in names]
    for section in sections:
        text = section.markdown().removeprefix("## ")
        text = f"{text}\n\n(Measured again alone, after the others, on {time.strftime('%Y-%m-%d')}.)"
        place = next((k for k, part in enumerate(parts) if part.startswith(f"{section.title}\n")), len(parts))
        parts[place : place + 1] = [text]
    REPORT.write_text("\n\n## ".join(parts) + "\n", encoding="utf-8")
    return _missed(sections)


def _missed(sections: Sequence[Section]) -> int:
    """Say which targets are missed; the exit status."""
    missed = [check.what for section in sections for check in section.checks if not check.met]
    print(f"{len(missed)} targets missed", *missed, sep="\n  ", file=sys.stderr)
    return 1 if missed else 0


def _timed(name: str, scale: Scale) -> Section:
    """A section, its beginning and its end said on stderr."""
    began_s = time.monotonic()
    print(f"=== {name} ...", file=sys.stderr, flush=True)
    section = SECTIONS[name](scale)
    print(f"=== {name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    return section


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.performance", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="small and fast, to stdout, to try it out")
    parser.add_argument("--again", nargs="+", choices=tuple(SECTIONS), help="these sections, into the report")
    parser.add_argument("--only", nargs="+", choices=tuple(SECTIONS), help="these sections, to stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main())
