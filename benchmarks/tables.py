"""Tables in Markdown made from rows, and measured figures held against their targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

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
