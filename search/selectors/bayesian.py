"""Bayesian optimisation over whole combinations.

Which combinations Bayesian optimisation would look at next: optuna's Gaussian process with log-EI.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

from search.selectors.combination import Places, part_of, places_of
from search.selectors.selector import Common, Evaluate, Request, Selector

_TRIES = 4
"""Proposals a place that are asked for at most, before chance takes over."""


def propose(shape: Sequence[int], measured: Mapping[Places, float], count: int, seed: int) -> list[Places]:
    """Different combinations that nobody measured, the most promising first; all that are left, if fewer.

    A process over the choices, which have no order, is fitted to what was measured; each proposal has the
    greatest expected improvement, those before it being under way (Ament et al. 2023, "Unexpected
    Improvements to Expected Improvement for Bayesian Optimization"). Equal arguments give equal proposals.

    Args:
        shape: how many choices each name has.
        measured: scores by place; without any, chance proposes.
        count: how many to propose.
        seed: of whatever is drawn.
    """
    left = [places for places in places_of(shape) if places not in measured]
    random.Random(f"{seed}:{len(measured)}").shuffle(left)  # so that neither order nor chance has a favourite
    if len(left) <= count or not measured:
        return left[:count]
    chosen: list[Places] = []
    for places in _by_process(shape, measured, count * _TRIES, seed):
        # One that is known already stays under way all the same, so that the next is another.
        if places not in measured and places not in chosen:
            chosen.append(places)
        if len(chosen) == count:
            return chosen
    return (chosen + [places for places in left if places not in chosen])[:count]


def _by_process(
    shape: Sequence[int], measured: Mapping[Places, float], tries: int, seed: int
) -> Iterator[Places]:
    """So many proposals of the process, each made while those before it are under way."""
    # Half a second of imports that only this selector needs.
    from optuna import create_study
    from optuna.distributions import BaseDistribution, CategoricalDistribution
    from optuna.samplers import GPSampler
    from optuna.trial import create_trial

    names = [str(name) for name in range(len(shape))]
    distributions: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(range(size)) for name, size in zip(names, shape, strict=True)
    }
    with _quiet():
        study = create_study(direction="maximize", sampler=GPSampler(seed=seed, n_startup_trials=1))
        for places, score in measured.items():
            params = dict(zip(names, places, strict=True))
            study.add_trial(create_trial(params=params, distributions=distributions, value=score))
    for _ in range(tries):
        trial = study.ask(distributions)
        yield tuple(trial.params[name] for name in names)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without optuna's log lines, which are for people who watch a study."""
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(before)


class BayesianSelector(Selector):
    """Evaluates a share of the combinations on the whole dataset: chance's first, then a process's.

    After 2 (names + 1) combinations by chance, or half of the budget if that is less, each batch holds the
    combinations whose expected improvement is greatest by a Gaussian process over the choices (optuna's;
    see `propose`). It learns what a choice is worth whatever it is combined with; where one name alone has
    choices, there is nothing to learn, and it searches at random.

    Args:
        choices: as of `Selector`, and so are `dataset`, `evaluate` and the settings by name.
        dataset: see there.
        evaluate: see there.
        budget: the share of all combinations that is evaluated, rounded up; above 0 and at most 1.
        batch_size: combinations proposed together, at least 1: the fewer, the more each one knows.
        **common: see there.

    Raises:
        ValueError: as of `Selector`, or one of these is out of range.
    """

    name = "bayesian"

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
        while count > 0:
            measured = {at: self.cells.mean(each) for at, each in number.items() if self.cells.seen[each]}
            proposed = propose(shape, measured, count, self.seed)
            yield [(number[places], range(len(self.datapoints))) for places in proposed]
            count = min(self._batch_size, self._budget - len(measured) - len(proposed))
