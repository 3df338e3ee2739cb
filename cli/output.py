"""How every command writes its results: as tables for people, or as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from records.outputs import writing
from records.settings import STDOUT
from records.terminal import one_line, printable

if TYPE_CHECKING:
    from rich.console import Console

    from ollama_utils.session import Session
    from report.table import Table

Format = Literal["table", "json"]
WIDTH = 110
"""Columns of a table where there is no terminal, and no COLUMNS in the environment."""
LONGEST_WORD = 24
"""Characters of a word in a name; a longer word is folded where the table would be too wide."""
_WIDEST = 10_000
_PLAIN = str.maketrans({"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{MIDDLE DOT}": "-"})
"""Signs of a page, and what a terminal shows in their place."""


def print_tables(tables: Iterable[Table], lines: Iterable[str] = (), *, simulated: bool) -> None:
    """Print tables that have rows, then lines; `WIDTH` wide where there is no terminal.

    No name or number is cut. That figures are simulated is said first.
    """
    from rich.console import Console

    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    with console.capture() as captured:  # rich itself would end the process when nobody reads
        if simulated:
            console.print("SIMULATED: these figures are of the simulator, not of a model\n")
        is_shown = False
        for table in tables:
            if table.rows:
                _print_table(table, console)
            is_shown = is_shown or bool(table.rows)
            if is_shown and table.says:
                console.print(printable(f"{table.says}\n"))
                is_shown = False
        for line in lines:
            console.print(printable(line), soft_wrap=True)
    print(captured.get(), end="")


def _print_table(table: Table, console: Console) -> None:
    """Print a table, wider than the console where its numbers and names need that."""
    from rich import box
    from rich.cells import cell_len
    from rich.measure import Measurement
    from rich.table import Table as RichTable

    rows = [[one_line(cell).translate(_PLAIN) for cell in row] for row in table.rows]
    title = {"title": one_line(table.caption), "title_justify": "left", "title_style": "bold"}
    shown = RichTable(**title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))  # type: ignore[arg-type]
    for place, name in enumerate(map(one_line, table.columns)):
        texts = [name, *(row[place] for row in rows)]
        if place < table.names:
            longest = max(map(cell_len, " ".join(texts).split()), default=1)
            shown.add_column(name, overflow="fold", min_width=min(LONGEST_WORD, longest))
        else:
            width = max(map(cell_len, texts))
            shown.add_column(name, justify="right", no_wrap=True, min_width=width)
    for row in rows:
        shown.add_row(*row)
    needed = Measurement.get(console, console.options.update(width=_WIDEST), shown).minimum
    if needed > console.width:
        shown.width = needed
    console.print(shown, crop=False)


def write_json(report: Mapping[str, Any] | Sequence[Any], path: Path | None) -> bool:
    """Write results where `--json` says [nowhere]; returns whether that is stdout, all it has."""
    if path == STDOUT:
        print(json.dumps(report, indent=2))
    elif path:
        with writing(path) as place:
            text = json.dumps(report, indent=2, ensure_ascii=False)
            place.write_text(f"{text}\n", encoding="utf-8")
    return path == STDOUT


def write_report(
    report: Mapping[str, Any],
    session: Session,
    path: Path | None,
    form: Format,
    *,
    tables: Iterable[Table],
    lines: Iterable[str] = (),
) -> None:
    """Write a report to report.json of the run's folder, to `path` as JSON, and to stdout.

    On stdout it is JSON where `form` or `path` says so, else tables with lines behind them.
    """
    folder = session.folder
    folder.write_json("report.json", report)
    with session.printing():
        is_written = write_json(report, path)
        if form == "json" and not is_written:
            write_json(report, STDOUT)
        elif not is_written:
            print_tables(tables, [*lines, folder.closing_message], simulated=report["simulated"])
