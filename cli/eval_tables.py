"""The report of an evaluation for people, on stdout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cli.formats import new_table, print_parts
from report.evaluations import evaluation_tables

PLAIN = str.maketrans({"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{MIDDLE DOT}": "-"})
"""What a page has signs of its own for."""


def print_tables(report: Mapping[str, Any], *last: str) -> None:
    """Print the tables of a report as `print_parts` does, then its notes and problems, then `last`.

    Args:
        report: what `evaluation.report.report` says.
        last: lines below the problems.
    """
    parts, tables = [], []
    for each in evaluation_tables(report):
        table = new_table(each.caption, *each.columns, names=each.names)
        for row in each.rows:
            table.add_row(*(cell.translate(PLAIN) for cell in row))
        tables.append(table)
        if each.says:
            parts.append((tables, each.says))
            tables = []
    print_parts(parts, [*report["notes"], *report["problems"], *last], simulated=report["simulated"])
