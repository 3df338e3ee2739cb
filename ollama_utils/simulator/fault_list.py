"""Faults as JSON: what a list of them may say, and what stands for what it leaves out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from ollama_utils.simulator.faults import CONTENT, Fault, FaultKind

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)

_SECONDS_OF_A_LOAD = 300.0
"""After so long Ollama gives a load up (OLLAMA_LOAD_TIMEOUT)."""
_MOST_BYTES = 2**28
_MOST_IN_A_ROW = 1000
_COMMON = ("kind", "rate", "model", "first", "burst")
_OWN: Mapping[FaultKind, Mapping[str, Any]] = {
    "dribble": {"at": "body", "seconds": 60.0},
    "drop": {"at": "start"},
    "enormous": {"bytes": 2**26},
    "hang": {"at": "start"},
    "latency": {"seconds": 1.0},
    "not_json": {"status": 200},
    "stall": {"seconds": _SECONDS_OF_A_LOAD},
    "wrong_type": {"field": None},
}
"""What a kind may say beside `_COMMON`, and what stands for it."""
_PLACES = {
    "dribble": ("start", "body"),
    "drop": ("start", "body", "end", "after"),
    "hang": ("start", "body", "end"),
}
_TYPED_FIELDS = (*CONTENT.values(), "model", "done", "eval_count", "total_duration")

_CHECKS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "rate": ("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1),
    "model": ("a name", lambda value: value is None or (isinstance(value, str) and bool(value))),
    "first": ("a whole number of at least 1", lambda value: value is None or _is_whole(value, 1, math.inf)),
    "burst": (
        f"a whole number from 1 to {_MOST_IN_A_ROW}",
        lambda value: _is_whole(value, 1, _MOST_IN_A_ROW),
    ),
    "seconds": ("a number above 0", lambda value: _is_number(value) and 0 < value < math.inf),
    "bytes": (f"a whole number from 1 to {_MOST_BYTES}", lambda value: _is_whole(value, 1, _MOST_BYTES)),
    "status": ("a whole number from 200 to 599", lambda value: _is_whole(value, 200, 599)),
    "field": (f"one of {list(_TYPED_FIELDS)}", lambda value: value is None or value in _TYPED_FIELDS),
}
"""What is expected of a value, and whether it is so."""


def parse_faults(items: object) -> tuple[Fault, ...]:
    """The faults of a JSON list such as `[{"kind": "error_500", "rate": 0.1}]`.

    Raises:
        ValueError: something else came; the message says what was expected.
    """
    if not isinstance(items, list):
        # The data is wrong, not a caller's code: a ValueError, as for every other fault that cannot be.
        raise ValueError(  # noqa: TRY004 - see above
            f"faults must be a list of objects with 'kind' and 'rate', got {items!r}"
        )
    return tuple(_parse(item) for item in items)


def read_faults(path: str) -> tuple[Fault, ...]:
    """The faults of a JSON file that holds such a list.

    Raises:
        ValueError: it cannot be read, or holds something else.
    """
    try:
        return parse_faults(json.loads(Path(path).read_text("utf-8")))
    except OSError as error:
        raise ValueError(f"the file of faults {path!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"the file of faults {path!r}: {error}") from error


def listed(faults: Sequence[Fault]) -> list[dict[str, Any]]:
    """The faults as JSON, each with all that its kind may say: `parse_faults` reads it."""
    return [{name: getattr(fault, name) for name in _names(fault.kind)} for fault in faults]


def _parse(item: object) -> Fault:
    if not isinstance(item, Mapping) or not {"kind", "rate"} <= set(item):
        raise ValueError(f"a fault must be an object with 'kind' and 'rate', got {item!r}")
    kind = item["kind"]
    if kind not in KINDS:
        raise ValueError(f"a fault's kind must be one of {list(KINDS)}, got {kind!r}")
    names = _names(kind)
    if unknown := sorted(map(str, set(item) - set(names))):
        raise ValueError(f"a fault of kind {kind!r} may have {names}, got {unknown} too")
    for name, value in item.items():
        if name in _CHECKS and not _CHECKS[name][1](value):
            raise ValueError(f"a fault's {name} must be {_CHECKS[name][0]}, got {value!r}")
    places = _PLACES.get(kind, ())
    if "at" in item and item["at"] not in places:
        raise ValueError(f"a fault of kind {kind!r} must be at one of {list(places)}, got {item['at']!r}")
    return Fault(**{**_OWN.get(kind, {}), **item})


def _names(kind: FaultKind) -> list[str]:
    return [*_COMMON, *_OWN.get(kind, {})]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: object, least: int, most: float) -> bool:
    return type(value) is int and least <= value <= most
