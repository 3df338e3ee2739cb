"""Which models a server loads again and again because they displace each other, as its own replies tell.

A reply says for how long its call waited until the model was in memory (`Usage.load_s`). A model in memory
reports some time too: 10 to 50 ms on real servers, of late up to 0.1 s (an assumption from what users show).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ollama_utils.types import Usage

_FAR = 8.0
"""Who waits so many times the least that was seen of the model has waited for a load ..."""
_SURE_S = 0.1
"""... and while no call is known to have found the model in memory, who waits longer than this ..."""
_SURE_SHARE = 0.1
"""... and than this share of the time that the rest of the call took."""
_NOTABLE = 0.05
"""A load matters if waiting for it took at least this share of the time since the model's last one."""


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
        between = {each: load for each, load in self._last.items() if before.ready_s < load.ready_s < ready_s}
        if not between:
            return frozenset()
        displaced = wait_s >= _NOTABLE * (ready_s - before.ready_s)
        self._last[model] = _Load(ready_s=ready_s, displaced=displaced)
        return frozenset({model, *(each for each in between if between[each].displaced)} if displaced else ())
