"""Measure what is claimed of the searches, and write docs/search.md from it.

    make bench-search                                  # or python -m benchmarks.search
    python -m benchmarks.search --quick                # small and fast, to stdout: figures of no meaning
    python -m benchmarks.search --only selectors       # some sections alone, to stdout
    python -m benchmarks.search --again candidates     # some sections anew, into the report, which says so

One thing is timed at a time; leave the machine alone meanwhile.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

from benchmarks import hybrid_learning, rate, selection
from benchmarks.evolution_speed import time_equal, time_evolution, time_generations
from benchmarks.reporting import DOCS, Report, Section, at_least, at_most, machine
from benchmarks.search_speed import Scale, time_candidates, time_selection

PACKAGES = ("ollama", "numpy", "scikit-learn")
METHOD = """\
# Search

Made by `make bench-search` (`python -m benchmarks.search`) on {date}; no figure is written by hand.

**Everything here is simulated.** The server is the one of [simulator.md](simulator.md), profile `ideal`:
4 ms a token in every slot, whatever else runs. What is measured is how busy a search keeps such a server,
and how well it finds what the simulated world hides, not how good a model is. Busy slots, calls and calls in
flight are the server's own counts (`GET /simulator/stats`). Replies are `lognormal` where it says so: how
long a reply is, is a function of the request. How the searches work stands in [design.md](design.md).

{machine}"""


def hold_rate(scale: Scale) -> Section:
    """The rate limit, from the first call on."""
    rows = rate.rows(seconds=scale.rate_s)
    return Section(
        title="Rate limit: 600 requests a minute",
        about=(
            f"Requests that the server counted in {scale.rate_s:g} s from the first call on, beside those "
            "that the limit allows. 64 threads ask all the time; a repeated attempt is a request like any "
            "other. "
            "`python -m benchmarks.rate`"
        ),
        rows=rows,
        columns={
            "faults": "faults",
            "seconds": "seconds",
            "allowed": "allowed",
            "requests": "requests",
            "share": "of what is allowed",
            "retries": "of them repeated",
            "lost": "calls lost",
        },
        checks=[
            *(
                at_least(f"requests, faults {row['faults']}, of what is allowed", 0.98, row["share"])
                for row in rows
            ),
            *(
                at_most(f"requests, faults {row['faults']}, of what is allowed", 1.02, row["share"])
                for row in rows
            ),
            at_most("calls lost", 0, sum(row["lost"] for row in rows)),
        ],
    )


SECTIONS: Mapping[str, Callable[[Scale], Section]] = {
    "candidates": time_candidates,
    "equal": time_equal,
    "evolution": time_evolution,
    "generations": time_generations,
    "selection": time_selection,
    "selectors": lambda scale: selection.section("independent", scale.seeds),
    "difficulty": lambda scale: selection.section("correlated", scale.seeds),
    "learning": lambda scale: hybrid_learning.section(scale.learning_seeds),
    "rate": hold_rate,
}
"""In the order of the report."""
REPORT = Report(
    module="benchmarks.search",
    about="Measure what is claimed of the searches, and write docs/search.md from it.",
    path=DOCS / "search.md",
    heading=lambda: METHOD.format(date=time.strftime("%Y-%m-%d"), machine=machine(*PACKAGES)),
    sections=SECTIONS,
    scale=Scale(),
    quick=Scale(runs=1, time_scale=0.1, seeds=4, learning_seeds=2, rate_s=3.0),
)

if __name__ == "__main__":
    sys.exit(REPORT.main())
