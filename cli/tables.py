"""Reports as tables for people, as JSON, or as YAML: what all commands show theirs with."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from records.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 110
"""Of the tables where there is no terminal, and no COLUMNS in the environment."""


def print_parts(
    parts: Iterable[tuple[Sequence[Table], str]], problems: Iterable[str] = (), *, simulated: bool
) -> None:
    """Print tables on stdout, `WIDTH` columns wide where there is no terminal.

    Args:
        parts: tables of one kind, with the sentence that explains them; those without rows are left out.
        problems: lines that come last.
        simulated: whether the figures come from the simulator, which is said first.
    """
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    with console.capture() as shown:  # rich itself would end the process when nobody reads any more
        if simulated:
            console.print("SIMULATED: these figures are of the simulator, not of a model\n")
        for tables, says in parts:
            for table in tables:
                if table.row_count:
                    console.print(table)
            if any(table.row_count for table in tables):
                console.print(f"{says}\n")
        for line in problems:
            console.print(line, soft_wrap=True)
    print(shown.get(), end="")


def as_json(report: Mapping[str, Any]) -> str:
    """The report as JSON."""
    return json.dumps(report, indent=2, ensure_ascii=False)


def as_yaml(report: Mapping[str, Any]) -> str:
    """The report as YAML."""
    import yaml

    text: str = yaml.safe_dump(dict(report), sort_keys=False, allow_unicode=True, width=WIDTH)
    return text


def check_format(name: str) -> None:
    """Check, before the work is done, that a report can be written in this format.

    Raises:
        UserError: the library for it is not installed.
    """
    if name == "yaml" and importlib.util.find_spec("yaml") is None:
        raise UserError("--format yaml needs pyyaml: pip install 'mutagym[yaml]'")


def new_table(title: str, *columns: str, names: int = 1) -> Table:
    """A table whose first columns hold names, the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for place, column in enumerate(columns):
        if place < names:
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
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


def p_value(value: float | None) -> str:
    """`.034`, `<.001`; `-` where there is none."""
    if value is None:
        return "-"
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0")  # noqa: PLR2004 - what three digits show
