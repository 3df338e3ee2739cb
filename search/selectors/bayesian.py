"""Bayesian optimisation over whole combinations: a Gaussian process and its expected improvement."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from search.selectors.combination import Places, part_of, places_of
from search.selectors.results import Floats
from search.selectors.selector import Common, Evaluate, Request, Selector

if TYPE_CHECKING:
    from sklearn.gaussian_process import GaussianProcessRegressor  # type: ignore[import-untyped]

_EQUAL_DIGITS = 9
"""Improvements that agree to so many digits are equal: the rounding of floats has no favourite."""


def propose(
    shape: Sequence[int],
    measured: Mapping[Places, float],
    count: int,
    seed: int,
    under_way: Sequence[Places] = (),
) -> list[Places]:
    """Different combinations that nobody measured, the most promising first; all that are left, if fewer.

    A Gaussian process over the choices, which have no order (Matern 5/2 on their one-hot codes), is fitted
    to what was measured; each proposal has the greatest expected improvement, compared by its logarithm
    (Ament et al. 2023, "Unexpected Improvements to Expected Improvement for Bayesian Optimization"). Those
    before it, and those under way, are taken to have the score that the process expects (Ginsbourger et al.
    2010, "Kriging is well-suited to parallelize optimization"). Equal arguments give equal proposals.

    Args:
        shape: how many choices each name has.
        measured: scores by place; without any, chance proposes.
        count: how many to propose.
        seed: of the order among equals.
        under_way: those that are being measured, and are not proposed again.
    """
    taken = {*measured, *under_way}
    left = [places for places in places_of(shape) if places not in taken]
    random.Random(f"{seed}:{len(taken)}").shuffle(left)  # so that neither order nor chance has a favourite
    if len(left) <= count or not measured:
        return left[:count]
    known, scores = one_hot(list(measured), shape), np.array(list(measured.values()))
    process = _fitted(known, scores)

    def believe(codes: Floats) -> None:
        nonlocal known, scores, process
        known, scores = np.vstack([known, codes]), np.append(scores, process.predict(codes))
        process = _fitted(known, scores, process)

    if under_way:
        believe(one_hot(under_way, shape))
    proposed: list[Places] = []
    while len(proposed) < count:
        codes = one_hot(left, shape)
        means, deviations = process.predict(codes, return_std=True)
        gains = log_expected_improvement(means, deviations, scores.max())
        best = int(np.round(gains, _EQUAL_DIGITS).argmax())
        proposed.append(left.pop(best))
        believe(codes[best : best + 1])
    return proposed


def one_hot(places: Sequence[Places], shape: Sequence[int]) -> Floats:
    """(combinations, choices of all names): 1 for each choice that a combination has, else 0."""
    columns = np.array(places) + np.cumsum([0, *shape[:-1]])
    codes: Floats = np.zeros((len(places), sum(shape)))
    np.put_along_axis(codes, columns, 1.0, axis=1)
    return codes


def log_expected_improvement(means: Floats, deviations: Floats, best: float) -> Floats:
    """(n,), the log of how much a normal variable of each mean and deviation exceeds `best` by on average.

    It is finite far below `best` too, where the improvement itself is too small for a float.
    """
    from scipy.special import erfcx, log_ndtr  # type: ignore[import-untyped]

    deviations = np.maximum(deviations, np.finfo(np.float64).eps)
    z = (means - best) / deviations
    log_density = -(z**2) / 2 - math.log(2 * math.pi) / 2
    # density + z * probability, as a product whose second factor keeps its digits where z is negative.
    below = np.minimum(z, 0.0)
    ratio = np.maximum(below * math.sqrt(math.pi / 2) * erfcx(-below / math.sqrt(2)), -1 + 1e-15)
    log_below = log_density + np.log1p(ratio)
    above = np.maximum(z, 0.0)
    log_above = np.logaddexp(log_density, np.log(np.maximum(above, 1e-300)) + log_ndtr(above))
    gains: Floats = np.log(deviations) + np.where(z < 0, log_below, log_above)
    return gains


def _fitted(
    codes: Floats, scores: Floats, like: GaussianProcessRegressor | None = None
) -> GaussianProcessRegressor:
    """A process that went through these scores; with the kernel of another one, or one fitted to them."""
    from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import (  # type: ignore[import-untyped]
        ConstantKernel,
        Matern,
        WhiteKernel,
    )

    # Combinations that share no choice lie 2 or more apart: each is to tell something of all others.
    kernel = ConstantKernel(1.0, (0.5, 20.0)) * Matern(3.0, (2.0, 30.0), nu=2.5)
    kernel += WhiteKernel(1e-3, (1e-6, 0.3))
    process = GaussianProcessRegressor(
        kernel if like is None else like.kernel_,
        optimizer="fmin_l_bfgs_b" if like is None else None,
        normalize_y=True,
    )
    with warnings.catch_warnings():  # a setting at the end of its range is one that few scores leave open
        warnings.simplefilter("ignore", ConvergenceWarning)
        return process.fit(codes, scores)


class BayesianSelector(Selector):
    """Evaluates a share of the combinations on the whole dataset: chance's first, then a process's.

    After 2 (names + 1) combinations by chance, or half of the budget if that is less, each batch holds the
    combinations whose expected improvement is greatest by a Gaussian process over the choices (see
    `propose`). It learns what a choice is worth whatever it is combined with; where one name alone has
    choices, there is nothing to learn, and it searches at random. A batch is decided when half of the one
    before it is told, or all but `ahead`.

    Args, beside those of `Selector`:
        budget: the share of all combinations that is evaluated, rounded up; above 0 and at most 1.
        batch_size: combinations proposed together, at least 1: the fewer, the more each one knows.

    Raises:
        ValueError: as of `Selector`, or one of these is out of range.
    """

    name = "bayesian"
    waits_for_half = True

    def __init__(
        self,
        choices: Mapping[str, Sequence[Any]],
        dataset: Sequence[Any],
        evaluate: Evaluate,
        *,
        budget: float = 0.25,
        batch_size: int = 2,
        **common: Unpack[Common],
    ) -> None:
        # A second of imports, before the calls and not among them.
        import sklearn.gaussian_process  # type: ignore[import-untyped] # noqa: F401

        super().__init__(choices, dataset, evaluate, **common)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
        self._budget = part_of(len(self.combinations), budget, "budget")
        self._starts = min(2 * (len(self.choices) + 1), math.ceil(self._budget / 2))
        self._batch_size = batch_size

    def _rounds(self) -> Iterator[Sequence[Request]]:
        shape = [len(several) for several in self.choices.values()]
        number = {places: each for each, places in enumerate(places_of(shape))}
        count = self._starts
        asked: list[Places] = []
        while count > 0:
            measured = {at: self.cells.mean(number[at]) for at in asked if self.cells.seen[number[at]]}
            under_way = [at for at in asked if at not in measured]
            proposed = propose(shape, measured, count, self.seed, under_way)
            asked += proposed
            yield [(number[places], range(len(self.datapoints))) for places in proposed]
            count = min(self._batch_size, self._budget - len(asked))
