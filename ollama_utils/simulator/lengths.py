"""How many tokens a reply has: a constant, or a lognormal draw keyed by the request."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

ReplyLength = Callable[[float], int]
"""From a number in [0, 1) to a count of tokens, at least 1."""

_EXPECTED = "reply tokens must be a whole number such as '64' or 'lognormal:mean=64,sigma=1.0'"


def parse_reply_length(spec: str) -> ReplyLength:
    """The distribution that `spec` names.

    Args:
        spec: `"64"`, or `"lognormal:mean=64,sigma=1.0"`; `mean` is the mean of the distribution in
            tokens (not of its logarithm), `sigma` the standard deviation of the logarithm.

    Raises:
        ValueError: the text names no distribution.
    """
    kind, _, rest = spec.strip().partition(":")
    if not rest:
        return _constant(kind, spec)
    if kind != "lognormal":
        raise ValueError(f"{_EXPECTED}, got {spec!r}")
    return _lognormal(_values(rest, spec), spec)


def _constant(text: str, spec: str) -> ReplyLength:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{_EXPECTED}, got {spec!r}")
    count = int(text)
    return lambda _share: count


def _values(rest: str, spec: str) -> dict[str, float]:
    try:
        pairs = (item.partition("=") for item in rest.split(","))
        return {name.strip(): float(value) for name, _, value in pairs}
    except ValueError:
        raise ValueError(f"{_EXPECTED}, got {spec!r}") from None


def _lognormal(values: dict[str, float], spec: str) -> ReplyLength:
    sound = set(values) == {"mean", "sigma"} and all(map(math.isfinite, values.values()))
    if not sound or values["mean"] < 1 or values["sigma"] < 0:
        raise ValueError(f"{_EXPECTED} (mean at least 1, sigma at least 0), got {spec!r}")
    sigma = values["sigma"]
    location = math.log(values["mean"]) - sigma**2 / 2
    quantile = NormalDist().inv_cdf

    def draw(share: float) -> int:
        inside = min(max(share, 1e-12), 1 - 1e-12)
        return max(1, round(math.exp(location + sigma * quantile(inside))))

    return draw
