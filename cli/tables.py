"""Tables for people."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.style import StyleType
from rich.table import Column, Table

from records.terminal import one_line

LONGEST_WORD = 24
"""Of a name: a longer one is folded where the room is narrow."""
_WIDEST = 10_000


class ShownTable(Table):
    """A table whose cells are names and words of others: each in one line, and harmless on a terminal."""

    def add_row(
        self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False
    ) -> None:
        """Add a row; a cell that is text is shown without control characters."""
        safe = (one_line(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*safe, style=style, end_section=end_section)


def print_table(table: Table, console: Console) -> None:
    """Print a table, wider than the console where its numbers and names need that: a terminal wraps it."""
    for column in table.columns:
        column.min_width = _least_width(column)
    needed = Measurement.get(console, console.options.update(width=_WIDEST), table).minimum
    if needed > console.width:
        table.width = needed
    console.print(table, crop=False)


def _least_width(column: Column) -> int:
    """What a column needs: the whole of a number, the longest word of a name."""
    texts = [str(cell) for cell in (column.header, *column.cells)]
    if column.no_wrap:
        return max(map(cell_len, texts))
    return min(LONGEST_WORD, max((cell_len(word) for text in texts for word in text.split()), default=1))
