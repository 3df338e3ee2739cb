"""Results as plain data, ready for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def finite(told: Mapping[str, Any]) -> dict[str, Any]:
    """None in place of what is no finite number, which JSON does not know; in mappings within, too."""
    return {
        key: finite(value)
        if isinstance(value, Mapping)
        else None
        if isinstance(value, float) and not math.isfinite(value)
        else value
        for key, value in told.items()
    }
