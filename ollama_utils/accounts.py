"""What the calls cost, counted by model."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from ollama_utils.types import Usage, short_name


@dataclass(kw_only=True)
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
        self._by_model: dict[str, Account] = {}
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
            account = self._of(model)
            account.calls += 1
            account.retries += retry

    def came_back(self, model: str, usage: Usage | None = None, *, failed: bool = False) -> None:
        """A call that went out is over."""
        with self._lock:
            self._in_flight -= 1
            account = self._of(model)
            account.failures += failed
            if usage is not None:
                account.prompt_tokens += usage.prompt_tokens
                account.completion_tokens += usage.completion_tokens
                account.queue_s += usage.queue_s
                account.busy_s += usage.prefill_s + usage.decode_s

    def hit(self, model: str) -> None:
        """A call was answered without going out."""
        with self._lock:
            self._of(model).cache_hits += 1

    def snapshot(self) -> dict[str, Account]:
        """The accounts so far by model; the tag `:latest` is left out of the names."""
        with self._lock:
            return {name: replace(account) for name, account in self._by_model.items()}

    def _of(self, model: str) -> Account:
        name = short_name(model)
        if name not in self._by_model:
            self._by_model[name] = Account()
        return self._by_model[name]
