"""What all selectors share: they ask for rounds of evaluations, are told what came, and name the best.

A selector decides, a driver evaluates: `select_best` is one driver, `ask` and `tell` let there be others.
What is asked for depends on the choices, the dataset, the seed and what was told, and on nothing else. So
results are the same however many evaluations run at once, and a search that is run again asks the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from ollama_utils.plans import Plan, play_plans
from search.selectors.combination import Combination, combinations, plan_concurrency, shuffled
from search.selectors.confidence import MeanTest
from search.selectors.results import (
    Cells,
    Evaluation,
    NoWinnerError,
    Round,
    SelectionResults,
    checked,
    dataset_lows,
    results_of,
)

__all__ = ["Common", "Evaluate", "Evaluation", "NoWinnerError", "Request", "Selector"]

Evaluate: TypeAlias = Callable[[Combination, Any], float | Evaluation]
"""What a combination does at a datapoint: a score in [0, 1], or an `Evaluation`. Raising is an error."""
Request: TypeAlias = tuple[int, Sequence[int]]
"""A combination's number, and the places of datapoints to evaluate it at, the most urgent first."""
Outcome: TypeAlias = float | Evaluation | Exception

Cell: TypeAlias = tuple[int, int]
"""A combination's number, and the place of a datapoint."""

UNSEEN = "not seen"
FAILS = "fails too often"
OPEN = "not distinguished from the best"
_SHOWN = 4
"""Equals that are named in a claim."""
_ROUNDING = 1e-9
"""A share of a count is whole but for the rounding of floats."""
_FOR_ERRORS = 0.2
"""The part of delta for what is taken to fail seldom enough; the rest is for what is said of the scores."""
_ORDER = 101
"""The chance that the order of the datapoints is drawn from; selectors take others, and none takes 0."""


class Common(TypedDict, total=False):
    """The settings that every selector takes by name."""

    seed: int
    delta: float
    max_errors: float


class Selector(ABC):
    """Finds the combination of choices with the best mean score over a dataset.

    A combination that fails on more than `max_errors` of the datapoints is never named, but for a chance of a
    fifth of `delta` where it was not evaluated at all of them; an error counts as a score of 0. Of the others
    it is the one with the highest lower bound of its mean over the dataset, which is the mean itself where
    all datapoints were seen; of equals, the first.

    Args:
        choices: what to choose from, by name.
        dataset: the datapoints; equal ones count once. They are shuffled once, and all combinations are
            evaluated at them in the same order.
        evaluate: called on any thread as `evaluate(combination, datapoint)`.
        seed: of all chance, at least 0.
        delta: how often what the selector claims may be wrong, above 0 and below 1.
        max_errors: the share of a combination's datapoints that may fail, in [0, 1].

    Raises:
        ValueError: there is nothing to choose from, no datapoint, or a setting is out of range.
    """

    name: ClassVar[str]
    """As `make_selector` takes it."""
    claim: ClassVar[str] = "The best of those seen, each on all datapoints; of the others nothing is claimed."
    """How sure it is; {0} stands for the selector, {wrong} for its delta, here and in what follows."""
    named_is: ClassVar[str] = "best of those seen"
    out_is: ClassVar[str] = "ruled out"
    """What it says of the one that is named, and of those that are no survivors."""

    def __init__(
        self,
        choices: Mapping[str, Sequence[Any]],
        dataset: Sequence[Any],
        evaluate: Evaluate,
        *,
        seed: int = 0,
        delta: float = 0.05,
        max_errors: float = 0.1,
    ) -> None:
        if seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed!r}")
        if not 0 < delta < 1:
            raise ValueError(f"delta must be above 0 and below 1, got {delta!r}")
        if not 0 <= max_errors <= 1:
            raise ValueError(f"max_errors must be from 0 to 1, got {max_errors!r}")
        self.combinations = combinations(choices)
        self.choices = {name: tuple(several) for name, several in choices.items()}
        self.seed = seed
        self.delta = delta
        self.max_errors = max_errors
        self.datapoints = shuffled(dataset, self.chance(_ORDER))
        self.cells = Cells(len(self.combinations), len(self.datapoints))
        self.rounds: list[Round] = []
        self.last_asked: dict[int, int] = {}  # the last round of each combination
        self._evaluate = evaluate
        self._to_come: Iterator[Sequence[Request]] | None = None
        self._asked: list[tuple[int, tuple[int, ...]]] = []
        self._is_broken = False

    @abstractmethod
    def _rounds(self) -> Iterator[Sequence[Request]]:
        """What to evaluate, round by round.

        When the generator goes on, `self.cells` holds all that was asked for. Cells that are filled already
        are left out of a round, and a round of which nothing is left is not played.
        """

    def _made_sure(self, batch_size: int) -> Iterator[Sequence[Request]]:
        """The one that would be named, batch by batch, until it is `sound`; where it is not, another."""
        size = len(self.datapoints)
        while (named := self.named()) is not None and not self.sound(named):
            seen = int(self.cells.seen[named])
            yield [(named, range(seen, min(size, seen + batch_size)))]

    def _note(self) -> None:  # noqa: B027 - most selectors need to do nothing here
        """Make up one's mind after a round, before `survivors` is asked for."""

    def verdicts(self, named: int | None) -> list[str]:
        """What is known of each combination, in the order of their numbers, where this one is named."""
        fit, survivors, worse = self.fit_ones, set(self.survivors), self._worse_than(named)
        last_rounds: dict[int, int] = {}
        for played in reversed(self.rounds):
            for number in played.survivors:
                last_rounds.setdefault(number, played.number)
        verdicts = []
        for number in range(len(self.combinations)):
            if number == named:
                verdicts.append(self._filled(self.named_is))
            elif not self.cells.seen[number]:
                verdicts.append(UNSEEN)
            elif not fit[number]:
                verdicts.append(FAILS)
            elif number not in survivors:
                verdicts.append(f"{self._filled(self.out_is)} (round {last_rounds.get(number, 0) + 1})")
            elif worse[number] and named is not None:
                last = max(self.last_asked[number], self.last_asked[named])
                verdicts.append(f"ruled out (round {last})")
            else:
                verdicts.append(OPEN)
        return verdicts

    def no_winner_reason(self) -> str:
        """Why no combination can be named, in one line."""
        cells = self.cells
        seen = np.flatnonzero(cells.seen)
        if not len(seen):
            return "no combination was evaluated"
        least = int(seen[(cells.errors[seen] / cells.seen[seen]).argmin()])
        return (
            f"each one evaluated failed on more than {self.max_errors:.0%} of its datapoints; the "
            f"least, {self.combinations[least].label}, on {cells.errors[least]} of {cells.seen[least]}, "
            f"first with {cells.first_error.get(least)!r}"
        )

    @property
    def survivors(self) -> tuple[int, ...]:
        """The numbers of the combinations that may still be named; those that fail too often apart."""
        return tuple(range(len(self.combinations)))

    def chance(self, *what: int) -> np.random.Generator:
        """Chance that depends on the seed and on what it is for, and on nothing that was drawn before."""
        return np.random.default_rng([self.seed, *what])

    def fit(self, number: int) -> bool:
        """Whether a combination was evaluated, and failed on no more of its datapoints than it may."""
        return bool(self.fit_ones[number])

    def sound(self, number: int) -> bool:
        """Whether a combination is sure to fail on no more of the dataset than it may.

        With probability delta / 5 at most, one that fails on more is held to be sure, however often this is
        asked.
        """
        if not self.fit(number):
            return False
        cells, size = self.cells, len(self.datapoints)
        seen, errors = int(cells.seen[number]), int(cells.errors[number])
        if errors + size - seen <= self.max_errors * size + _ROUNDING:
            return True
        test = MeanTest(1 - self.max_errors, population=size)
        test.add(1.0 - cells.failed[number, :seen])
        return bool(test.rejects(_FOR_ERRORS * self.delta / len(self.combinations)))

    @property
    def score_delta(self) -> float:
        """How often what is said of the scores may be wrong."""
        return (1 - _FOR_ERRORS) * self.delta

    @property
    def fit_ones(self) -> NDArray[np.bool_]:
        """(combinations,), `fit` of each."""
        cells = self.cells
        return (cells.seen > 0) & (cells.errors <= self.max_errors * cells.seen + _ROUNDING)

    @property
    def disqualified_ones(self) -> NDArray[np.bool_]:
        """(combinations,), who has failed more often already than it may over the whole dataset."""
        return self.cells.errors > self.max_errors * len(self.datapoints) + _ROUNDING

    def ask(self) -> list[tuple[int, tuple[int, ...]]]:
        """The next round: combinations, in the order of their urgency, and the places of their datapoints.

        `combinations` and `datapoints` say what the numbers stand for. No cell is ever asked for twice. Until
        it is told, the same round is asked for again.

        Returns:
            The requests; none when the search is over.
        """
        if self._to_come is None:
            self._to_come = iter(self._rounds())
        while not self._asked and (requests := self._next_round()) is not None:
            wanted: dict[int, list[int]] = {}
            for number, places in requests:
                wanted.setdefault(number, []).extend(places)
            new = ((number, self.cells.missing(number, places)) for number, places in wanted.items())
            self._asked = [(number, places) for number, places in new if places]
        return list(self._asked)

    def tell(self, outcomes: Sequence[Sequence[Outcome]]) -> Round:
        """Take what came of the round that was asked for, and say how it went.

        Args:
            outcomes: for each request, in order, one outcome for each of its places: a score, an
                `Evaluation`, or the exception in its place. What is no score in [0, 1] counts as an error.

        Raises:
            ValueError: those are not the outcomes of the round.
        """
        if not self._asked:
            raise ValueError("no round was asked for; call ask first")
        if [len(each) for each in outcomes] != [len(places) for _, places in self._asked]:
            raise ValueError("expected one outcome for each evaluation that was asked for")
        before = int(self.cells.errors.sum())
        with self._deciding():
            for (number, places), row in zip(self._asked, outcomes, strict=True):
                for place, outcome in zip(places, row, strict=True):
                    self.cells.fill(number, place, checked(outcome))
            asked, self._asked = self._asked, []
            self.last_asked |= dict.fromkeys((number for number, _ in asked), len(self.rounds) + 1)
            self._note()
            self.rounds.append(self._round(asked, int(self.cells.errors.sum()) - before))
        return self.rounds[-1]

    def select_best(
        self,
        parallel: bool = False,  # noqa: FBT001, FBT002 - `select_best(True)` is how it is called elsewhere
        max_concurrent: int = 20,
        on_round: Callable[[Round], None] | None = None,
        on_evaluation: Callable[[], None] | None = None,
        max_begun: int | None = None,
    ) -> SelectionResults:
        """Evaluate until the search is over.

        Args:
            parallel: whether several evaluations run at once.
            max_concurrent: how many, over all combinations and datapoints.
            on_round: called after each round.
            on_evaluation: called after each evaluation, on any thread, one at a time.
            max_begun: as many evaluations are begun where their calls have a cap of their own, as those of
                a `CallPool` have: its `callers` keep it busy while some wait to be repeated.

        Raises:
            ValueError: `max_concurrent` is below 1.
            NoWinnerError: no combination can be named.
            RuntimeError: it was broken off before, not in an evaluation but while it decided.
        """
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent must be at least 1, got {max_concurrent!r}")
        most = max_concurrent if parallel else 1
        begun = (max_begun or most) if parallel else 1
        while requests := self.ask():
            plan = plan_concurrency(most, max(len(places) for _, places in requests))
            self.tell(self._evaluated(requests, begun, on_evaluation))
            self.rounds[-1] = replace(self.rounds[-1], plan=plan)
            if on_round is not None:
                on_round(self.rounds[-1])
        return self.results()

    def results(self) -> SelectionResults:
        """What is known now.

        Raises:
            NoWinnerError: no combination can be named.
        """
        named = self.named()
        results = results_of(
            self.combinations,
            self.cells,
            tuple(self.rounds),
            self.delta,
            named,
            self.verdicts(named),
            self._claim(named),
        )
        if named is None:
            raise NoWinnerError(f"{self.no_winner_reason()}: mend that, or raise max_errors", results)
        return results

    def named(self) -> int | None:
        """The number of the combination that is named, if one can be."""
        fit = self.fit_ones
        able = [number for number in self.survivors if fit[number]]
        lows = dataset_lows(self.cells, self.delta, able) if len(able) > 1 else [0.0] * len(able)
        return max(zip(able, lows, strict=True), key=lambda each: (each[1], -each[0]), default=(None,))[0]

    def _next_round(self) -> Sequence[Request] | None:
        with self._deciding():
            return next(cast("Iterator[Sequence[Request]]", self._to_come), None)

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """What is broken off here, as by Ctrl-C, may be half a decision: nobody can go on from it."""
        if self._is_broken:
            raise RuntimeError("this search was broken off while it decided; make a new selector")
        self._is_broken = True
        yield
        self._is_broken = False

    def _round(self, asked: Sequence[tuple[int, Sequence[int]]], errors: int) -> Round:
        survivors, last = self.survivors, self.rounds[-1].survivors if self.rounds else ()
        survivors = last if last == survivors else survivors  # many rounds may share many survivors
        return Round(
            number=len(self.rounds) + 1,
            combinations=len(asked),
            batch_size=max(len(places) for _, places in asked),
            evaluations=sum(len(places) for _, places in asked),
            errors=errors,
            evaluations_so_far=int(self.cells.seen.sum()),
            survivors=survivors,
        )

    def _evaluated(
        self,
        requests: Sequence[Request],
        at_once: int,
        on_evaluation: Callable[[], None] | None,
    ) -> list[list[Any]]:
        """What comes of each place of each request, in their order; an exception in its place."""
        if at_once > 1:
            plans = [_request(number, places) for number, places in requests]
            evaluations = sum(len(places) for _, places in requests)
            return play_plans(plans, self._outcome, min(at_once, evaluations), on_evaluation)
        outcomes: list[list[Any]] = []
        for number, places in requests:
            outcomes.append([])
            for place in places:
                outcomes[-1].append(self._outcome((number, place)))
                if on_evaluation is not None:
                    on_evaluation()
        return outcomes

    def _outcome(self, cell: Cell) -> Any:  # noqa: ANN401 - what the user's function returns, or what it raised
        number, place = cell
        try:
            return self._evaluate(self.combinations[number], self.datapoints[place])
        except Exception as error:  # noqa: BLE001 - it counts as an error of the combination
            return error

    def _claim(self, named: int | None) -> str:
        """What the selector claims with its settings, and who scored the same as the named one."""
        if named is None:
            return "None of them can be named."
        claim, size, cells = self._filled(self.claim), len(self.datapoints), self.cells
        if cells.seen[named] < size:
            return claim
        equal = self.fit_ones & (cells.seen == size) & (cells.means() == cells.mean(named))
        others = [number for number in np.flatnonzero(equal).tolist() if number != named]
        if not others:
            return claim
        labels = [self.combinations[number].label for number in (named, *others)]
        if len(labels) > _SHOWN:
            labels = [*labels[: _SHOWN - 1], f"{len(labels) - _SHOWN + 1} others"]
        equals = f"{', '.join(labels[:-1])} and {labels[-1]}"
        return f"{claim} {equals} have the same score on all {size} datapoints; the first is named."

    def _filled(self, text: str) -> str:
        return text.format(self, wrong=f"{100 * self.delta:g} %")

    def _worse_than(self, named: int | None) -> NDArray[np.bool_]:
        """(combinations,), who is worse than the named one, both seen on the whole dataset."""
        cells, size = self.cells, len(self.datapoints)
        if named is None or cells.seen[named] < size:
            return np.zeros(len(cells.seen), dtype=np.bool_)
        worse: NDArray[np.bool_] = (cells.seen == size) & (cells.means() < cells.mean(named))
        return worse


def _request(number: int, places: Sequence[int]) -> Plan[Cell, Any, list[Any]]:
    return list((yield [(number, place) for place in places]))
