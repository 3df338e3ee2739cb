"""Selection: which combination of choices scores best on a dataset, in as few calls as will do."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias, get_type_hints

import numpy as np
from numpy.typing import NDArray

from ollama_utils.errors import ENDS_THE_RUN
from ollama_utils.parallel import iterate_parallel
from records.errors import nearest
from records.settings import CountOrZero, Share
from records.terminal import one_line
from scorers.betting import interval
from search.config import check_numbers
from search.strategies import (
    COSTS,
    SELECTORS,
    Cell,
    Evaluation,
    Outcome,
    Part,
    ScoreTable,
    Strategy,
)
from search.task import ScorerError

__all__ = ["SELECTORS", "Evaluation", "NoWinnerError", "Selector", "make_selector"]

Combination: TypeAlias = dict[str, Any]
"""One choice for each name."""
Many: TypeAlias = Sequence[Any] | NDArray[Any]
Evaluate: TypeAlias = Callable[[Combination, Any], float | Evaluation]
"""What a combination does at a datapoint. What it raises is an error of the combination there, but
for errors that end the run, whatever is evaluated: `ENDS_THE_RUN` and ScorerError."""
LONGEST = 40
"""Characters of a choice in a table."""
SHARED: Mapping[str, Any] = {"seed": CountOrZero, "delta": Part, "max_errors": Share}
"""The settings that all selectors have, with their types."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round, numbered from 1; its counts are of all rounds so far."""

    number: int
    evaluations: int
    errors: int
    survivors: int
    """Combinations that may still win."""
    best: float | None
    """The mean score of the one that would win now."""


@dataclass(frozen=True, kw_only=True)
class CombinationResult:
    """What one combination did; costs are the means over its datapoints without error."""

    index: int
    combination: Combination
    score: float
    """The mean over its datapoints, an error counting as 0; nan without datapoints."""
    low: float
    """With `high` the interval of its score over all datapoints that there might be."""
    high: float
    latency_s: float
    prompt_tokens: float
    completion_tokens: float
    price: float
    datapoints: int
    """At how many it was evaluated, those in error included."""
    errors: int
    is_best: bool
    verdict: str
    first_error: str | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it: choices by their labels, nan as None."""
        score = None if math.isnan(self.score) else self.score
        return vars(self) | {"combination": labels_of(self.combination), "score": score}


@dataclass(frozen=True, kw_only=True)
class SelectionResults:
    """What was found."""

    rows: tuple[CombinationResult, ...]
    """One for each combination: the winner, then by the number of datapoints and the score."""
    evaluations: int
    errors: int
    savings: float
    """The share of brute force's evaluations that was not needed."""
    dataset_size: int
    claim: str
    """How sure the selector is of what it says."""

    @property
    def best(self) -> CombinationResult:
        """The winner; raises ValueError where there is none."""
        if not self.rows[0].is_best:
            raise ValueError("there is no winner")
        return self.rows[0]

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; nothing in it depends on how many evaluations ran at once."""
        table = {**vars(self), "best": self.rows[0].index if self.rows[0].is_best else None}
        table["combinations"] = [row.to_dict() for row in table.pop("rows")]
        return table


class NoWinnerError(Exception):
    """There is no winner: each combination evaluated failed too often; `results` has them all."""

    def __init__(self, message: str, results: SelectionResults) -> None:
        super().__init__(message)
        self.results = results


class Selector:
    """A selection: `select_best` runs it, or the caller does, by `ask` and `tell` in turn.

    Args:
        name: one of `SELECTORS`, or a strategy of your own, see `search.strategies`.
        choices: what to choose from, by name: a list, a tuple or an array for each.
        dataset: the datapoints, likewise; chance makes an order of them.
        evaluate: called on any thread as `evaluate(combination, datapoint)`.
        seed: of all chance, at least 0.
        delta: how often what is claimed may be wrong.
        max_errors: a combination that fails at more than this share of the dataset cannot win.
        settings: the strategy's own.

    Raises:
        ValueError: there is nothing to choose from, no datapoint, or no such selector or setting;
            or a setting is out of range.
    """

    def __init__(
        self,
        name: str | Strategy,
        choices: Mapping[str, Many],
        dataset: Many,
        evaluate: Evaluate,
        *,
        seed: int = 0,
        delta: float = 0.05,
        max_errors: float = 0.1,
        **settings: Any,  # noqa: ANN401 - each strategy has its own
    ) -> None:
        check_settings(name, {"seed": seed, "delta": delta, "max_errors": max_errors} | settings)
        strategy, self._verdict_of_winner, self._claim = _strategy(name)
        self._settings = _settings_of(strategy) | settings
        if not choices or not hasattr(choices, "items"):
            raise ValueError("expected choices by name, as in {'model': ['small', 'large']}")
        lists = {key: _listed(f"choices for {key!r}", each) for key, each in choices.items()}
        for key, several in lists.items():
            texts = [each for each in several if isinstance(each, str)]
            if twice := [each for index, each in enumerate(texts) if each in texts[:index]]:
                raise ValueError(f"expected choices for {key!r} to differ, got {twice[0]!r} twice")
        self.combinations = [
            dict(zip(lists, each, strict=True)) for each in itertools.product(*lists.values())
        ]
        """Every combination of the choices; those of the last name change first."""
        points = _listed("datapoints", dataset)
        rng = np.random.default_rng(seed)
        self.datapoints = [points[index] for index in rng.permutation(len(points))]
        """In the order that chance made; cells have their indices here."""
        shape = list(map(len, lists.values()))
        self.table = ScoreTable(shape, len(points), delta=delta, max_errors=max_errors)
        self._rounds = 0
        self._evaluate = evaluate
        self._strategy = strategy(self.table, rng, **self._settings)
        self._outcomes: dict[Cell, Outcome] = {}
        """Of the cells of this round."""
        self._cells = next(filter(None, self._strategy), [])

    def ask(self) -> list[Cell]:
        """The cells to evaluate next, (index of a combination, index of a datapoint).

        Until `tell` is called, it is the same round; at the end there is none.
        """
        return list(self._cells)

    def tell(self, outcomes: Sequence[Outcome]) -> Round:
        """Take the outcomes of the round's cells, in their order, and decide which are next.

        What is neither an `Evaluation` nor a score from 0 to 1 counts as an error.

        Raises:
            ValueError: they are not as many as the cells.
        """
        if not self._cells or len(outcomes) != len(self._cells):
            raise ValueError(f"expected {len(self._cells)} outcomes, got {len(outcomes)}")
        table = self.table
        for cell, outcome in zip(self._cells, outcomes, strict=True):
            table.write(cell, outcome)
        self._outcomes = {}
        self._cells = next(filter(None, self._strategy), [])
        self._rounds += 1
        winner = table.winner()
        can_win = [arm not in table.ruled_out and not table.is_unfit(arm) for arm in table.arms]
        return Round(
            number=self._rounds,
            evaluations=int(table.counts.sum()),
            errors=sum(table.errors),
            survivors=sum(can_win),
            best=None if winner is None else table.mean(winner),
        )

    def outcome(self, cell: Cell) -> Outcome:
        """What a cell is evaluated to, or the exception in its place.

        Cells of this round that were evaluated before are not evaluated again.

        Raises:
            Exception: one of `ENDS_THE_RUN`, or a ScorerError.
        """
        arm, index = cell
        if cell not in self._outcomes:
            try:
                found = self._evaluate(dict(self.combinations[arm]), self.datapoints[index])
                self._outcomes[cell] = found
            except (*ENDS_THE_RUN, ScorerError):
                raise
            except Exception as error:  # noqa: BLE001 - it counts against the combination
                self._outcomes[cell] = error
        return self._outcomes[cell]

    def select_best(
        self,
        parallel: bool = False,  # noqa: FBT001, FBT002 - `select_best(True)` is how it is called
        max_concurrent: int = 20,
        on_progress: Callable[[Round], None] = lambda _: None,
    ) -> SelectionResults:
        """Evaluate until it is over.

        With `parallel` so many evaluations run at once, over all combinations and datapoints;
        `on_progress` is called after each round. After Ctrl-C or an error that ended it, another
        call goes on: only evaluations that were under way then may be made again.

        Raises:
            ValueError: `max_concurrent` is below 1.
            Exception: one of `ENDS_THE_RUN`, or a ScorerError.
            NoWinnerError: each combination evaluated failed too often.
        """
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent must be at least 1, got {max_concurrent!r}")
        workers = max_concurrent if parallel else 1
        while cells := self.ask():
            with closing(iterate_parallel(self.outcome, cells, workers)) as outcomes:
                played = self.tell(list(outcomes))
            on_progress(played)
        return self.results()

    def results(self) -> SelectionResults:
        """What is known now; raises NoWinnerError if each one evaluated failed too often."""
        table, winner = self.table, self.table.winner()
        counts, ends = table.counts.tolist(), self.intervals()

        def row(arm: int) -> CombinationResult:
            errors = table.errors[arm]
            costs = (table.costs[arm] / max(1, counts[arm] - errors)).tolist()
            return CombinationResult(
                index=arm,
                combination=self.combinations[arm],
                score=table.mean(arm),
                low=ends[arm][0],
                high=ends[arm][1],
                **dict(zip(COSTS, costs, strict=True)),
                datapoints=counts[arm],
                errors=errors,
                is_best=arm == winner,
                verdict=self._verdict(arm, winner),
                first_error=table.first_errors.get(arm),
            )

        order = sorted(table.arms, key=lambda a: (a != winner, -counts[a], -table.seen(a).sum(), a))
        claim = self._claim.format(delta=table.delta, **self._settings)
        results = SelectionResults(
            rows=tuple(map(row, order)),
            evaluations=sum(counts),
            errors=sum(table.errors),
            savings=1 - sum(counts) / table.scores.size,
            dataset_size=table.size,
            claim="There is no winner." if winner is None else claim,
        )
        if winner is None:
            why = next((each.first_error for each in results.rows if each.first_error), "")
            share = f"more than {table.max_errors:.0%} of the datapoints"
            raise NoWinnerError(f"each one evaluated failed at {share}, first with {why}", results)
        return results

    def intervals(self, first: int | None = None) -> list[tuple[float, float]]:
        """The interval of each combination's score over all datapoints that there might be.

        With probability 1 - delta all of them hold, after any number of datapoints, so that of the
        winner does, too: each is given delta divided by their number. Of each combination the
        `first` datapoints count, or all.
        """
        table = self.table
        counts, ends = np.minimum(table.counts, first or table.size), np.zeros((len(table.arms), 2))
        for count in np.unique(counts).tolist():
            arms = np.flatnonzero(counts == count).tolist()
            seen = np.array([table.seen(arm)[:count] for arm in arms])
            ends[arms] = np.transpose(interval(seen, table.delta / len(table.arms)))
        return [(low, high) for low, high in ends.tolist()]

    def _verdict(self, arm: int, winner: int | None) -> str:
        table, count = self.table, len(self.table.seen(arm))
        if not count:
            return "not seen"
        if table.is_unfit(arm):
            return "fails too often"
        if arm in table.verdicts:
            return table.verdicts[arm]
        if arm == winner:
            return self._verdict_of_winner.format(**self._settings)
        has_lost = winner is not None and table.mean(arm) < table.mean(winner)
        is_worse = has_lost and count == table.size
        return "ruled out" if is_worse else "not distinguished from the best"


make_selector = Selector
"""`make_selector(name, choices, dataset, evaluate, seed=0, ...)` is how a selection is made."""


def _strategy(name: str | Strategy) -> tuple[Strategy, str, str]:
    if callable(name):
        return name, "best of those seen", "Nothing is claimed."
    if name not in SELECTORS:
        raise ValueError(f"no selector is called {name!r}; {nearest(str(name), SELECTORS)}")
    return SELECTORS[name]


def _settings_of(strategy: Strategy) -> dict[str, Any]:
    parameters = inspect.signature(strategy).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def check_settings(name: str | Strategy, settings: Mapping[str, Any]) -> None:
    """Check the settings of a selector, those that all have included.

    Raises ValueError if it has no such setting, or one is out of range.
    """
    strategy, *_ = _strategy(name)
    known = [*_settings_of(strategy), *SHARED]
    for setting in settings:
        if setting not in known:
            label = name if isinstance(name, str) else name.__name__
            hint = nearest(setting, known)
            raise ValueError(f"the selector {label} has no setting {setting!r}; {hint}")
    own = get_type_hints(strategy, include_extras=True) if isinstance(name, str) else {}
    check_numbers(settings, {**own, **SHARED})


def _listed(what: str, several: Any) -> list[Any]:  # noqa: ANN401 - whatever a user has
    """The items of a list, a tuple or an array that is not empty."""
    is_listed = isinstance(several, Sequence | np.ndarray) and not isinstance(several, str | bytes)
    if not is_listed or not len(several):
        raise ValueError(f"expected a list of {what}, got {one_line(repr(several)):.60}")
    return list(several)


def labels_of(combination: Combination) -> dict[str, str]:
    """What each choice is called in a table: its name where it has one, or its text, cut short."""
    labels = {}
    for name, choice in combination.items():
        text = getattr(choice, "__name__", " ".join(str(choice).split()))
        labels[name] = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return labels


def label_of(combination: Combination) -> str:
    """For people, in one line: `model=large prompt=Think step by step.`."""
    return " ".join(f"{name}={label}" for name, label in labels_of(combination).items())
