"""A report made of sections: all of them into its file, some of them to stdout, or some anew in their place.

    python -m benchmarks.NAME                   # everything, into the report
    python -m benchmarks.NAME --quick           # small and fast, to stdout: figures of no meaning
    python -m benchmarks.NAME --only SECTION    # some sections alone, to stdout
    python -m benchmarks.NAME --again SECTION   # some sections anew, into the report, which says so

One thing is timed at a time; leave the machine alone meanwhile.

Tables in Markdown made from rows, and measured figures held against their targets.

What stands before the tables of a report: the machine, and how everything is measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

Rows = Sequence[Mapping[str, Any]]
_SIGNIFICANT = 4


@dataclass(frozen=True, kw_only=True)
class Check:
    """A measured figure and the bound that it was to keep."""

    what: str
    measured: float
    sense: Literal["at least", "at most"]
    target: float

    @property
    def met(self) -> bool:
        """Whether it keeps its bound."""
        return self.measured >= self.target if self.sense == "at least" else self.measured <= self.target


def at_least(what: str, target: float, measured: float) -> Check:
    """A check of a figure that is to be large."""
    return Check(what=what, measured=measured, sense="at least", target=target)


def at_most(what: str, target: float, measured: float) -> Check:
    """A check of a figure that is to be small."""
    return Check(what=what, measured=measured, sense="at most", target=target)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the report: what was measured and how, the rows, and what was to be shown by them."""

    title: str
    about: str
    rows: Rows
    columns: Mapping[str, str]
    """Keys of the rows that are shown, and what they are called."""
    checks: Sequence[Check] = field(default=())

    def markdown(self) -> str:
        """The section as it stands in the report."""
        return f"## {self.title}\n\n{self.body()}"

    def body(self) -> str:
        """The section without its title."""
        parts = [self.about, table(self.rows, self.columns)]
        if self.checks:
            parts.append(check_table(self.checks))
        return "\n\n".join(parts)


def table(rows: Rows, columns: Mapping[str, str]) -> str:
    """The rows as a table of Markdown; a value that is missing or None is a dash."""
    head = [_line(columns.values()), _line("---" for _ in columns)]
    return "\n".join([*head, *(_line(_cell(row.get(key)) for key in columns) for row in rows)])


def check_table(checks: Sequence[Check]) -> str:
    """Targets beside what was measured."""
    columns = {"what": "to be shown", "target": "target", "measured": "measured", "met": "met"}
    rows = [
        {
            "what": check.what,
            "target": f"{check.sense} {_cell(check.target)}",
            "measured": check.measured,
            "met": "yes" if check.met else "**no**",
        }
        for check in checks
    ]
    return table(rows, columns)


def between_marks(document: str, module: str, text: str) -> str:
    """The document with the text in place of what `python -m module` wrote before, between its two marks.

    Raises:
        ValueError: the marks are not there.
    """
    marks = f"<!-- from here on written by python -m {module} -->", f"<!-- up to here: {module} -->"
    before, begin, rest = document.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (begin and end):
        raise ValueError(f"expected the lines {marks[0]!r} and {marks[1]!r} in the document")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def _line(cells: Any) -> str:  # noqa: ANN401 - any iterable of texts
    return f"| {' | '.join(cells)} |"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{_SIGNIFICANT}g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(item)}" for key, item in value.items())
    return str(value).replace("|", "\\|").replace("\n", " ")


Scale = TypeVar("Scale")
DOCS = Path(__file__).resolve().parents[1] / "docs"


@dataclass(frozen=True, kw_only=True)
class Report(Generic[Scale]):
    """What a report is made of."""

    module: str
    """The module that is run, as `python -m` names it."""
    about: str
    """What is measured, in one line."""
    path: Path
    """The document."""
    heading: Callable[[], str]
    """What stands before the sections: the machine of now, and how everything is measured."""
    sections: Mapping[str, Callable[[Scale], Section]]
    """In the order of the report."""
    scale: Scale
    """How thoroughly is measured."""
    quick: Scale
    """How thoroughly with --quick."""

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Measure, and write the report; the exit status is 1 where a target is missed."""
        given = self._parser().parse_args(argv)
        if given.again:
            return self._again(given.again)
        first = self.heading()
        scale = self.quick if given.quick else self.scale
        sections = [self._timed(name, scale) for name in given.only or self.sections]
        report = "\n\n".join([first, *(section.markdown() for section in sections)]) + "\n"
        if given.quick or given.only:
            sys.stdout.write(report)
        else:
            self.path.write_text(report, encoding="utf-8")
        return _missed(sections) if not given.quick else 0

    def _again(self, names: Sequence[str]) -> int:
        """Measure sections anew, in place of those of the report, or behind them where they are new."""
        parts = self.path.read_text(encoding="utf-8").rstrip("\n").split("\n\n## ")
        sections = [self._timed(name, self.scale) for name in names]
        for section in sections:
            text = section.markdown().removeprefix("## ")
            text = f"{text}\n\n(Measured again alone, after the others, on {time.strftime('%Y-%m-%d')}.)"
            at = (k for k, part in enumerate(parts) if part.startswith(f"{section.title}\n"))
            place = next(at, len(parts))
            parts[place : place + 1] = [text]
        self.path.write_text("\n\n## ".join(parts) + "\n", encoding="utf-8")
        return _missed(sections)

    def _timed(self, name: str, scale: Scale) -> Section:
        """A section, its beginning and its end said on stderr."""
        began_s = time.monotonic()
        print(f"=== {name} ...", file=sys.stderr, flush=True)
        section = self.sections[name](scale)
        print(f"=== {name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
        return section

    def _parser(self) -> argparse.ArgumentParser:
        names = tuple(self.sections)
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.about)
        parser.add_argument("--quick", action="store_true", help="small and fast, to stdout, to try it out")
        parser.add_argument("--again", nargs="+", choices=names, help="these sections, into the report")
        parser.add_argument("--only", nargs="+", choices=names, help="these sections, to stdout")
        return parser


def _missed(sections: Sequence[Section]) -> int:
    """Say which targets are missed; the exit status."""
    missed = [check.what for section in sections for check in section.checks if not check.met]
    print(f"{len(missed)} targets missed", *missed, sep="\n  ", file=sys.stderr)
    return 1 if missed else 0


PACKAGES = ("ollama", "httpx", "gymnasium", "stable-baselines3", "torch", "numpy", "aiohttp")
METHOD = """\
# Performance

Made by `make bench` (`python -m benchmarks.performance`) on {date}; no figure is written by hand.

**Everything here is simulated.** The server is the one of [simulator.md](simulator.md): a process of its
own that speaks Ollama's HTTP API over loopback and takes the time that its profile gives; where nothing
else is said `ideal`, 4 ms a token in every slot, whatever else runs. What is measured is how well mutagym
keeps such a server busy, not how fast a model is.

{machine}
- Replies have `lognormal:mean=50,sigma=1.0` tokens where nothing else is said: a call holds a slot for
  200 ms on average, and some for seconds. How long a reply is, is a function of the request.
- One model plays target, mutator and judge, as for a user who names one model, so its slots are all there
  are. Sentences are encoded by hashing. Mutators that work by rule and the cache of replies are left out,
  so that every schedule has the same calls to make. Actions are random, and the same under every schedule.
- *Slots busy*: the seconds that the server counted for its slots (`GET /simulator/stats`), over slots x
  wall time. *Bound*: the steps/s if no slot were ever idle, steps x min(slots, lanes) / those seconds, for a
  lane makes one call at a time.
- *Speed-up*: the tokens that the server wrote a second, over those of the table's first row. For one seed
  they are the same tokens under every schedule, and it is the ratio of steps/s.
- Where a table says 3 seeds, its figures are medians over the seeds 0, 1 and 2; `sequential` is timed with
  seed 0 alone. Making and resetting environments is outside the timed window; that is *start*.
- *CPU* is that of all threads of the process that trains and of its worker processes, *MiB* the most memory
  that these held, shared pages counted once. The simulator is left out of both.
- `transitions_sha256` covers what every step chose, asked and got, in (row, lane) order."""


def heading() -> str:
    """The method of docs/performance.md, with the machine and the versions of now."""
    return METHOD.format(date=time.strftime("%Y-%m-%d"), machine=machine(*PACKAGES))


def machine(*packages: str) -> str:
    """Two points of a list: the machine of now, and the versions of Python and of these packages."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"- Machine: {_processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()}. "
        f"Load average when this began: {os.getloadavg()[0]:.1f}.\n"
        f"- Versions: Python {platform.python_version()}, {versions}."
    )


def _processor() -> str:
    """The processor's name where the system tells it, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
