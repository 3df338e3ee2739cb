"""Writes docs/measured.md out of all results in `results/`: `python -m benchmarks.measured`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "measured.md"
HEADINGS = {
    "schedules": "Schedules",
    "calls": "Calls",
    "learning": "Learning",
    "sides": "Both sides",
    "sides_real": "Both sides on real models",
    "choices": "What is saved",
    "real": "Real model",
    "coverage": "Coverage of intervals",
    "searches": "Searches",
    "refusal": "Refusal model",
}
"""The section of each benchmark, in the order of the page."""
INTRODUCTION = """\
# What was measured

Every figure here was written by a script in `benchmarks/`: `make bench NAME=schedules` measures
one section anew, `make bench` all. What was measured on the simulator says so: it shows how mutagym
behaves, and nothing of a model. A check compares a figure with the bound that it has to keep."""


def read() -> dict[str, dict[str, Any]]:
    """All results by benchmark."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    return {result["benchmark"]: result for result in found}


def page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The page in Markdown, of the results by benchmark."""
    parts = [INTRODUCTION]
    for name, heading in HEADINGS.items():
        parts += [f"## {heading}", *(_section(found[name]) if name in found else ["Not measured."])]
    return "\n\n".join(parts) + "\n"


def _section(result: Mapping[str, Any]) -> Iterator[str]:
    yield result["about"]
    for each in result["tables"]:
        yield from (f"### {each['title']}", each["about"], table(each["rows"]))
    if result["checks"]:
        yield table(
            [
                {
                    "check": check["what"],
                    "target": f"{check['sense']} {_cell(check['target'])}",
                    "measured": check["measured"],
                    "met": "yes" if check["met"] else "**no**",
                }
                for check in result["checks"]
            ]
        )
    yield (
        f"(`python -m benchmarks.{result['benchmark']}`, {result['seconds'] / 60:.0f} minutes on "
        f"{result['date']} at commit {result['commit']}: {result['machine']}; Python "
        f"{result['python']}, {result['packages']}.)"
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table of Markdown, headed by their keys; a dash where a value is missing."""
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    lines = [headings, ["---"] * len(headings)]
    lines += [[_cell(row.get(heading)) for heading in headings] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
