"""Reads text, JSON and TOML that anybody may have written: bounded, and every defect is a ValueError."""

from __future__ import annotations

import json
import math
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 2**24
"""Bytes of a file of settings or of one line: 16 MiB."""
MOST_QUERIES_BYTES = 2**28
"""Bytes of a run's queries.json, which holds each of up to a million queries."""
_MOST_DIGITS = 20
"""Digits of a whole number: those of 2**64."""
_MOST_DOTS = 8
"""Dots in one key of a TOML file: tomllib's time grows as their square."""
_TOML_STRINGS = re.compile(
    r'"""(?:\\.|[^\\])*?"""' r"|'''.*?'''" r'|"(?:\\.|[^"\\\n])*"' r"|'[^'\n]*'" r"|#[^\n]*", re.DOTALL
)


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """The text of a regular file in UTF-8.

    Args:
        path: the file.
        most: the most bytes that are read.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a regular file, too long, or not UTF-8.
    """
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is over {most} bytes")
    return content.decode()


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - whatever it holds
    """What a JSON text holds.

    Raises:
        ValueError: it is not JSON, is nested too deep, or has a number that is out of all bounds.
    """
    try:
        return json.loads(text, parse_int=_whole, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_json_object(path: Path, most: int = MOST_BYTES) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too long, or holds something else.
    """
    found = parse_json(read_text(path, most))
    if not isinstance(found, dict):
        raise ValueError(f"it holds a JSON {type(found).__name__}; expected an object")  # noqa: TRY004 - a wrong value
    return found


def parse_toml(text: str) -> dict[str, Any]:
    """What a TOML text holds.

    Raises:
        ValueError: it is not TOML, is nested too deep, or has a number that is out of all bounds.
    """
    bare = _TOML_STRINGS.sub("s", text)
    if any(part.count(".") > _MOST_DOTS for part in re.split(r"[=,\[\]{}\n]", bare)):
        raise ValueError("its keys are nested too deep")
    if re.search(rf"[0-9]{{{_MOST_DIGITS + 1},}}", re.sub(r"\.[0-9_]+", "", bare).replace("_", "")):
        raise ValueError(f"it has a number of over {_MOST_DIGITS} digits")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        _refuse(digits)
    return int(digits)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refuse(text)
    return number


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"it has the number {number:.12}… of {len(number)} characters; expected one below 2**64")
