"""Selection: which combination of choices scores best on a dataset, in as few calls as will do."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from ollama_utils.parallel import iterate_parallel
from records.errors import describe, nearest
from scorers.betting import interval
from search.strategies import COSTS, SELECTORS, Cell, Evaluation, Outcome, ScoreTable, Strategy

__all__ = ["SELECTORS", "Evaluation", "NoWinnerError", "Selector", "make_selector"]

Combination: TypeAlias = dict[str, Any]
"""One choice for each name."""
Evaluate: TypeAlias = Callable[[Combination, Any], float | Evaluation]
"""What a combination does at a datapoint; what it raises is an error of the combination there."""
LONGEST = 40
"""Characters of a choice in a table."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """What was evaluated together, and what that left."""

    number: int
    """From 1."""
    evaluations: int
    """Those of this round and all before it."""
    errors: int
    """How many of them failed."""
    survivors: int
    """Combinations that may still be named."""
    best: float | None
    """The highest mean score of those that do not fail too often."""


@dataclass(frozen=True, kw_only=True)
class CombinationResult:
    """What one combination did."""

    index: int
    """Its number among all combinations."""
    combination: Combination
    score: float
    """The mean score over its datapoints, an error counting as 0; nan without datapoints."""
    low: float
    """The lower end of the interval of its score over all datapoints that there might be."""
    high: float
    """The upper end."""
    latency_s: float
    """Seconds a datapoint; this and the next three are of those without error."""
    prompt_tokens: float
    completion_tokens: float
    price: float
    datapoints: int
    """At how many it was evaluated, those in error included."""
    errors: int
    """At how many of them it failed."""
    is_best: bool
    """Whether it is the one that is named."""
    verdict: str
    """What the selector says of it."""
    first_error: str | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it: choices by their labels, nan as None."""
        score = None if math.isnan(self.score) else self.score
        return vars(self) | {"combination": labels_of(self.combination), "score": score}


@dataclass(frozen=True, kw_only=True)
class SelectionResults:
    """What was found."""

    rows: tuple[CombinationResult, ...]
    """One for each combination: the named one, then by the number of datapoints and the score."""
    rounds: tuple[Round, ...]
    dataset_size: int
    claim: str
    """How sure the selector is of what it says."""

    @property
    def best(self) -> CombinationResult:
        """The combination that is named.

        Raises:
            ValueError: none is.
        """
        if not self.rows[0].is_best:
            raise ValueError("no combination is named")
        return self.rows[0]

    @property
    def evaluations(self) -> int:
        """How many there were."""
        return sum(row.datapoints for row in self.rows)

    @property
    def errors(self) -> int:
        """How many of them failed."""
        return sum(row.errors for row in self.rows)

    @property
    def savings(self) -> float:
        """The share of brute force's evaluations that was not needed."""
        return 1 - self.evaluations / (len(self.rows) * self.dataset_size)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; nothing in it depends on how many evaluations ran at once."""
        return {
            "best": self.rows[0].index if self.rows[0].is_best else None,
            "evaluations": self.evaluations,
            "errors": self.errors,
            "savings": self.savings,
            "dataset_size": self.dataset_size,
            "claim": self.claim,
            "combinations": [row.to_dict() for row in self.rows],
            "rounds": list(map(asdict, self.rounds)),
        }


class NoWinnerError(Exception):
    """No combination can be named: each one evaluated failed too often.

    Args:
        message: why, in one line.
        results: what was found all the same.
    """

    def __init__(self, message: str, results: SelectionResults) -> None:
        super().__init__(message)
        self.results = results


class Selector:
    """A selection: `select_best` runs it, or whoever calls `ask` and `tell` in turn.

    Args:
        name: one of `SELECTORS`, or a strategy of your own, see `search.strategies`.
        choices: what to choose from, by name.
        dataset: the datapoints, which are put in an order that chance makes.
        evaluate: called on any thread as `evaluate(combination, datapoint)`.
        seed: of all chance, at least 0.
        delta: how often what is claimed may be wrong, above 0 and below 1.
        max_errors: a combination that fails at more than this share of the dataset is not named.
        settings: the strategy's own.

    Raises:
        ValueError: there is nothing to choose from, no datapoint, or no such selector or setting;
            or a setting is out of range.
    """

    def __init__(
        self,
        name: str | Strategy,
        choices: Mapping[str, Sequence[Any]],
        dataset: Sequence[Any],
        evaluate: Evaluate,
        *,
        seed: int = 0,
        delta: float = 0.05,
        max_errors: float = 0.1,
        **settings: Any,  # noqa: ANN401 - each strategy has its own
    ) -> None:
        strategy, self._named_is, self._claim = _strategy(name)
        self._settings = settings_of(name) | settings
        check_settings(name, {"seed": seed, "delta": delta, "max_errors": max_errors} | settings)
        if not len(dataset):
            raise ValueError("expected a dataset of at least one datapoint, got none")
        self.combinations = _combinations(choices)
        rng = np.random.default_rng(seed)
        self.datapoints = [dataset[place] for place in rng.permutation(len(dataset))]
        """In the order of their places."""
        shape = [len(several) for several in choices.values()]
        self.table = ScoreTable(shape, len(dataset), delta=delta, max_errors=max_errors)
        self.rounds: list[Round] = []
        self._evaluate = evaluate
        self._strategy = strategy(self.table, rng, **self._settings)
        self._cells = next(filter(None, self._strategy), [])

    def ask(self) -> list[Cell]:
        """The cells to evaluate next, (number of a combination, place of a datapoint).

        Until `tell` is called, it is the same round; at the end there is none.
        """
        return list(self._cells)

    def tell(self, outcomes: Sequence[Outcome]) -> Round:
        """Take what came of the cells of the round, and decide which are next.

        Args:
            outcomes: in the order of the cells: scores, `Evaluation`s, or exceptions; what is no
                score from 0 to 1 is an error.

        Raises:
            ValueError: they are not as many as the cells.
        """
        if not self._cells or len(outcomes) != len(self._cells):
            raise ValueError(f"expected {len(self._cells)} outcomes, got {len(outcomes)}")
        table = self.table
        for cell, outcome in zip(self._cells, outcomes, strict=True):
            table.write(cell, outcome)
        self._cells = next(filter(None, self._strategy), [])
        best = table.best()
        out = [arm for arm in table.arms if arm in table.ruled_out or table.is_unfit(arm)]
        played = Round(
            number=len(self.rounds) + 1,
            evaluations=int(table.counts.sum()),
            errors=int(table.failed.sum()),
            survivors=len(table.arms) - len(out),
            best=None if best is None else table.mean(best),
        )
        self.rounds.append(played)
        return played

    def outcome(self, cell: Cell) -> Outcome:
        """What comes of a cell: what it is evaluated to, or the exception in its place."""
        arm, place = cell
        try:
            return self._evaluate(dict(self.combinations[arm]), self.datapoints[place])
        except Exception as error:  # noqa: BLE001 - it counts against the combination
            return error

    def select_best(
        self,
        parallel: bool = False,  # noqa: FBT001, FBT002 - `select_best(True)` is how it is called
        max_concurrent: int = 20,
        on_progress: Callable[[Round], None] | None = None,
    ) -> SelectionResults:
        """Evaluate until it is over; called again after an interruption, it goes on.

        Args:
            parallel: whether several evaluations run at once.
            max_concurrent: how many, over all combinations and datapoints.
            on_progress: called after each round.

        Raises:
            ValueError: `max_concurrent` is below 1.
            NoWinnerError: no combination can be named.
        """
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent must be at least 1, got {max_concurrent!r}")
        workers = max_concurrent if parallel else 1
        while cells := self.ask():
            with closing(iterate_parallel(self.outcome, cells, workers)) as outcomes:
                played = self.tell(list(outcomes))
            if on_progress is not None:
                on_progress(played)
        return self.results()

    def results(self) -> SelectionResults:
        """What is known now.

        Raises:
            NoWinnerError: no combination can be named.
        """
        table, named = self.table, self.table.named()
        keys = [(a != named, -len(table.seen(a)), -table.seen(a).sum(), a) for a in table.arms]
        claim = self._claim.format(delta=table.delta, **self._settings)
        ends = self.intervals()
        results = SelectionResults(
            rows=tuple(self._row(arm, named, ends[arm]) for *_, arm in sorted(keys)),
            rounds=tuple(self.rounds),
            dataset_size=table.size,
            claim="None of them can be named." if named is None else claim,
        )
        if named is None:
            why = "".join(map(describe, list(table.first_error.values())[:1]))
            share = f"more than {table.max_errors:.0%} of its datapoints"
            raise NoWinnerError(f"each one evaluated failed at {share}, first with {why}", results)
        return results

    def intervals(self, first: int | None = None) -> list[tuple[float, float]]:
        """The interval of each combination's score over all datapoints that there might be.

        With probability 1 - delta all of them hold, after any number of datapoints, so that of the
        named one does, too: each is given delta divided by their number.

        Args:
            first: so many of its first datapoints count; None: all.
        """
        table = self.table
        counts, ends = np.minimum(table.counts, first or table.size), np.zeros((len(table.arms), 2))
        for count in np.unique(counts).tolist():
            arms = np.flatnonzero(counts == count).tolist()
            seen = np.array([table.seen(arm)[:count] for arm in arms])
            ends[arms] = np.transpose(interval(seen, table.delta / len(table.arms)))
        return [(low, high) for low, high in ends.tolist()]

    def _row(self, arm: int, named: int | None, ends: tuple[float, float]) -> CombinationResult:
        table = self.table
        errors, count = int(table.failed[arm].sum()), len(table.seen(arm))
        costs = (table.costs[arm] / max(1, count - errors)).tolist()
        error = table.first_error.get(arm)
        return CombinationResult(
            index=arm,
            combination=self.combinations[arm],
            score=table.mean(arm),
            low=ends[0],
            high=ends[1],
            **dict(zip(COSTS, costs, strict=True)),
            datapoints=count,
            errors=errors,
            is_best=arm == named,
            verdict=self._verdict(arm, named),
            first_error=None if error is None else describe(error),
        )

    def _verdict(self, arm: int, named: int | None) -> str:
        table = self.table
        if arm == named and arm not in table.verdicts:
            return self._named_is.format(**self._settings)
        if not len(table.seen(arm)):
            return "not seen"
        if not table.is_fit(arm):
            return "fails too often"
        if arm in table.verdicts:
            return table.verdicts[arm]
        is_whole = len(table.seen(arm)) == table.size
        is_worse = named is not None and is_whole and table.mean(arm) < table.mean(named)
        return "ruled out" if is_worse else "not distinguished from the best"


def make_selector(
    name: str | Strategy,
    choices: Mapping[str, Sequence[Any]],
    dataset: Sequence[Any],
    evaluate: Evaluate,
    **settings: Any,  # noqa: ANN401 - each strategy has its own
) -> Selector:
    """A selection by the name of its selector; see `Selector`."""
    return Selector(name, choices, dataset, evaluate, **settings)


def _strategy(name: str | Strategy) -> tuple[Strategy, str, str]:
    if not isinstance(name, str):
        return name, "best of those seen", "Nothing is claimed."
    if name not in SELECTORS:
        raise ValueError(f"no selector is called {name!r}; {nearest(name, SELECTORS)}")
    return SELECTORS[name]


def settings_of(name: str | Strategy) -> dict[str, Any]:
    """The settings that a selector has of its own, with their defaults.

    Raises:
        ValueError: there is no such selector.
    """
    parameters = inspect.signature(_strategy(name)[0]).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 1


RANGES: Mapping[str, tuple[Callable[[Any], bool], Sequence[str]]] = {
    "a whole number of at least 1": (_is_count, ("n_initial", "batch_size", "restarts")),
    "a whole number of at least 0": (lambda n: _is_count(n + 1), ("seed",)),
    "a number above 0 and below 1": (lambda x: 0 < x < 1, ("delta", "threshold")),
    "a number above 0 and at most 1": (lambda x: 0 < x <= 1, ("sample_fraction", "budget")),
    "a number from 0 to 1": (lambda x: 0 <= x <= 1, ("epsilon", "max_errors")),
    "a number of at least 1": (lambda x: 1 <= x < math.inf, ("growth_factor",)),
    "a number of at least 0": (lambda x: 0 <= x < math.inf, ("exploration",)),
}
"""What settings have to be; None leaves one to the strategy."""


def check_settings(name: str | Strategy, settings: Mapping[str, Any]) -> None:
    """Check the settings of a selector, those that all have included.

    Raises:
        ValueError: it has no such setting, or one is out of range.
    """
    known = [*settings_of(name), "seed", "delta", "max_errors"]
    for setting, value in settings.items():
        if setting not in known:
            label = name if isinstance(name, str) else name.__name__
            hint = nearest(setting, known)
            raise ValueError(f"the selector {label} has no setting {setting!r}; {hint}")
        for expected, (is_right, names) in RANGES.items():
            if setting in names and value is not None and not is_right(value):
                raise ValueError(f"{setting} is {value!r}; expected {expected}")


def _combinations(choices: Mapping[str, Sequence[Any]]) -> list[Combination]:
    """Every combination of the choices; those of the last name change first."""
    if not choices:
        raise ValueError("expected choices by name, as in {'model': ['small', 'large']}, got none")
    for name, several in choices.items():
        if isinstance(several, str) or not several:
            raise ValueError(f"expected a list of choices for {name!r}, got {several!r}")
        if twice := [each for place, each in enumerate(several) if each in list(several)[:place]]:
            raise ValueError(f"{name!r} has the choice {twice[0]!r} twice; name each choice once")
    return [dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values())]


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
