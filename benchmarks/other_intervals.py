"""Intervals that others give, to show beside ours; arrays are of shape (experiments, queries)."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import ndtri  # type: ignore[import-untyped]

from benchmarks.experiments import Ends
from scorers.statistics import Floats

RESAMPLES = 999
BOOTSTRAPPED = 1000
"""Of how many experiments at most the bootstraps are made: they take the longest by far."""
_Z = float(ndtri(0.975))
_SAME = 1e-9


def plain_wilson(successes: Floats, trials: Floats) -> Ends:
    """Wilson's interval as if all trials were independent."""
    n = trials.sum(-1)
    rate, shrink = successes.sum(-1) / n, 1 + _Z**2 / n
    centre = (rate + _Z**2 / (2 * n)) / shrink
    half = _Z / shrink * np.sqrt(rate * (1 - rate) / n + _Z**2 / (4 * n**2))
    return centre - half, centre + half


def unpaired_normal(a: Floats, b: Floats, trials: int) -> Ends:
    """The normal interval for the difference of two rates, as if all trials were independent."""
    n = trials * a.shape[-1]
    first, second = a.mean(-1), b.mean(-1)
    half = _Z * np.sqrt((first * (1 - first) + second * (1 - second)) / n)
    return first - second - half, first - second + half


def percentile_bootstrap(sums: Floats, sizes: Floats) -> Ends:
    """The middle 95 % of the rates, or means, of resampled queries."""
    weights = _resamples(sums.shape[-1])
    sums, sizes = sums[:BOOTSTRAPPED], sizes[:BOOTSTRAPPED]
    low, high = np.quantile((sums @ weights.T) / (sizes @ weights.T), [0.025, 0.975], axis=-1)
    return low, high


def studentised_bootstrap(values: Floats) -> Ends:
    """The bootstrap-t interval of a mean over resampled queries (Efron and Tibshirani 1993, chapter 12)."""
    weights = _resamples(values.shape[-1]) / values.shape[-1]
    values = values[:BOOTSTRAPPED]
    mean = values.mean(-1)
    away = values - mean[:, None]
    moved = away @ weights.T
    spread = np.sqrt(np.maximum((away**2) @ weights.T - moved**2, 0))
    # A resample of equal values is infinitely far from the mean of others.
    far = np.where(np.abs(moved) > _SAME, np.sign(moved) / _SAME, 0)
    ratios = np.where(spread > _SAME, moved / np.maximum(spread, _SAME), far)
    low, high = np.quantile(ratios, [0.025, 0.975], axis=-1)
    return mean - high * values.std(-1), mean - low * values.std(-1)


@cache
def _resamples(queries: int) -> Floats:
    """How often each query is drawn in each resample, (resamples, queries); they serve all experiments."""
    stream = np.random.default_rng([6, queries])
    return stream.multinomial(queries, np.full(queries, 1 / queries), RESAMPLES).astype(np.float64)
