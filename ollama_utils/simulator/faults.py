"""Calls that fail on purpose, decided by the request and how often it came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ollama_utils.simulator.catalogue import full_name
from ollama_utils.simulator.chance import digest_of, share_of

FaultKind = Literal["error_500", "busy_503", "drop", "not_json", "empty"]
"""A runner crash, a full queue, a connection closed before the body, a body that is no JSON, an
empty reply."""

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One kind of failure and the share of calls it hits."""

    kind: FaultKind
    rate: float
    """The share of calls, 0 to 1."""
    model: str | None = None
    """The only model it hits (without a tag it means `:latest`); None hits all."""


def parse_faults(items: object) -> tuple[Fault, ...]:
    """The faults of a JSON list such as `[{"kind": "error_500", "rate": 0.1}]`.

    Raises:
        ValueError: something else came; the message says what was expected.
    """
    if not isinstance(items, Sequence) or isinstance(items, str):
        # The data is wrong, not a caller's code: a ValueError, as for every other fault that cannot be.
        raise ValueError(  # noqa: TRY004 - see above
            f"faults must be a list of objects with 'kind' and 'rate', got {items!r}"
        )
    return tuple(_parse(item) for item in items)


def _parse(item: object) -> Fault:
    if not isinstance(item, Mapping) or not {"kind", "rate"} <= set(item) <= {"kind", "rate", "model"}:
        raise ValueError(f"a fault must have 'kind', 'rate' and perhaps 'model', got {item!r}")
    kind, rate, model = item["kind"], item["rate"], item.get("model")
    if kind not in KINDS:
        raise ValueError(f"a fault's kind must be one of {list(KINDS)}, got {kind!r}")
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
        raise ValueError(f"a fault's rate must be a number from 0 to 1, got {rate!r}")
    if model is not None and not isinstance(model, str):
        raise ValueError(f"a fault's model must be a name, got {model!r}")
    return Fault(kind=kind, rate=float(rate), model=model)


class FaultPlan:
    """Decides which calls fail: a pure function of seed, request and its occurrence number.

    Args:
        seed: the server's seed.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._faults: tuple[Fault, ...] = ()
        self._seen: Counter[bytes] = Counter()

    def set(self, faults: tuple[Fault, ...]) -> None:
        """Play these faults from now on and count occurrences anew."""
        self._faults = faults
        self._seen.clear()

    def strike(self, path: str, body: bytes, model: str) -> FaultKind | None:
        """The failure that this call meets, if any.

        Args:
            path: the endpoint.
            body: the request's body as it came.
            model: the model's full name.
        """
        if not self._faults:
            return None
        request = digest_of(self._seed, path, body.hex())
        self._seen[request] += 1
        for place, fault in enumerate(self._faults):
            if fault.model is not None and full_name(fault.model) != model:
                continue
            if share_of(request, f"{place}:{fault.kind}:{self._seen[request]}") < fault.rate:
                return fault.kind
        return None


def listed(faults: tuple[Fault, ...]) -> list[dict[str, Any]]:
    """The faults as they go back over HTTP."""
    return [{"kind": item.kind, "rate": item.rate, "model": item.model} for item in faults]
