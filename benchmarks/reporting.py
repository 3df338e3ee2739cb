"""Tables in Markdown, measured figures held against targets, and the sections of the documents in docs/.

Every benchmark that makes tables is run in the same way:

    python -m benchmarks.NAME            # measure, and print the tables and the checks
    python -m benchmarks.NAME --write    # likewise, and put each section in its place in the document
    python -m benchmarks.NAME --quick    # small and fast, to try it out: its figures have no meaning

The exit status is 1 where a target is missed. One thing is timed at a time; leave the machine alone
meanwhile.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

Rows = Sequence[Mapping[str, Any]]
"""The rows of a table: the keys are the headings."""
DOCS = Path(__file__).resolve().parents[1] / "docs"
PACKAGES = ("gymnasium", "numpy", "ollama", "scikit-learn", "stable-baselines3", "torch")
"""Whose versions stand below a section."""


class Check(NamedTuple):
    """A measured figure and the bound that it is to keep."""

    what: str
    target: float
    measured: float
    sense: str

    @property
    def met(self) -> bool:
        """Whether it keeps its bound."""
        return (
            self.measured >= self.target
            if self.sense == "at least"
            else self.measured <= self.target
        )


def at_least(what: str, target: float, measured: float) -> Check:
    """A check of a figure that is to be large."""
    return Check(what, target, measured, "at least")


def at_most(what: str, target: float, measured: float) -> Check:
    """A check of a figure that is to be small."""
    return Check(what, target, measured, "at most")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a document: what was measured and how, the rows, and what was to be shown by them."""

    title: str
    about: str
    rows: Rows = ()
    checks: Sequence[Check] = ()
    made: str | None = None
    """The day and the machine, as `made_here` tells them; None: now."""

    def markdown(self) -> str:
        """The section as it stands in the document."""
        targets = [
            {
                "to be shown": check.what,
                "target": f"{check.sense} {_cell(check.target)}",
                "measured": check.measured,
                "met": "yes" if check.met else "**no**",
            }
            for check in self.checks
        ]
        tables = [table(rows) for rows in (self.rows, targets) if rows]
        return "\n\n".join([f"## {self.title}", self.about, *tables])


def table(rows: Rows) -> str:
    """The rows as a table of Markdown, headed by their keys; a value that is missing or None is a dash."""
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


def write_section(document: Path, section: str) -> None:
    """Put a section in place of the document's section of the same title, or behind all others."""
    title = section.partition("\n")[0].removeprefix("## ")
    parts = document.read_text(encoding="utf-8").rstrip("\n").split("\n\n## ")
    places = [number for number, part in enumerate(parts) if part.partition("\n")[0] == title]
    place = places[0] if places else len(parts)
    parts[place : place + 1] = [section.removeprefix("## ")]
    document.write_text("\n\n## ".join(parts) + "\n", encoding="utf-8")


def run(name: str, document: str, argv: Sequence[str] | None = None) -> int:
    """Measure a benchmark's sections one by one and show them; the exit status.

    Args:
        name: the module below `benchmarks`, whose `sections(*, quick: bool)` yields them. It is imported by
            its name, so that worker processes can unpickle what it defines. Where it has `add_arguments`,
            that is given the parser, and `sections` what was added, by name.
        document: the file in docs/ that `--write` writes to.
        argv: the command line; None: this process's own.
    """
    module = importlib.import_module(f"benchmarks.{name}")
    summary = (module.__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=summary)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_true", help="small and fast, to try it out")
    mode.add_argument(
        "--write", action="store_true", help=f"write the sections into docs/{document}, too"
    )
    if hasattr(module, "add_arguments"):
        module.add_arguments(parser)
    given = vars(parser.parse_args(argv))
    quick, write = given.pop("quick"), given.pop("write")
    missed: list[str] = []
    now = made_here()
    for section in module.sections(quick=quick, **given):
        text = f"{section.markdown()}\n\n(`python -m benchmarks.{name}`, {section.made or now}.)"
        print(f"{text}\n", flush=True)
        if write:
            write_section(DOCS / document, text)
        missed += [check.what for check in section.checks if not check.met]
    if quick:
        return 0
    print(f"{len(missed)} targets missed", *missed, sep="\n  ", file=sys.stderr)
    return 1 if missed else 0


def made_here() -> str:
    """The day, the machine and its load, and the versions of Python and the packages that matter most."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"{time.strftime('%Y-%m-%d')}. {processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, "
        f"{platform.system()}, load average {os.getloadavg()[0]:.1f} at first; "
        f"Python {platform.python_version()}, {versions}"
    )


def processor() -> str:
    """The processor's name where the system has it, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
