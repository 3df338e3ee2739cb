"""Reads the TOML files that stand for flags: flat tables of numbers, texts and lists."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from train.errors import UserError


def read_toml(path: Path) -> dict[str, Any]:
    """The flags in a TOML file; what cyclopts would pass over in silence is an error.

    Raises:
        UserError: the file cannot be read, or holds what no flag takes.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{str(path)!r} is no TOML file: {error}") from error
    for key, value in table.items():
        if isinstance(value, dict):
            raise UserError(
                f"{str(path)!r} has a table [{key}]; expected the flags' names as keys at the top"
            )
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, str | int | float):
                raise UserError(
                    f"{str(path)!r}: {key!r} holds a {type(item).__name__}; "
                    "expected text, a number, true or false, or a list of these"
                )
        if key.replace("_", "-").startswith("no-"):
            positive = "use-batching" if key[3:] == "batching" else key[3:]
            raise UserError(f"{str(path)!r} has the key {key!r}; write '{positive} = false' instead")
    return table
