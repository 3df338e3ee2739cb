"""Tables for people."""

from __future__ import annotations

from rich.console import RenderableType
from rich.style import StyleType
from rich.table import Table

from records.terminal import one_line


class ShownTable(Table):
    """A table whose cells are names and words of others: each in one line, and harmless on a terminal."""

    def add_row(
        self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False
    ) -> None:
        """Add a row; a cell that is text is shown without control characters."""
        safe = (one_line(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*safe, style=style, end_section=end_section)
