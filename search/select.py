"""Selection: which combination of choices scores best on a dataset, in as few calls as will do."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ollama_utils.parallel import iterate_parallel
from records.errors import describe, nearest
from records.terminal import one_line
from scorers.betting import interval
from search.strategies import COSTS, SELECTORS, Cell, Evaluation, Outcome, ScoreTable, Strategy

__all__ = ["SELECTORS", "Evaluation", "NoWinnerError", "Selector", "make_selector"]

Combination: TypeAlias = dict[str, Any]
"""One choice for each name."""
Many: TypeAlias = Sequence[Any] | NDArray[Any]
Evaluate: TypeAlias = Callable[[Combination, Any], float | Evaluation]
"""What a combination does at a datapoint; what it raises is an error of the combination there."""
LONGEST = 40
"""Characters of a choice in a table."""
LEAST = 1e-100
"""Of delta, which is divided among all combinations, and has a logarithm then."""


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
    """The mean score of the one that would be named now."""


@dataclass(frozen=True, kw_only=True)
class CombinationResult:
    """What one combination did."""

    index: int
    """Its number among all."""
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
        choices: what to choose from, by name: a list, a tuple or an array for each.
        dataset: the datapoints, likewise; chance makes an order of them.
        evaluate: called on any thread as `evaluate(combination, datapoint)`.
        seed: of all chance, at least 0.
        delta: how often what is claimed may be wrong.
        max_errors: a combination that fails at more than this share of the dataset is not named.
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
        strategy, self._named_is, self._claim = _strategy(name)
        check_settings(name, {"seed": seed, "delta": delta, "max_errors": max_errors} | settings)
        self._settings = _settings_of(strategy) | settings
        lists = _lists_of(choices)
        self.combinations = [
            dict(zip(lists, each, strict=True)) for each in itertools.product(*lists.values())
        ]
        """Every combination of the choices; those of the last name change first."""
        points = _listed("datapoints", dataset)
        rng = np.random.default_rng(seed)
        self.datapoints = [points[place] for place in rng.permutation(len(points))]
        """In the order of their places."""
        shape = list(map(len, lists.values()))
        self.table = ScoreTable(shape, len(points), delta=delta, max_errors=max_errors)
        self.rounds: list[Round] = []
        self._evaluate = evaluate
        self._strategy = strategy(self.table, rng, **self._settings)
        self._cells = next(filter(None, self._strategy), [])
        self._outcomes: dict[Cell, Outcome] = {}
        """Of the cells of this round; and a lock for each, which its evaluation holds."""
        self._locks: dict[Cell, Lock] = {}

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
        self._outcomes, self._locks = {}, {}
        self._cells = next(filter(None, self._strategy), [])
        named = table.named()
        out = [arm for arm in table.arms if arm in table.ruled_out or table.is_unfit(arm)]
        played = Round(
            number=len(self.rounds) + 1,
            evaluations=int(table.counts.sum()),
            errors=sum(table.errors),
            survivors=len(table.arms) - len(out),
            best=None if named is None else table.mean(named),
        )
        self.rounds.append(played)
        return played

    def outcome(self, cell: Cell) -> Outcome:
        """What comes of a cell: what it is evaluated to, or the exception in its place.

        Within a round a cell is evaluated once: whoever goes on after Ctrl-C finds what there is,
        and waits for what an earlier thread is about.
        """
        arm, place = cell
        with self._locks.setdefault(cell, Lock()):
            if cell not in self._outcomes:
                try:
                    found = self._evaluate(dict(self.combinations[arm]), self.datapoints[place])
                    self._outcomes[cell] = found
                except Exception as error:  # noqa: BLE001 - it counts against the combination
                    self._outcomes[cell] = error
            return self._outcomes[cell]

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
        counts, ends = table.counts.tolist(), self.intervals()
        order = [(a != named, -counts[a], -table.seen(a).sum(), a) for a in table.arms]
        rows = []
        for *_, arm in sorted(order):
            low, high = ends[arm]
            costs = (table.costs[arm] / max(1, counts[arm] - table.errors[arm])).tolist()
            error = table.first_error.get(arm)
            row = CombinationResult(
                index=arm,
                combination=self.combinations[arm],
                score=table.mean(arm),
                low=low,
                high=high,
                **dict(zip(COSTS, costs, strict=True)),
                datapoints=counts[arm],
                errors=table.errors[arm],
                is_best=arm == named,
                verdict=self._verdict(arm, named),
                first_error=None if error is None else describe(error),
            )
            rows.append(row)
        claim = self._claim.format(delta=table.delta, **self._settings)
        results = SelectionResults(
            rows=tuple(rows),
            rounds=tuple(self.rounds),
            dataset_size=table.size,
            claim="None of them can be named." if named is None else claim,
        )
        if named is None:
            why = "".join(map(describe, list(table.first_error.values())[:1]))
            share = f"more than {table.max_errors:.0%} of the datapoints"
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

    def _verdict(self, arm: int, named: int | None) -> str:
        table, count = self.table, len(self.table.seen(arm))
        if not count:
            return "not seen"
        if table.is_unfit(arm):
            return "fails too often"
        if arm in table.verdicts:
            return table.verdicts[arm]
        if arm == named:
            return self._named_is.format(**self._settings)
        is_worse = named is not None and count == table.size and table.mean(arm) < table.mean(named)
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
    """The settings that a strategy has of its own, with their defaults."""
    parameters = inspect.signature(strategy).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


COUNTS = ("n_initial", "batch_size", "restarts")
RANGES: Mapping[str, tuple[type, Callable[[Any], bool], Sequence[str]]] = {
    "a whole number of at least 1": (Integral, lambda n: n >= 1, COUNTS),
    "a whole number of at least 0": (Integral, lambda n: n >= 0, ("seed",)),
    f"a number of at least {LEAST:g} and below 1": (Real, lambda x: LEAST <= x < 1, ("delta",)),
    "a number above 0 and below 1": (Real, lambda x: 0 < x < 1, ("threshold",)),
    "a number above 0 and at most 1": (Real, lambda x: 0 < x <= 1, ("sample_fraction", "budget")),
    "a number from 0 to 1": (Real, lambda x: 0 <= x <= 1, ("epsilon", "max_errors")),
    "a number of at least 1": (Real, lambda x: 1 <= x < math.inf, ("growth_factor",)),
    "a number of at least 0": (Real, lambda x: 0 <= x < math.inf, ("exploration",)),
}
"""What settings have to be."""


def check_settings(name: str | Strategy, settings: Mapping[str, Any]) -> None:
    """Check the settings of a selector, those that all have included.

    Raises:
        ValueError: it has no such setting, or one is out of range.
    """
    own = _settings_of(_strategy(name)[0])
    known = [*own, "seed", "delta", "max_errors"]
    for setting, value in settings.items():
        if setting not in known:
            label = name if isinstance(name, str) else name.__name__
            hint = nearest(setting, known)
            raise ValueError(f"the selector {label} has no setting {setting!r}; {hint}")
        if value is None and own.get(setting, 0) is None:
            continue  # the strategy decides
        for expected, (kind, is_in, names) in RANGES.items():
            if setting in names and not (isinstance(value, kind) and is_in(value)):
                raise ValueError(f"{setting} is {value!r}; expected {expected}")


def _listed(what: str, several: Any) -> list[Any]:  # noqa: ANN401 - whatever a user has
    """What a list, a tuple or an array has in it.

    Raises:
        ValueError: it is none of them, or it is empty.
    """
    is_listed = isinstance(several, Sequence | np.ndarray) and not isinstance(several, str | bytes)
    if not is_listed or not len(several):
        raise ValueError(f"expected a list of {what}, got {one_line(repr(several)):.60}")
    return list(several)


def _lists_of(choices: object) -> dict[str, list[Any]]:
    if not isinstance(choices, Mapping) or not choices:
        expected = "expected choices by name, as in {'model': ['small', 'large']}"
        raise ValueError(f"{expected}, got {one_line(repr(choices)):.60}")
    lists = {name: _listed(f"choices for {name!r}", several) for name, several in choices.items()}
    for name, several in lists.items():
        # Whether two arrays are equal has no one answer.
        plain = [each for each in several if not isinstance(each, np.ndarray)]
        if twice := [each for place, each in enumerate(plain) if each in plain[:place]]:
            raise ValueError(f"{name!r} has the choice {twice[0]!r} twice; name each choice once")
    return lists


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
