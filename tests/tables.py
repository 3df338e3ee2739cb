"""A table is one test, which names every row that fails."""

from __future__ import annotations

from collections.abc import Iterable


def listed(rows: Iterable[object]) -> str:
    """The failing rows, a line each, whole: pytest's own message cuts a long list."""
    return "\n".join(map(repr, rows))
