"""What the commands' configs share: list flags by comma, and a config as one flat table.

Reads the TOML files that stand for flags: flat tables of numbers, texts and lists.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from math import inf, isqrt
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from records.errors import UserError


def _whole(_type: Any, tokens: Sequence[Any]) -> int:  # noqa: ANN401 - cyclopts' signature
    """A whole number; cyclopts itself would make 4 of 4.5."""
    return int(tokens[0].value)


MOST_LANES = 4096
Count = Annotated[int, Parameter(validator=Number(gte=1), converter=_whole)]
"""A whole number above 0."""
Lanes = Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_LANES), converter=_whole)]
"""Environments side by side, each of which has a thread."""
Seed = Annotated[int, Parameter(validator=Number(gte=0, lt=2**32), converter=_whole)]
"""What every generator of random numbers here takes."""
Share = Annotated[float, Parameter(validator=Number(gte=0, lte=1))]
"""0 to 1."""
Positive = Annotated[float, Parameter(validator=Number(gt=0, lt=inf))]
"""A finite number above 0."""
NotNegative = Annotated[float, Parameter(validator=Number(gte=0, lt=inf))]
"""A finite number, 0 or above."""

MOST_ROWS = 2**24
"""Rows of a rollout; each holds an observation, so that these alone would take some 25 GB."""
PLACES = ("run_dir", "resume", "cache", "json")
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

    Places are left out: where a run is kept is no part of what it is.
    """
    table: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            table |= resolved(value)
        elif field.name not in PLACES:
            table[field.name.replace("_", "-")] = value
    return table


def check_num_mini_batch(num_steps: int, num_processes: int, num_mini_batch: int) -> None:
    """Check that num_processes x num_steps rows split into equal minibatches of at least two rows.

    Raises:
        ValueError: it does not; the message names the nearest numbers that do. Or there are too many rows.
    """
    rows = num_processes * num_steps
    rollout = f"the rollout of {num_processes} x {num_steps} = {rows} rows"
    if rows > MOST_ROWS:
        raise ValueError(f"{rollout} is over {MOST_ROWS}: lower --num-steps or --num-processes")
    low = [n for n in range(1, isqrt(rows) + 1) if rows % n == 0]
    divisors = sorted({*low, *(rows // n for n in low)} - {rows})
    if num_mini_batch in divisors:
        return
    if not divisors:
        raise ValueError(f"{rollout} is too short to learn from: raise --num-steps or --num-processes")
    below = [n for n in divisors if n < num_mini_batch][-1:]
    above = [n for n in divisors if n > num_mini_batch][:1]
    fault = "leaves single rows of" if num_mini_batch == rows else "does not divide"
    choice = " or ".join(str(n) for n in below + above)
    raise ValueError(
        f"--num-mini-batch {num_mini_batch} {fault} {rollout}: choose a divisor, such as {choice}"
    )


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
