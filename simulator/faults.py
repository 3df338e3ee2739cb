"""The faults that can be asked for, and which calls they strike.

A list of faults comes as JSON (`[{"kind": "error_500", "rate": 0.1}]`); whether one strikes a call is a
function of the seed, the request, and how often it came. `simulator.fault_injection` plays them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from simulator.chance import digest_of, share_of
from simulator.names import full_name

FaultKind = Literal[
    "busy_503",
    "cut_json",
    "dribble",
    "drop",
    "empty",
    "enormous",
    "error_500",
    "hang",
    "latency",
    "not_done",
    "not_json",
    "stall",
    "truncated",
    "wrong_type",
]
"""What can go wrong with a call; `simulator.fault_injection` describes each."""

Point = Literal["start", "body", "end", "after"]
"""Where a reply is struck: before its first byte, halfway through its body, before its last bytes (the
terminating chunk of a stream), or when all of it is sent."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One kind of failure, and which calls it strikes."""

    kind: FaultKind
    rate: float
    """The share of calls, 0 to 1, at which it begins to strike."""
    model: str | None = None
    """The only model it strikes (without a tag it means `:latest`); None strikes all."""
    first: int | None = None
    """It begins only among the first so many occurrences of a request; None: at any."""
    burst: int = 1
    """Once it begins at an occurrence of a request, it strikes this many occurrences in a row."""
    at: Point = "start"
    """Where it strikes the reply."""
    seconds: float = 0.0
    """How long it lasts, by the wall clock whatever the time scale: a client's patience is not scaled."""
    bytes: int = 0
    """The size of the reply's body, at least."""
    status: int = 200
    """The HTTP status."""
    field: str | None = None
    """The field of the reply; None is the one with its content."""

    @property
    def fails_call(self) -> bool:
        """Whether the call fails: a late reply, or one after which the connection goes, is a good one."""
        return self.kind != "latency" and self.at != "after"

    def fits(self, endpoint: str) -> bool:
        """Whether the endpoint's replies can be so struck."""
        if self.kind == "not_done" or self.field in {"done", "eval_count"}:
            return endpoint in WITH_WORDS
        if self.field in {"model", "total_duration"}:
            return endpoint != "embeddings"
        return self.field is None or CONTENT[endpoint] == self.field


CONTENT = {"generate": "response", "chat": "message", "embed": "embeddings", "embeddings": "embedding"}
"""For each endpoint the field with the content of its replies."""
WITH_WORDS = frozenset({"generate", "chat"})
"""The endpoints whose replies are words, which can be streamed."""


class FaultPlan:
    """Decides which calls fail: a pure function of seed, endpoint, request and its occurrence number.

    So other requests, and their order, change nothing. A burst keeps to that law: it is a run of
    occurrences of one request, such as the attempts of a client that tries again, and not of the calls
    that happen to come next. Every request draws anew at each of its occurrences whether a fault begins.
    While faults are played every distinct request is remembered, some 150 bytes each.

    Args:
        seed: the server's seed.
        faults: what is played; of several that strike a call the first counts.
    """

    def __init__(self, seed: int, faults: Sequence[Fault] = ()) -> None:
        self._seed = seed
        self.set(faults)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What is played."""
        return self._faults

    def set(self, faults: Sequence[Fault]) -> None:
        """Play these faults from now on and count occurrences anew."""
        self._faults = tuple(faults)
        self._seen: Counter[bytes] = Counter()

    def strike(self, endpoint: str, body: bytes, model: str) -> Fault | None:
        """The failure that this call meets, if any.

        Args:
            endpoint: `generate`, `chat`, `embed` or `embeddings`.
            body: the request's body as it came.
            model: the model's full name.
        """
        if not self._faults:
            return None
        request = digest_of(self._seed, endpoint, body.hex())
        self._seen[request] += 1
        for number, fault in enumerate(self._faults):
            meant = fault.model is None or full_name(fault.model) == model
            if meant and fault.fits(endpoint) and _strikes(fault, number, request, self._seen[request]):
                return fault
        return None


def _strikes(fault: Fault, number: int, request: bytes, occurrence: int) -> bool:
    """Whether a fault, by its number in the list, began at this occurrence or at one whose burst goes on."""
    last = occurrence if fault.first is None else min(occurrence, fault.first)
    begun = range(max(1, occurrence - fault.burst + 1), last + 1)
    return any(share_of(request, f"{number}:{fault.kind}:{each}") < fault.rate for each in begun)


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
_POINTS = {
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
    points = _POINTS.get(kind, ())
    if "at" in item and item["at"] not in points:
        raise ValueError(f"a fault of kind {kind!r} must be at one of {list(points)}, got {item['at']!r}")
    return Fault(**{**_OWN.get(kind, {}), **item})


def _names(kind: FaultKind) -> list[str]:
    return [*_COMMON, *_OWN.get(kind, {})]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: object, least: int, most: float) -> bool:
    return type(value) is int and least <= value <= most
