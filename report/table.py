"""A table of results, which a terminal and the page show alike, and how its numbers are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NONE = "\N{EN DASH}"
"""Where nothing is known."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table for people."""

    caption: str
    columns: Sequence[str]
    """The first ones hold names, the others numbers."""
    rows: Sequence[Sequence[str]]
    names: int = 1
    """How many columns hold names."""
    says: str = ""
    """What the numbers mean, here and in the tables before it that explain nothing themselves."""


def number(value: float | None, times: float = 1, digits: int = 1, *, sign: bool = False) -> str:
    """The number, with a true minus; a dash where there is none."""
    if value is None:
        return NONE
    return f"{value * times:{'+' if sign else ''}.{digits}f}".replace("-", "\N{MINUS SIGN}")


def percent(share: float | None) -> str:
    """`81.2`."""
    return number(share, 100)


def with_interval(
    found: Mapping[str, Any],
    key: str,
    times: float = 1,
    *,
    digits: int | None = None,
    sign: bool = False,
) -> str:
    """`81.2 [74.1, 86.6]`, of `key`, `low` and `high`; the value alone where it has no interval."""
    if found[key] is None:
        return NONE
    digits = (1 if times > 1 else 2) if digits is None else digits
    names = (key, "low", "high")
    value, low, high = (number(found[name], times, digits, sign=sign) for name in names)
    return value if NONE in {low, high} else f"{value} [{low}, {high}]"


def p_value(value: float | None) -> str:
    """`.034`, `<.001`."""
    if value is None:
        return NONE
    return f"{value:.3f}".removeprefix("0") if value >= 0.001 else "<.001"  # noqa: PLR2004 - shown
