"""Models that do not fit into a server's memory together take turns, so that a swap serves many calls.

A server that unloads one model to load another may do so for every call. Its replies show it: each reports
how long its call waited until the model was in memory (`Usage.load_s`), and the loads of at least two
models recur (`Loads`). From then on the gate of one of them is open at a time (`Swaps`). Its turn ends,
while others wait, when none of its calls is left; or when too few are left to keep the slots busy, once the
time lost would have paid for a swap; or when it is as old as `_LONGEST` swaps. As soon as its last call is
back, the model with the most callers has the next turn, which brings lanes together that come from several
others; but one whose callers have waited for as long as `_LONGEST` swaps goes first.

Nothing else is sent to the server: a `keep_alive` or other runner options make it load more, or not at all.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ollama_utils.types import Usage

# A model in memory reports some time, too: 10 to 50 ms on real servers, of late up to 0.1 s (an assumption
# from what users show).
_FAR = 8.0
"""Who waits so many times the least that was seen of the model has waited for a load ..."""
_SURE_S = 0.1
"""... and while no call is known to have found the model in memory, who waits longer than this ..."""
_SURE_SHARE = 0.1
"""... and than this share of the time that the rest of the call took."""
_NOTABLE = 0.05
"""A load matters if waiting for it took at least this share of the time since the model's last one."""
_LONGEST = 20.0
"""The longest turn while others wait, in swaps: so they take about a twentieth of the time where all are."""
_IN_VAIN = 2
"""A model of which so many turns in a row began without a load fits in after all."""


@dataclass(frozen=True, kw_only=True)
class _Load:
    """A model's last load."""

    ready_s: float
    displaced: bool
    """Whether another model's load had come between it and the one before, not long ago."""


class Loads:
    """The loads of one server's models; times are one clock's seconds."""

    def __init__(self) -> None:
        self._least_s: dict[str, float] = {}
        self._last: dict[str, _Load] = {}

    def waited(self, model: str, usage: Usage) -> bool:
        """Whether a call waited for its model to be loaded."""
        least_s = self._least_s[model] = min(usage.load_s, self._least_s.get(model, math.inf))
        sure_s = max(_SURE_S, _SURE_SHARE * (usage.total_s - usage.load_s))
        return usage.load_s > min(_FAR * least_s, sure_s)

    def displaced(self, model: str, sent_s: float, wait_s: float) -> frozenset[str]:
        """Note a load; the models that displace each other, this one included, or none.

        A model's first load displaces nobody, and calls that waited for one load count once: between two
        loads of a model lies another model's.

        Args:
            model: the model that was loaded.
            sent_s: when a call was sent that waited for it.
            wait_s: how long the call waited.
        """
        ready_s = sent_s + wait_s
        before = self._last.get(model)
        if before is None:
            self._last[model] = _Load(ready_s=ready_s, displaced=False)
            return frozenset()
        between = {
            each: load
            for each, load in self._last.items()
            if before.ready_s < load.ready_s < ready_s
        }
        if not between:
            return frozenset()
        displaced = wait_s >= _NOTABLE * (ready_s - before.ready_s)
        self._last[model] = _Load(ready_s=ready_s, displaced=displaced)
        return frozenset(
            {model, *(each for each in between if between[each].displaced)} if displaced else ()
        )


class ModelGate(Protocol):
    """A model's gate, as far as turns need it; see `ollama_utils.limits.Gate`."""

    open: bool
    """Whether anybody is let in."""

    @property
    def limit(self) -> int:
        """The most calls inside at once."""

    @property
    def in_flight(self) -> int:
        """The calls inside now."""


@dataclass(kw_only=True)
class _Turn:
    """A model's turn."""

    model: str
    began_s: float
    seen_s: float
    """Until when time is counted."""
    over: bool = False
    """Whether it ended; the next one begins when its last call is back."""
    judged: bool = False
    """Whether a reply has shown if it began with a load."""
    idle: float = 0.0
    """The share of another model's slots that its callers would keep busy, and this model's do not."""
    lost_s: float = 0.0
    """The time so far, weighted by that share."""


class Swaps:
    """Opens and shuts the gates of one server's models; called from many threads, while no gate is locked.

    Args:
        gates: returns the gates by model, of those models that were called.
        clock: seconds from a fixed moment; the one by which calls are reported.
        waiting: how many calls to a model wait for a place at any server; `came` does not hear of them yet.
    """

    def __init__(
        self,
        gates: Callable[[], Mapping[str, ModelGate]],
        clock: Callable[[], float] = time.monotonic,
        *,
        waiting: Callable[[str], int] = lambda _model: 0,
    ) -> None:
        self._gates = gates
        self._clock = clock
        self._waiting = waiting
        self._lock = threading.Lock()
        self._loads = Loads()
        self._calls: Counter[str] = Counter()
        self._in_vain: dict[str, int] = {}
        self._since_s: dict[str, float] = {}
        self._swap_s = math.inf
        self._turn: _Turn | None = None

    @property
    def taking_turns(self) -> frozenset[str]:
        """The models that were found not to fit together; most of the time none."""
        with self._lock:
            return frozenset(self._in_vain)

    def came(self, model: str) -> None:
        """A call comes to the gate of a model (its short name)."""
        with self._lock:
            self._calls[model] += 1
            self._arrange(self._clock())

    def look(self) -> None:
        """Calls wait for a place."""
        if not self._in_vain:
            return
        with self._lock:
            self._arrange(self._clock())

    def left(self, model: str, sent_s: float | None, now_s: float, usage: Usage | None) -> None:
        """A call is over, and its place in the gate is free.

        Args:
            model: the model's short name.
            sent_s: when it was let in; None: never.
            now_s: the time now.
            usage: what the server reported; None when the call failed or nothing was reported.
        """
        with self._lock:
            self._calls[model] -= 1
            if sent_s is not None and usage is not None:
                self._learn(model, sent_s, usage)
            self._arrange(now_s)

    def _learn(self, model: str, sent_s: float, usage: Usage) -> None:
        """Learn from one reply what was loaded."""
        waited = self._loads.waited(model, usage)
        if waited:
            found = self._loads.displaced(model, sent_s, usage.load_s)
            if len(found) > 1 and not self._in_vain:
                self._swap_s = usage.load_s
            if len(found) > 1 or self._in_vain:
                self._in_vain |= dict.fromkeys(sorted(found - self._in_vain.keys()), 0)
        turn = self._turn
        if turn is not None and turn.model == model and turn.began_s <= sent_s and not turn.judged:
            turn.judged = True
            self._in_vain[model] = 0 if waited else self._in_vain[model] + 1
            if waited:
                self._swap_s = sent_s + usage.load_s - turn.began_s

    def _callers(self, model: str) -> int:
        """The calls to a model that are under way here, or could be."""
        return self._calls[model] + self._waiting(model)

    def _arrange(self, now_s: float) -> None:
        """Open the gate of the model that has its turn; shut those of the others that take turns."""
        if not self._in_vain:
            return
        gates = self._gates()
        self._let_go(gates)
        self._shut(gates, now_s)
        if self._turn is not None and self._is_over(self._turn, now_s):
            self._turn.over = True
            self._shut(gates, now_s)
        drained = not any(gates[model].in_flight for model in self._in_vain)
        if self._since_s and drained and (self._turn is None or self._turn.over):
            model = self._next(gates, now_s)
            self._turn = _Turn(model=model, began_s=now_s, seen_s=now_s)
            del self._since_s[model]
            gates[model].open = True
        if self._turn is not None:
            self._turn.idle = self._idle(gates, self._turn.model)

    def _let_go(self, gates: Mapping[str, ModelGate]) -> None:
        """Who had turns in vain takes no more; nor does the last one that is left."""
        fitting = {model for model, count in self._in_vain.items() if count >= _IN_VAIN}
        if len(self._in_vain) - len(fitting) < 2:  # noqa: PLR2004 - it takes two
            fitting = {*self._in_vain}
        for model in fitting:
            del self._in_vain[model]
            self._since_s.pop(model, None)
            gates[model].open = True
        if self._turn is not None and self._turn.model in fitting:
            self._turn = None

    def _shut(self, gates: Mapping[str, ModelGate], now_s: float) -> None:
        """Shut the gates of those that have not their turn, and note since when they have callers."""
        for model in self._in_vain:
            if self._turn is not None and self._turn.model == model and not self._turn.over:
                continue
            gates[model].open = False
            if self._callers(model) > gates[model].in_flight:
                self._since_s.setdefault(model, now_s)
            else:
                self._since_s.pop(model, None)

    def _next(self, gates: Mapping[str, ModelGate], now_s: float) -> str:
        """The model that has the next turn: one with callers, and another than before if there is one."""
        before = None if self._turn is None else self._turn.model
        since_s = {
            model: at_s for model, at_s in self._since_s.items() if model != before
        } or self._since_s
        oldest = min(since_s, key=since_s.__getitem__)
        if now_s - since_s[oldest] >= _LONGEST * self._swap_s:
            return oldest
        return max(since_s, key=lambda model: self._callers(model) - gates[model].in_flight)

    def _is_over(self, turn: _Turn, now_s: float) -> bool:
        """Whether a turn ends, or has ended."""
        turn.lost_s += turn.idle * max(0.0, now_s - turn.seen_s)
        turn.seen_s = max(now_s, turn.seen_s)
        late = now_s - turn.began_s >= _LONGEST * self._swap_s
        spent = late or turn.lost_s >= self._swap_s or not self._callers(turn.model)
        return turn.over or (spent and bool(self._since_s))

    def _idle(self, gates: Mapping[str, ModelGate], model: str) -> float:
        """The share of slots that the calls of the model leave idle, and those who wait would not."""
        ready = [
            min(self._callers(each) - gates[each].in_flight, gates[each].limit)
            for each in self._since_s
        ]
        return max(0.0, 1 - self._callers(model) / max(ready)) if ready else 0.0
