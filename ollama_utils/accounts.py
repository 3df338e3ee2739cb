"""What the calls cost, counted by model."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from ollama_utils.types import Usage, short_name


@dataclass(frozen=True, kw_only=True)
class Account:
    """The calls to one model so far."""

    calls: int = 0
    """Requests sent; each attempt counts."""
    failures: int = 0
    """How many of these failed."""
    retries: int = 0
    """How many of these repeated one that had failed."""
    cache_hits: int = 0
    """Replies that an earlier equal call, or one under way, had paid for."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    queue_s: float = 0.0
    """Seconds that calls waited for a slot of the server, by its own timings."""
    busy_s: float = 0.0
    """Seconds that calls held a slot: prefill and decode, by the server's own timings."""


class Accounts:
    """Counters that many threads write."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_model: dict[str, dict[str, Any]] = {}
        self._in_flight = 0
        self._max_in_flight = 0

    @property
    def in_flight(self) -> int:
        """The calls that are under way."""
        return self._in_flight

    @property
    def max_in_flight(self) -> int:
        """The most calls that were under way at once."""
        return self._max_in_flight

    def sent(self, model: str, *, retry: bool) -> None:
        """A call goes out."""
        with self._lock:
            self._in_flight += 1
            self._max_in_flight = max(self._max_in_flight, self._in_flight)
            self._add(model, calls=1, retries=int(retry))

    def came_back(self, model: str, usage: Usage | None = None, *, failed: bool = False) -> None:
        """A call that went out is over."""
        used = usage or Usage()
        with self._lock:
            self._in_flight -= 1
            self._add(
                model,
                failures=int(failed),
                prompt_tokens=used.prompt_tokens,
                completion_tokens=used.completion_tokens,
                queue_s=used.queue_s,
                busy_s=used.prefill_s + used.decode_s,
            )

    def hit(self, model: str) -> None:
        """A call was answered without going out."""
        with self._lock:
            self._add(model, cache_hits=1)

    def snapshot(self) -> dict[str, Account]:
        """The accounts so far by model; the tag `:latest` is left out of the names."""
        with self._lock:
            return {name: Account(**sums) for name, sums in self._by_model.items()}

    def _add(self, model: str, **more: float) -> None:
        sums = self._by_model.setdefault(short_name(model), {})
        for name, value in more.items():
            sums[name] = sums.get(name, 0) + value
