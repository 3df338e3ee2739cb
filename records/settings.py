"""Settings as flags and as flat tables of TOML: types that check values, and reading a file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from cyclopts import Parameter
from cyclopts.validators import Number

from records.errors import UserError
from records.json_lines import read_text


def _whole(_type: Any, tokens: Sequence[Any]) -> int:  # noqa: ANN401 - cyclopts' signature
    """A whole number; cyclopts itself, and its `PositiveInt`, would make 4 of 4.5."""
    return int(tokens[0].value)


def _between(low: float | None = None, high: float | None = None) -> Parameter:
    return Parameter(validator=Number(gte=low, lte=high), converter=_whole)


MOST_LANES, MOST_SEED, MOST_SEEDS = 4096, 2**32 - 1, 64
Whole = Annotated[int, _between()]
"""A whole number."""
Count = Annotated[int, _between(1)]
"""A whole number above 0."""
CountOrZero = Annotated[int, _between(0)]
"""A whole number, 0 included."""
Port = Annotated[int, _between(0, 65_535)]
"""A TCP port to listen at; 0 is any free one."""
Lanes = Annotated[int, _between(1, MOST_LANES)]
"""Environments side by side, each of which has a thread."""
Seed = Annotated[int, _between(0, MOST_SEED)]
"""What every generator of random numbers here takes."""
Several = Annotated[int, _between(2, MOST_SEEDS)]
"""Trainings side by side, each of which has a thread and lanes of its own."""
Share = Annotated[float, Parameter(validator=Number(gte=0, lte=1))]
"""0 to 1."""
OpenShare = Annotated[float, Parameter(validator=Number(gt=0, lt=1))]
"""Above 0 and below 1."""
Positive = Annotated[float, Parameter(validator=Number(gt=0, lt=inf))]
"""A finite number above 0."""
Finite = Annotated[float, Parameter(validator=Number(gt=-inf, lt=inf))]
"""A finite number."""
NotNegative = Annotated[float, Parameter(validator=Number(gte=0, lt=inf))]
"""A finite number, 0 or above."""

STDOUT = Path("-")
"""What `--json` names for standard output."""


def _json_place(_type: Any, tokens: Sequence[Any]) -> Path:  # noqa: ANN401 - cyclopts' signature
    """A file, or `-`; another word that begins so is a flag behind a `--json` without a value."""
    value = str(tokens[0].value)
    if value.startswith("-") and value != str(STDOUT):
        raise ValueError(f"expected a file, or - for standard output, got {value!r}")
    return Path(value)


JsonPlace = Annotated[
    Path | None,
    Parameter(converter=_json_place, n_tokens=1, allow_leading_hyphen=True, negative=""),
]
"""Where `--json` has a command's results written."""
PLACES = frozenset(("run-dir", "resume", "cache", "json"))
"""Flags that say where things are kept."""
COMMA_LISTS = ("mutators", "baselines", "models")
"""Flags whose value is a list written with commas."""


def comma_list() -> Parameter:
    """A flag whose value is a list written with commas, or a list in TOML: see `COMMA_LISTS`."""

    def split(_type: Any, tokens: Sequence[Any]) -> tuple[str, ...]:  # noqa: ANN401 - cyclopts' signature
        return tuple(
            part.strip() for token in tokens for part in token.value.split(",") if part.strip()
        )

    return Parameter(converter=split, n_tokens=1, negative="")


def absolute(path: str | None) -> str | None:
    """The absolute path of a path; None stays None."""
    return None if path is None else str(Path(path).absolute())


def located_function(name: str | None) -> str | None:
    """`mine.py:grade` with the absolute path of its file; a name without a file stays as it is."""
    file, colon, of_it = (name or "").rpartition(":")
    return f"{absolute(file)}:{of_it}" if colon else name


def resolved(config: Any) -> dict[str, Any]:  # noqa: ANN401 - any config dataclass
    """A config's `flat_table` without places: where a run is kept is no part of what it is."""
    return {flag: value for flag, value in flat_table(config).items() if flag not in PLACES}


def flat_table(config: Any) -> dict[str, Any]:  # noqa: ANN401 - any config dataclass
    """A config as one table keyed as its flags are, nested configs opened; TOML can hold it.

    Fields without a flag are left out.
    """
    table: dict[str, Any] = {}
    flags = flags_of(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            table |= flat_table(value)
        elif field.name in flags:
            table[flags[field.name]] = value
    return table


def flags_of(config: type) -> dict[str, str]:
    """The flag of each field of a config dataclass, without its dashes; a field may have none."""
    flags: dict[str, str] = {}
    for name, hint in get_type_hints(config, include_extras=True).items():
        marks = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Parameter)]
        if all(each.parse is not False for each in marks):
            named = next((next(iter(each.name)) for each in marks if each.name), name)
            flags[name] = named.removeprefix("--").replace("_", "-")
    return flags


def with_flags(error: ValueError) -> str:
    """An error's message with flags for the names of fields: `--elite-size is 9`."""
    fields_named = r"^[a-z]+(?= is )|(?<!')\b[a-z]+(?:_[a-z]+)+\b(?!')"  # and no quoted value
    return re.sub(fields_named, lambda name: f"--{name[0].replace('_', '-')}", str(error))


def as_texts(value: Any) -> list[str]:  # noqa: ANN401 - a setting
    """The values of a setting as text: those of a list one by one, none of None."""
    values = value if isinstance(value, list | tuple) else [value]
    return [str(item) for item in values if item is not None]


def as_words(flag: str, values: Iterable[str]) -> list[str]:
    """A flag with its values as words of a command line."""
    words: list[str] = []
    for value in [",".join(values)] if flag in COMMA_LISTS else values:
        words += [f"--{flag}={value}"] if value.startswith("-") else [f"--{flag}", value]
    return words


def read_toml(path: Path) -> dict[str, Any]:
    """The flags in a TOML file; a UserError if it holds what no flag takes, or cannot be read."""
    try:
        table = tomllib.loads(read_text(path))
    except RecursionError as error:
        raise UserError(f"{str(path)!r} is not a TOML file: it is nested too deep") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)!r} is not a TOML file that can be read: {error}") from error
    for key, value in table.items():  # what cyclopts would pass over in silence
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, str | int | float):
                found = "table" if isinstance(item, dict) else type(item).__name__
                raise UserError(
                    f"{str(path)!r}: {key!r} is a {found}; expected flags as keys at the top, each "
                    "with a text, a number, true or false, or a list of these"
                )
        if key.replace("_", "-").startswith("no-"):
            positive = "use-batching" if key[3:] == "batching" else key[3:]
            raise UserError(f"{str(path)!r} has {key!r}; write '{positive} = false' instead")
    return table
