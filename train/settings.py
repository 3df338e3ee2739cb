"""What the commands' configs share: list flags by comma, and a config as one flat table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from cyclopts import Parameter


def comma_list() -> Parameter:
    """A flag whose value is a list written with commas, or a list in TOML."""

    def split(_type: Any, tokens: Sequence[Any]) -> tuple[str, ...]:  # noqa: ANN401 - cyclopts' signature
        return tuple(part.strip() for token in tokens for part in token.value.split(",") if part.strip())

    return Parameter(converter=split, n_tokens=1, negative="")


def resolved(config: Any) -> dict[str, Any]:  # noqa: ANN401 - any config dataclass
    """A config as one flat table, keyed as its flags are, nested configs opened: `--config` reads it back."""
    table: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            table |= resolved(value)
        else:
            table[field.name.replace("_", "-")] = str(value) if isinstance(value, Path) else value
    return table
