"""How every command shows and writes its report: as tables for people, or as JSON.

The tables themselves stand at the end of each command's own file: those of `mutagym eval` in
`cli/eval_tables.py`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from records.outputs import writing
from records.run_folder import RunFolder
from records.settings import STDOUT
from records.terminal import one_line, printable, write_stderr

if TYPE_CHECKING:
    from rich.table import Table

Item = TypeVar("Item")
Result = TypeVar("Result")
Format = Literal["table", "json"]
WIDTH = 110
"""Of the tables where there is no terminal, and no COLUMNS in the environment."""


Parts = Iterable[tuple[Sequence["Table"], str]]
"""Tables of one kind, with the sentence that explains them."""


def print_parts(parts: Parts, problems: Iterable[str] = (), *, simulated: bool) -> None:
    """Print tables on stdout, `WIDTH` columns wide where there is no terminal; no name or number is cut.

    Args:
        parts: the tables; those without rows are left out.
        problems: lines that come last.
        simulated: whether the figures come from the simulator, which is said first.
    """
    from rich.console import Console

    from cli.tables import print_table

    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    with console.capture() as captured:  # rich itself would end the process when nobody reads any more
        if simulated:
            console.print("SIMULATED: these figures are of the simulator, not of a model\n")
        for tables, says in parts:
            for table in tables:
                if table.row_count:
                    print_table(table, console)
            if any(table.row_count for table in tables):
                console.print(printable(f"{says}\n"))
        for line in problems:
            console.print(printable(line), soft_wrap=True)
    print(captured.get(), end="")


def as_json(report: Mapping[str, Any] | Sequence[Any]) -> str:
    """The report as JSON."""
    return json.dumps(report, indent=2, ensure_ascii=False)


@contextmanager
def prints_on_stderr() -> Iterator[None]:
    """Within `with`: what a user's functions print goes to stderr, for stdout is the report's."""
    with redirect_stdout(sys.stderr):
        yield


class Progress:
    """Lines of progress on stderr, of work that may be done by several threads.

    Args:
        total: how many items there are.
        every: how many are done between two lines; fewer have no line.
        text: the line, with `{done}` and `{total}`.
    """

    def __init__(self, total: int, every: int, text: str) -> None:
        self._total = total
        self._every = every
        self._text = text
        self._lock = threading.Lock()
        self._done = 0

    def add(self, count: int = 1) -> None:
        """So many more are done."""
        with self._lock:
            before, self._done = self._done, self._done + count
            is_due = self._done // self._every > before // self._every or self._done == self._total
            if self._total > self._every and is_due:
                write_stderr(self._text.format(done=self._done, total=self._total))

    def counting(self, work: Callable[[Item], Result]) -> Callable[[Item], Result]:
        """The same work, each item of which counts when it is done."""

        def counted(item: Item) -> Result:
            result = work(item)
            self.add()
            return result

        return counted


def write_json(report: Mapping[str, Any] | Sequence[Any], path: Path | None) -> bool:
    """Write a command's results where `--json` says; returns whether that is stdout, which then has no more.

    Args:
        report: plain data.
        path: the file; `-`: stdout; None: nowhere.
    """
    if path == STDOUT:
        print(json.dumps(report, indent=2))
    elif path:
        with writing(path) as place:
            place.write_text(as_json(report) + "\n", encoding="utf-8")
    return path == STDOUT


def write_report(
    report: Mapping[str, Any],
    folder: RunFolder,
    *,
    path: Path | None,
    form: Format,
    print_tables: Callable[[], None],
) -> None:
    """Write a report into the run's folder, to stdout, and where else it is wanted.

    Args:
        report: plain data.
        folder: the run's; the file there is report.json.
        path: another file that is to hold it as JSON; `-` is stdout, in the place of `form`.
        form: how it is written to stdout.
        print_tables: prints it for people.
    """
    folder.write_json("report.json", report)
    if write_json(report, path):
        return
    if form == "json":
        print(json.dumps(report, indent=2))
    else:
        print_tables()


def new_table(title: str, *columns: str, names: int = 1) -> Table:
    """A table whose first columns hold names, the others numbers."""
    from rich import box

    from cli.tables import ShownTable

    table = ShownTable(
        title=one_line(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for place, column in enumerate(columns):
        if place < names:
            table.add_column(one_line(column), overflow="fold")
        else:
            table.add_column(one_line(column), justify="right", no_wrap=True)
    return table


def with_interval(told: Mapping[str, Any], key: str, form: str, times: float = 1) -> str:
    """`81.2 [74.1, 86.6]`; `-` where there is nothing."""
    if told[key] is None:
        return "-"
    parts = (told[name] for name in (key, "low", "high"))
    value, low, high = (number(None if part is None else part * times, form) for part in parts)
    return f"{value} [{low}, {high}]"


def number(value: float | None, form: str) -> str:
    """The number in this form; `-` where there is none."""
    return "-" if value is None else form.format(value)


def percent(share: float | None) -> str:
    """`81.2`; `-` where there is no share."""
    return number(None if share is None else 100 * share, "{:.1f}")


def p_value(value: float | None) -> str:
    """`.034`, `<.001`; `-` where there is none."""
    if value is None:
        return "-"
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0")  # noqa: PLR2004 - what three digits show
