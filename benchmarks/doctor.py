"""How near the forecasts of `mutagym doctor` come to what `mutagym bench` then measures.

python -m benchmarks.doctor
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.commands import LOGNORMAL, read_json, run_mutagym
from benchmarks.reporting import Section, at_most, run
from ollama_utils.connect import EMBEDDED

SLOTS = (1, 4, 8)
LENGTHS = ("64", LOGNORMAL)
"""Tokens of a reply: all of one length, and of very different ones."""
MOST_OFF = 0.15


def sections(*, quick: bool) -> Iterator[Section]:
    """Forecasts on simulators of few and many slots."""
    lengths = LENGTHS[:1] if quick else LENGTHS
    time_scale = 0.1 if quick else 0.4
    rows = [row for length in lengths for slots in SLOTS for row in _rows(slots, length, time_scale)]
    yield Section(
        title="Forecasts of mutagym doctor",
        about=(
            "`mutagym doctor`, then `mutagym bench` with the same flags, on simulators of 1, 4 and 8 slots "
            f"(`--slots SLOTS --reply-tokens REPLY --time-scale {time_scale}`, 16 lanes). *Slots found* is "
            "what doctor measured from replies; *off* is its forecast over the steps/s of bench, less one. "
            "Under `sequential` doctor plays at most 32 of the 128 steps."
        ),
        rows=rows,
        checks=[
            at_most("forecast off by, the worst of all rows", MOST_OFF, max(abs(row["off"]) for row in rows)),
            at_most(
                "slots found, off by, the worst of all rows",
                MOST_OFF,
                max(abs(row["slots found"] / row["slots"] - 1) for row in rows),
            ),
        ],
    )


def _rows(slots: int, length: str, time_scale: float) -> Iterator[dict[str, Any]]:
    flags: dict[str, object] = {
        "--ollama-host": EMBEDDED,
        "--slots": slots,
        "--reply-tokens": length,
        "--time-scale": time_scale,
    }
    found, measured = _report("doctor", flags), _report("bench", flags)
    paces = {row["schedule"]: row["env_steps_per_s"] for row in measured}
    for row in found["forecast"][: len(paces)]:
        pace = paces[row["schedule"]]
        yield {
            "reply tokens": length,
            "slots": slots,
            "slots found": found["slots"][0]["slots"] or 0,
            "schedule": row["schedule"],
            "steps played": row["env_steps"],
            "forecast steps/s": row["env_steps_per_s"],
            "bench steps/s": pace,
            "off": round(row["env_steps_per_s"] / pace - 1, 3),
        }


def _report(command: str, flags: Mapping[str, object]) -> Any:  # noqa: ANN401 - as the command writes it
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        run_mutagym(command, {**flags, "--json": path})
        return read_json(path)


if __name__ == "__main__":
    sys.exit(run("doctor", "performance.md"))
