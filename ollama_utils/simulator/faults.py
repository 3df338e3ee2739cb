"""Calls that fail on purpose: which call meets which fault, decided by the request and how often it came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ollama_utils.simulator.chance import digest_of, share_of
from ollama_utils.simulator.names import full_name

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
"""What can go wrong with a call; `ollama_utils.simulator.sabotage` tells what each looks like."""

Place = Literal["start", "body", "end", "after"]
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
    at: Place = "start"
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
    def spoils(self) -> bool:
        """Whether the call fails: a late reply, or one after which the connection goes, is a good one."""
        return self.kind != "latency" and self.at != "after"

    def fits(self, endpoint: str) -> bool:
        """Whether the endpoint's replies can be so struck."""
        if self.kind == "not_done" or self.field in {"done", "eval_count"}:
            return endpoint in WORDY
        if self.field in {"model", "total_duration"}:
            return endpoint != "embeddings"
        return self.field is None or CONTENT[endpoint] == self.field


CONTENT = {"generate": "response", "chat": "message", "embed": "embeddings", "embeddings": "embedding"}
"""For each endpoint the field with the content of its replies."""
WORDY = frozenset({"generate", "chat"})
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
        for place, fault in enumerate(self._faults):
            meant = fault.model is None or full_name(fault.model) == model
            if meant and fault.fits(endpoint) and _strikes(fault, place, request, self._seen[request]):
                return fault
        return None


def _strikes(fault: Fault, place: int, request: bytes, occurrence: int) -> bool:
    """Whether a fault, by its place in the list, began at this occurrence or at one whose burst goes on."""
    last = occurrence if fault.first is None else min(occurrence, fault.first)
    begun = range(max(1, occurrence - fault.burst + 1), last + 1)
    return any(share_of(request, f"{place}:{fault.kind}:{number}") < fault.rate for number in begun)
