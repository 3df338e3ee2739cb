"""A report made of sections: all of them into its file, some of them to stdout, or some anew in their place.

    python -m benchmarks.NAME                   # everything, into the report
    python -m benchmarks.NAME --quick           # small and fast, to stdout: figures of no meaning
    python -m benchmarks.NAME --only SECTION    # some sections alone, to stdout
    python -m benchmarks.NAME --again SECTION   # some sections anew, into the report, which says so

One thing is timed at a time; leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from benchmarks.tables import Section

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
