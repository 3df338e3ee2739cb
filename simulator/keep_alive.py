"""How long a model stays in memory: `keep_alive`, in seconds or as Go writes durations (`1h30m`)."""

from __future__ import annotations

import re

FOR_EVER_S = (2**63 - 1) / 1e9
"""Go's longest duration, 292 years: what Ollama makes of a negative `keep_alive`."""

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
# No text is matched in two ways: many digits without a unit would take the square of their number.
_PART = rf"(\d+(?:\.\d*)?|\.\d+)({'|'.join(_UNITS)})"
_WHOLE = re.compile(rf"[-+]?(?:0|(?:{_PART})+)", re.ASCII)


def is_duration(text: str) -> bool:
    """Whether Go's `time.ParseDuration` takes the text."""
    return bool(_WHOLE.fullmatch(text))


def keep_alive_s(value: str | float) -> float:
    """Seconds that a model stays in memory after its last use.

    Args:
        value: a duration (`5m`), or a number of seconds; below 0 is for ever.

    Raises:
        ValueError: the text is not a duration.
    """
    if isinstance(value, str):
        if not is_duration(value):
            raise ValueError(
                f"keep_alive must be a duration such as '5m' or a number of seconds, got {value!r}"
            )
        sign = -1 if value.startswith("-") else 1
        value = sign * sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, value))
    return FOR_EVER_S if value < 0 else min(float(value), FOR_EVER_S)
