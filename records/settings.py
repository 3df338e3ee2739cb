"""Settings as flags and as flat tables of TOML: types of values, lists by comma, reading a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from cyclopts import Parameter
from cyclopts.validators import Number

from records.errors import UserError
from records.reading import parse_toml, read_text


def _whole(_type: Any, tokens: Sequence[Any]) -> int:  # noqa: ANN401 - cyclopts' signature
    """A whole number; cyclopts itself would make 4 of 4.5."""
    return int(tokens[0].value)


MOST_LANES = 4096
Count = Annotated[int, Parameter(validator=Number(gte=1), converter=_whole)]
"""A whole number above 0."""
Lanes = Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_LANES), converter=_whole)]
"""Environments side by side, each of which has a thread."""
MOST_SEED = 2**32 - 1
Seed = Annotated[int, Parameter(validator=Number(gte=0, lte=MOST_SEED), converter=_whole)]
"""What every generator of random numbers here takes."""
MOST_SEEDS = 64
Several = Annotated[int, Parameter(validator=Number(gte=2, lte=MOST_SEEDS), converter=_whole)]
"""Trainings side by side, each of which has a thread and lanes of its own."""
CountOrZero = Annotated[int, Parameter(validator=Number(gte=0), converter=_whole)]
"""A whole number, 0 included."""
Share = Annotated[float, Parameter(validator=Number(gte=0, lte=1))]
"""0 to 1."""
Positive = Annotated[float, Parameter(validator=Number(gt=0, lt=inf))]
"""A finite number above 0."""
Finite = Annotated[float, Parameter(validator=Number(gt=-inf, lt=inf))]
"""A finite number."""
NotNegative = Annotated[float, Parameter(validator=Number(gte=0, lt=inf))]
"""A finite number, 0 or above."""

STDOUT = Path("-")
"""What `--json` names for standard output."""


def _json_place(_type: Any, tokens: Sequence[Any]) -> Path:  # noqa: ANN401 - cyclopts' signature
    """A file, or `-`; any other word that begins so is a flag behind a `--json` without its value."""
    value = str(tokens[0].value)
    if value.startswith("-") and value != str(STDOUT):
        raise ValueError(f"expected a file, or - for standard output, got {value!r}")
    return Path(value)


JsonPlace = Annotated[
    Path | None, Parameter(converter=_json_place, n_tokens=1, allow_leading_hyphen=True, negative="")
]
"""Where `--json` has a command's results written."""
PLACES = ("run_dir", "resume", "cache", "json", "junit")
"""Fields that say where things are kept."""


def comma_list() -> Parameter:
    """A flag whose value is a list written with commas, or a list in TOML."""

    def split(_type: Any, tokens: Sequence[Any]) -> tuple[str, ...]:  # noqa: ANN401 - cyclopts' signature
        return tuple(part.strip() for token in tokens for part in token.value.split(",") if part.strip())

    return Parameter(converter=split, n_tokens=1, negative="")


def absolute(path: str | None) -> str | None:
    """A path from the root; None stays."""
    return None if path is None else str(Path(path).absolute())


def resolved(config: Any) -> dict[str, Any]:  # noqa: ANN401 - any config dataclass
    """A config as one flat table, keyed as its flags are, nested configs opened: `--config` reads it back.

    Places are left out: where a run is kept is no part of what it is. So are fields that have no flag.
    """
    table: dict[str, Any] = {}
    flags = flags_of(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            table |= resolved(value)
        elif field.name not in PLACES and field.name in flags:
            table[flags[field.name]] = value
    return table


def flags_of(config: type) -> dict[str, str]:
    """The flag of each field of a config dataclass, without its dashes; a field that has none is left out."""
    flags: dict[str, str] = {}
    for name, hint in get_type_hints(config, include_extras=True).items():
        settings = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Parameter)]
        if all(each.parse is not False for each in settings):
            named = next((next(iter(each.name)) for each in settings if each.name), name.replace("_", "-"))
            flags[name] = named.removeprefix("--")
    return flags


def old_names(config: Any) -> dict[str, str]:  # noqa: ANN401 - any config dataclass
    """For each other name of a flag, as older files have it, the name that it has now."""
    names: dict[str, str] = {}
    hints = get_type_hints(type(config), include_extras=True)
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            names |= old_names(value)
        for each in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(each, Parameter) and each.name:
                now, *others = (name.removeprefix("--") for name in each.name)
                names |= dict.fromkeys(others, now)
    return names


def without_flag() -> Parameter:
    """A field of a config that has no flag: another setting decides it."""
    return Parameter(parse=False)


def with_flags(error: ValueError) -> str:
    """What an error says of fields, said of their flags: `elite_size is 9` as `--elite-size is 9`."""
    fields_named = r"^[a-z]+(?= is )|\b[a-z]+(?:_[a-z]+)+\b"
    return re.sub(fields_named, lambda name: f"--{name[0].replace('_', '-')}", str(error))


def read_toml(path: Path) -> dict[str, Any]:
    """The flags in a TOML file; what cyclopts would pass over in silence is an error.

    Raises:
        UserError: the file cannot be read, or holds what no flag takes.
    """
    try:
        table = parse_toml(read_text(path))
    except ValueError as error:
        raise UserError(f"{str(path)!r} is not a TOML file: {error}") from error
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
