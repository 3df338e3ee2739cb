"""Does training help? PPO and every baseline at the same number of target calls, into docs/learning.md.

    make learning                                       # or python -m benchmarks.learning: about an hour
    python -m benchmarks.learning --quick               # small, to stdout: figures of no meaning

Everything goes through the commands that a user has, `mutagym train` and then `mutagym eval`, on the embedded
simulator. Runs are kept under runs/learning: what is there already, of the same code, is not made again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.learning_report import report
from benchmarks.learning_runs import WORLDS, Plan, check_made_of, measure

DOCS = Path(__file__).resolve().parents[1] / "docs"
QUICK = Plan(steps=512, seeds=1, agents=2, episodes=8, work=Path("runs/learning-quick"))
AT_ONCE = 2
"""Runs side by side: on two cores more would only wait for each other."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train, evaluate, and write the report; the exit status is 1 where a target is missed."""
    given = _parser().parse_args(argv)
    plan = QUICK if given.quick else Plan(seeds=given.seeds)
    check_made_of(plan)
    jobs = [(world, seed) for seed in range(plan.seeds) for world in WORLDS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda job: measure(plan, *job), jobs))
    (plan.work / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text, missed = report(plan, results, None if given.quick else DOCS / "learning.svg")
    if given.quick:
        sys.stdout.write(text)
        return 0
    (DOCS / "learning.md").write_text(text, encoding="utf-8")
    print(f"{len(missed)} targets missed", *missed, sep="\n  ", file=sys.stderr)
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="small and fast, to stdout, to try it out")
    parser.add_argument("--seeds", type=int, default=Plan.seeds, help="so many training runs a world")
    return parser


if __name__ == "__main__":
    sys.exit(main())
