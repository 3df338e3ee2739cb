"""Which call held which slot of the server, and when: the same rollout under each schedule, as a picture.

    python -m benchmarks.timeline --write

Each schedule is a training run of one rollout on a simulator of its own. The run's log of replies says when
each reply came and how long the server worked at it; the calls are laid into as many rows as the server has
slots. They are drawn into docs/schedules.svg.
"""

from __future__ import annotations

import bisect
import json
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from benchmarks.reporting import DOCS, Section, at_least, run
from cli.main import execute
from mutators.registry import model_mutators

SCHEDULES = ("sequential", "phased", "lanes")
SLOTS, LANES, STEPS = 4, 8, 8
"""STEPS of each lane."""
REPLY_TOKENS = "lognormal:mean=50,sigma=1.0"
PICTURE = "schedules.svg"
_SHOWN_S = 1.15
"""How much of the time axis is shown, by the end of the phased rollout."""
_COLOURS = {"rewording": "#d97706", "answer": "#2563eb"}
_NO_LOSS_S = 0.05
"""Two calls that seem to share a slot for less do not: an end is when the reply was written down."""


class Served(NamedTuple):
    """One call's time in a slot."""

    start_s: float
    """Since the first call began."""
    end_s: float
    what: str
    """`rewording` or `answer`."""


def sections(*, quick: bool) -> Iterator[Section]:
    """The picture, and a row for each schedule."""
    steps = 1 if quick else STEPS
    with tempfile.TemporaryDirectory() as folder:
        served = {each: calls_of(rollout(Path(folder) / each, each, steps)) for each in SCHEDULES}
        draw(Path(folder) / PICTURE if quick else DOCS / PICTURE, served)
    rows = [row(schedule, calls, steps) for schedule, calls in served.items()]
    took = {each["schedule"]: float(each["seconds"]) for each in rows}
    yield Section(
        title="The same rollout under each schedule",
        about=(
            f"![Which call held which of {SLOTS} slots, over time, under each schedule]({PICTURE})\n\n"
            f"**Simulated**: {LANES} lanes of {steps} steps on a server of {SLOTS} slots, {REPLY_TOKENS} "
            "tokens a reply at 4 ms each. Each bar is a call in a slot, from the log of replies of a real "
            "run of `mutagym train`; white is idle. The axis ends soon after the phased rollout; the "
            "sequential one goes on. Under `phased` the slots empty at the end of each phase, while all "
            "wait for the longest reply. Under `lanes` they empty once, at the end of the rollout.\n\n"
            "*Seconds*: from the first call's begin to the last reply. *Slots busy*: of all slots, over that "
            "time."
        ),
        rows=rows,
        checks=[
            at_least(
                "sequential's seconds over those of lanes", 3, took["sequential"] / took["lanes"]
            ),
            at_least("phased's seconds over those of lanes", 1.2, took["phased"] / took["lanes"]),
        ],
    )


def rollout(folder: Path, schedule: str, steps: int) -> Path:
    """Train for one rollout of so many steps a lane; the run's folder.

    Raises:
        RuntimeError: the run failed.
    """
    server = ("--ollama-host", "embedded", "--slots", f"{SLOTS}", "--time-scale", "1")
    models = (
        "--target-model",
        "sim-model",
        "--mutator-model",
        "sim-model",
        "--reply-tokens",
        REPLY_TOKENS,
    )
    mission = ("--encoder", "hashing", "--mutators", ",".join(model_mutators()))
    shape = (
        "--num-processes",
        f"{LANES}",
        "--num-steps",
        f"{steps}",
        "--num-env-steps",
        f"{LANES * steps}",
    )
    learning = ("--ppo-epoch", "1", "--num-mini-batch", "1")
    with redirect_stdout(sys.stderr):
        code = execute(
            (
                *("train", *server, *models, *mission, *shape, *learning),
                *("--schedule", schedule, "--max-workers", f"{LANES}", "--run-dir", str(folder)),
            )
        )
    if code:
        raise RuntimeError(f"the run under {schedule} ended with code {code}")
    return folder


def calls_of(run_folder: Path) -> list[Served]:
    """The calls that the server answered in a run, by their begin."""
    with closing(sqlite3.connect(run_folder / "replies.sqlite")) as log:
        found = log.execute(
            "SELECT at_s, endpoint, reply FROM replies WHERE error IS NULL AND attempts > 0"
        ).fetchall()
    calls = []
    for at_s, endpoint, reply in found:
        usage = json.loads(reply)["usage"]
        # A mutator's prompt has worked examples, which make it a chat.
        what = "rewording" if endpoint == "chat" else "answer"
        calls.append(Served(at_s - usage["prefill_s"] - usage["decode_s"], at_s, what))
    first_s = min(call.start_s for call in calls)
    return sorted(Served(call.start_s - first_s, call.end_s - first_s, call.what) for call in calls)


def in_slots(calls: Sequence[Served]) -> list[list[Served]]:
    """The calls in as few rows as they need, each in the row that has been free for the shortest time."""
    rows: list[list[Served]] = []
    for call in calls:
        rows.sort(key=lambda each: each[-1].end_s)
        place = bisect.bisect_right(
            rows, call.start_s + _NO_LOSS_S, key=lambda each: each[-1].end_s
        )
        if place:
            rows[place - 1].append(call)
        else:
            rows.append([call])
    return sorted(rows, key=lambda each: each[0].start_s)


def row(schedule: str, calls: Sequence[Served], steps: int) -> dict[str, str | float]:
    """What the table says of a schedule."""
    took_s = max(call.end_s for call in calls)
    busy_s = sum(call.end_s - call.start_s for call in calls)
    return {
        "schedule": schedule,
        "calls": len(calls),
        "seconds": took_s,
        "steps/s": LANES * steps / took_s,
        "slots busy": busy_s / took_s / SLOTS,
    }


def draw(path: Path, served: Mapping[str, Sequence[Served]]) -> None:
    """Draw the calls of each schedule into an SVG file, a row a slot."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {
        "svg.hashsalt": "mutagym",
        "svg.fonttype": "none",
    }  # the same figure, the same file
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(8, 4.6), layout="constrained")
    panels = figure.subplots(len(served), 1, sharex=True, squeeze=False)[:, 0]
    shown_s = _SHOWN_S * max(call.end_s for call in served["phased"])
    for axes, (schedule, calls) in zip(panels, served.items(), strict=True):
        for slot, row_of_calls in enumerate(in_slots(calls), start=1):
            for what, colour in _COLOURS.items():
                spans = [(c.start_s, c.end_s - c.start_s) for c in row_of_calls if c.what == what]
                axes.broken_barh(
                    spans, (slot - 0.4, 0.8), color=colour, edgecolor="white", linewidth=0.4
                )
        took_s = max(call.end_s for call in calls)
        axes.set_title(f"{schedule}: {took_s:.1f} s", loc="left", fontsize=10)
        axes.set(
            xlim=(0, shown_s), ylim=(SLOTS + 0.6, 0.4), yticks=range(1, SLOTS + 1), ylabel="slot"
        )
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("seconds (simulated server)")
    legend = [Patch(color=colour, label=what) for what, colour in _COLOURS.items()]
    figure.legend(handles=legend, loc="outside upper right", ncols=2, fontsize=9, frameon=False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(run("timeline", "schedules.md"))
