"""From how many calls at once a server's throughput stops growing."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ollama_utils.types import Usage

_WORTH = 0.97
"""The share of the most throughput that is as good as all of it."""
_MEMORY = 1 / 256
"""The weight of a new reply once there are many."""
_FEWEST = 8
"""Replies before which nothing is said."""
_SURE = 3.0
"""Standard errors by which calls must slow each other down before it counts."""


class Knee:
    """Learns from replies how much slower each is served the more are served beside it.

    Reading a prompt and writing a token both take longer by about as much with each call beside it, so a
    service takes A + B n seconds among n, and n / (A + B n) calls are served in a second. B is taken to be as
    small as the replies allow: noise must not cost throughput.
    """

    def __init__(self) -> None:
        self._mean: NDArray[np.float64] = np.zeros(
            4
        )  # calls around, seconds a prompt, seconds a token, tokens
        self._spread: NDArray[np.float64] = np.zeros((4, 4))
        self._count = 0.0

    def add(self, around: float, usage: Usage) -> None:
        """A reply came; `around` is the mean number of calls in service while it was, itself included."""
        if usage.completion_tokens < 1:
            return
        per_token_s = usage.decode_s / usage.completion_tokens
        self._count = min(self._count + 1, 1 / _MEMORY)
        share = 1 / self._count
        off = np.array([around, usage.prefill_s, per_token_s, usage.completion_tokens]) - self._mean
        self._mean += share * off
        self._spread = (1 - share) * (self._spread + share * np.outer(off, off))

    def of(self, slots: int) -> int:
        """The least number of calls at once whose throughput is as good as that of all slots."""
        around, prefill_s, per_token_s, tokens = map(float, self._mean)
        slowing_s = self._slope(1) + tokens * self._slope(2)
        if slowing_s <= 0:
            return slots
        alone_s = max(0.0, prefill_s + tokens * per_token_s - slowing_s * around)
        least = _WORTH * slots * alone_s / (alone_s + (1 - _WORTH) * slots * slowing_s)
        return min(slots, max(1, math.ceil(least)))

    def _slope(self, column: int) -> float:
        """How many seconds each further call adds, at least."""
        spread, both, noise = (float(self._spread[i]) for i in ((0, 0), (0, column), (column, column)))
        if spread <= 0 or self._count < _FEWEST:
            return 0.0
        slope = both / spread
        error = math.sqrt(max(0.0, noise - slope * both) / spread / self._count)
        return max(0.0, slope - _SURE * error)
