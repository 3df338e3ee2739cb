"""From how many calls at once a server's throughput stops growing."""

from __future__ import annotations

import math

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
        self._count = 0.0
        self._around = 0.0
        self._spread = 0.0
        self._tokens = 0.0
        self._prefill = _Line()
        self._token = _Line()

    def add(self, around: float, usage: Usage) -> None:
        """A reply came; `around` is the mean number of calls in service while it was, itself included."""
        if usage.completion_tokens < 1:
            return
        self._count = min(self._count + 1, 1 / _MEMORY)
        share, off = 1 / self._count, around - self._around
        self._prefill.add(share, off, usage.prefill_s)
        self._token.add(share, off, usage.decode_s / usage.completion_tokens)
        self._around += share * off
        self._spread = (1 - share) * (self._spread + share * off * off)
        self._tokens += share * (usage.completion_tokens - self._tokens)

    def of(self, slots: int) -> int:
        """The least number of calls at once whose throughput is as good as that of all slots."""
        slowing_s = self._slope(self._prefill) + self._tokens * self._slope(self._token)
        if slowing_s <= 0:
            return slots
        service_s = self._prefill.mean_s + self._tokens * self._token.mean_s
        alone_s = max(0.0, service_s - slowing_s * self._around)
        least = _WORTH * slots * alone_s / (alone_s + (1 - _WORTH) * slots * slowing_s)
        return min(slots, max(1, math.ceil(least)))

    def _slope(self, line: _Line) -> float:
        """How many seconds each further call adds, at least."""
        if self._spread <= 0 or self._count < _FEWEST:
            return 0.0
        slope = line.both / self._spread
        error = math.sqrt(max(0.0, line.noise - slope * line.both) / self._spread / self._count)
        return max(0.0, slope - _SURE * error)


class _Line:
    """Running sums of seconds against the calls around: their mean, their variance and their covariance."""

    def __init__(self) -> None:
        self.mean_s = 0.0
        self.noise = 0.0
        self.both = 0.0

    def add(self, share: float, off: float, seconds: float) -> None:
        """One reply more, counted as this share; `off`: how far the calls around it are from their mean."""
        off_s = seconds - self.mean_s
        self.mean_s += share * off_s
        self.noise = (1 - share) * (self.noise + share * off_s * off_s)
        self.both = (1 - share) * (self.both + share * off * off_s)
