"""What a score is worth: raw scores turned into what feedback says they come to, and how well that holds."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scorers.statistics import Floats

LEAST_PAIRS = 20
BINS = 10


@dataclass(frozen=True, kw_only=True)
class CalibrationReport:
    """How far scores lay from the values that were told, each scored by what was known before it.

    Where nothing was told, all figures are nan.
    """

    pairs: int
    """How many were told."""
    error_raw: float
    """The calibration error (`calibration_error`) of the raw scores, 0 to 1."""
    error: float
    """That of the calibrated ones."""
    brier_raw: float
    """The mean squared distance (`brier_score`) of the raw scores, 0 to 1."""
    brier: float
    """That of the calibrated ones."""


@dataclass(frozen=True, eq=False)
class _Fit:
    """A rising line through points, drawn towards the diagonal."""

    scores: Floats
    """(points,), rising."""
    values: Floats
    """(points,), what each comes to."""
    trust: float
    """What the line weighs; the raw score weighs the rest."""

    def __call__(self, score: float) -> float:
        fitted = float(np.interp(score, self.scores, self.values))
        return self.trust * fitted + (1 - self.trust) * score


class Calibration:
    """Isotonic regression of the values that were told on the raw scores, from a careful start.

    With fewer than `least_pairs` pairs a score stays as it is. From then on it is the mean of the isotonic
    fit (PAVA; scikit-learn's), weighed by its pairs, and of the raw score, weighed by `least_pairs`: so few
    pairs move little, scores that differ still differ, and their order is kept. A fit is a pure function of
    the pairs, and made when a score is first asked for after they were told: to tell costs no fit. May be
    used on many threads.

    Args:
        least_pairs: from how many pairs on a fit is used, and what the raw score weighs beside it.
        window: only the latest pairs count, where what a raw score means changes as its critic learns.
    """

    def __init__(self, *, least_pairs: int = LEAST_PAIRS, window: int | None = None) -> None:
        self._least = least_pairs
        self._window = window
        self._told: list[tuple[float, float]] = []
        # What each score told came to by the pairs before it; None where nobody has worked that out yet.
        self._after: list[float | None] = []
        self._fit: _Fit | None = None
        self._fitted = 0
        self._lock = threading.Lock()

    def __call__(self, score: float) -> float:
        """The calibrated score of a raw one; both from 0 to 1."""
        with self._lock:
            if self._fitted < len(self._told):
                self._fit, self._fitted = self._fit_before(self._told, len(self._told)), len(self._told)
            return _calibrated(self._fit, score)

    def tell(self, score: float, value: float) -> None:
        """Learn that a reply of this raw score came to this value.

        Raises:
            ValueError: one of them is not from 0 to 1.
        """
        if not (0 <= score <= 1 and 0 <= value <= 1):
            raise ValueError(f"expected a score and a value from 0 to 1, got {score!r} and {value!r}")
        with self._lock:
            known = self._fitted == len(self._told)
            self._after.append(_calibrated(self._fit, score) if known else None)
            self._told.append((score, value))

    def report(self) -> CalibrationReport:
        """How well the scores held, before and after.

        Each pair that was told right after another, with no score asked for in between, costs a fit here,
        once.
        """
        with self._lock:
            told, known = list(self._told), list(self._after)
        # Outside the lock, for it may take long; what another thread works out meanwhile is the same.
        after = [
            _calibrated(self._fit_before(told, place), told[place][0]) if value is None else value
            for place, value in enumerate(known)
        ]
        with self._lock:
            self._after[: len(after)] = after
        raw, values = ([pair[part] for pair in told] for part in range(2))
        return CalibrationReport(
            pairs=len(told),
            error_raw=calibration_error(raw, values),
            error=calibration_error(after, values),
            brier_raw=brier_score(raw, values),
            brier=brier_score(after, values),
        )

    def _fit_before(self, told: list[tuple[float, float]], end: int) -> _Fit | None:
        """The fit to the pairs before a place, the latest of them where there is a window."""
        start = 0 if self._window is None else max(0, end - self._window)
        pairs = told[start:end]
        return _fit_to(pairs, self._least) if pairs and len(pairs) >= self._least else None


def _calibrated(fit: _Fit | None, score: float) -> float:
    return score if fit is None else fit(score)


def calibration_error(scores: Sequence[float], values: Sequence[float], bins: int = BINS) -> float:
    """The expected calibration error (Naeini et al. 2015): how far scores lie from what they come to.

    Scores go into bins of equal width; a bin's error is the distance of its mean score from its mean value,
    and weighs as many pairs as it has. Few pairs a bin make it too large. Without pairs it is nan.

    Args:
        scores: from 0 to 1.
        values: what each came to, from 0 to 1.
        bins: how many.
    """
    if not len(scores):
        return math.nan
    misses = np.array(scores, float) - np.array(values, float)
    places = np.minimum((np.array(scores, float) * bins).astype(int), bins - 1)
    return float(np.abs(np.bincount(places, misses, bins)).sum() / len(scores))


def brier_score(scores: Sequence[float], values: Sequence[float]) -> float:
    """The mean squared distance of scores from what they came to (Brier 1950); nan without pairs."""
    if not len(scores):
        return math.nan
    return float(np.mean((np.array(scores, float) - np.array(values, float)) ** 2))


def _fit_to(pairs: Sequence[tuple[float, float]], least: int) -> _Fit:
    # Here, because scikit-learn takes longer to import than a command's help may; it ships no types.
    from sklearn.isotonic import IsotonicRegression  # type: ignore[import-untyped]

    scores, values = np.array(pairs, float).T
    model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(scores, values)
    trust = len(pairs) / (len(pairs) + least)
    return _Fit(model.X_thresholds_, model.y_thresholds_, trust)
