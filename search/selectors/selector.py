"""What all selectors share: they ask for rounds of evaluations, are told what came, and name the best.

A selector decides, a driver evaluates: `select_best` is one driver, `ask` and `tell` let there be others.
What is asked for depends on the choices, the dataset, the seed and what was told, and on nothing else. So
results are the same however many evaluations run at once, and a search that is run again asks the same.

A round is decided while the last evaluations of the one before it, `ahead` at most, are under way, so that no
place under a cap waits for a round to end. What came is told in the order in which it was asked for,
whenever it came, and the next round is decided when all but so many were told: at a point of that order,
never of time. The tests by betting bear that: a pair's capital is a function of its scores in the order of
the datapoints, and the chance that it is ever too large bounds whatever is read off a beginning of that
order, however long the beginning is and whoever decides that, from whatever else is known (`confidence`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, ClassVar, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from ollama_utils.plans import Plan, PlanRunner
from ollama_utils.threads import POLL_S
from scorers.betting import MeanTest
from search.selectors.combination import Combination, combinations, plan_concurrency, shuffled
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
_AHEAD = 60
"""Three times the usual cap. Chosen on simulated tables of 9 combinations and 100 datapoints: with 40,
epsilon-LUCB takes longer than brute force where latencies are lognormal (sigma 1), and saves 2 % more."""
_BEGUN = 1000
"""Evaluations that threads are given at most before the first of them is told: who waits holds up nobody."""
_ORDER = 101
"""The chance that the order of the datapoints is drawn from; selectors take others, and none takes 0."""


class Common(TypedDict, total=False):
    """The settings that every selector takes by name."""

    seed: int
    delta: float
    max_errors: float
    ahead: int | None


@dataclass
class _OpenRound:
    """A round that was asked for and is not told yet, or not wholly."""

    datapoints: Counter[int]
    """How many each combination is asked for at."""
    left: int
    """Evaluations that are not told yet."""
    errors: int = 0


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
        ahead: a round is decided once no more evaluations than that are not told; 0: once all are. Twice the
            cap keeps it busy where all replies take as long, three times where some take much longer. None:
            60, or a tenth of all evaluations there are if that is less, or a five-hundredth if that is more.

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
    waits_for_half: ClassVar[bool] = False
    """Whether half of a round is told, whatever `ahead` says, before the next one is decided."""

    def __init__(
        self,
        choices: Mapping[str, Sequence[Any]],
        dataset: Sequence[Any],
        evaluate: Evaluate,
        *,
        seed: int = 0,
        delta: float = 0.05,
        max_errors: float = 0.1,
        ahead: int | None = None,
    ) -> None:
        if seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed!r}")
        if not 0 < delta < 1:
            raise ValueError(f"delta must be above 0 and below 1, got {delta!r}")
        if not 0 <= max_errors <= 1:
            raise ValueError(f"max_errors must be from 0 to 1, got {max_errors!r}")
        if ahead is not None and ahead < 0:
            raise ValueError(f"ahead must be at least 0, got {ahead!r}")
        self.combinations = combinations(choices)
        self.choices = {name: tuple(several) for name, several in choices.items()}
        self.seed = seed
        self.delta = delta
        self.max_errors = max_errors
        self.datapoints = shuffled(dataset, self.chance(_ORDER))
        self.cells = Cells(len(self.combinations), len(self.datapoints))
        every = self.cells.scores.size
        self.ahead = max(min(_AHEAD, every // 10), every // 500) if ahead is None else ahead
        self.rounds: list[Round] = []
        self.last_asked: dict[int, int] = {}  # the last round of each combination
        self._evaluate = evaluate
        self._to_come = self._rounds()
        self._open: deque[_OpenRound] = deque()
        self._untold: deque[Cell] = deque()  # those of the open rounds
        self._due_at = 0  # so many of them are left when the next round is decided
        self._is_broken = False

    @abstractmethod
    def _rounds(self) -> Iterator[Sequence[Request]]:
        """What to evaluate, round by round; a generator, for it begins when it is asked for the first.

        When the generator goes on, `self.cells` holds what was told, in the order in which it was asked for,
        and says what else was. What was asked for already is left out of a round. A round of which nothing is
        left waits until more is told, and where all is told, it is the end.
        """

    def _sure(self, number: int) -> Request:
        """What makes a combination `sound` that can be, if it fails on no other datapoint."""
        size, seen = len(self.datapoints), int(self.cells.seen[number])
        return number, range(bisect_left(range(size), x=True, lo=seen, key=partial(self._sound, number)))

    def _note(self) -> None:  # noqa: B027 - most selectors need to do nothing here
        """Make up one's mind after what was told, before a round is decided or `survivors` asked for."""

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
        return self._sound(number, int(self.cells.seen[number]))

    def _sound(self, number: int, count: int) -> bool:
        """`sound`, as it would be after `count` datapoints without further errors."""
        cells, size = self.cells, len(self.datapoints)
        seen, errors = int(cells.seen[number]), int(cells.errors[number])
        if not count or errors > self.max_errors * count + _ROUNDING:
            return False
        if errors + size - count <= self.max_errors * size + _ROUNDING:
            return True
        test = MeanTest(1 - self.max_errors, population=size)
        test.add(1.0 - cells.failed[number, :seen])
        test.add(np.ones(count - seen))
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
        with self._deciding():
            if not self.rounds and not self._open:
                self._decide()
        asked: dict[int, list[int]] = {}
        for number, place in self._next_untold():
            asked.setdefault(number, []).append(place)
        return [(number, tuple(places)) for number, places in asked.items()]

    def tell(self, outcomes: Sequence[Sequence[Outcome]]) -> Round:
        """Take what came of the round that was asked for, and say how it went.

        Args:
            outcomes: for each request, in order, one outcome for each of its places: a score, an
                `Evaluation`, or the exception in its place. What is no score in [0, 1] counts as an error.

        Raises:
            ValueError: those are not the outcomes of the round.
        """
        if not (asked := self.ask() if self._open else []):
            raise ValueError("no round was asked for; call ask first")
        if [len(each) for each in outcomes] != [len(places) for _, places in asked]:
            raise ValueError("expected one outcome for each evaluation that was asked for")
        of_cells = {
            (number, place): outcome
            for (number, places), row in zip(asked, outcomes, strict=True)
            for place, outcome in zip(places, row, strict=True)
        }
        for cell in self._next_untold():
            self._take(of_cells[cell])
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
        self.ask()
        most = max_concurrent if parallel else 1
        at_once = (max_begun or most) if parallel else 1
        with closing(self._evaluated(at_once, on_evaluation)) as outcomes:
            for outcome in outcomes:
                if self._take(outcome):
                    last = self.rounds[-1]
                    self.rounds[-1] = replace(last, plan=plan_concurrency(most, last.batch_size))
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

    def _next_untold(self) -> list[Cell]:
        """The cells of the round that is told next."""
        return list(islice(self._untold, self._open[0].left)) if self._open else []

    def _take(self, outcome: object) -> bool:
        """Write down what came of the first cell that is not told, and go on; whether its round is over."""
        with self._deciding():
            opened, evaluation = self._open[0], checked(outcome)
            self.cells.fill(*self._untold.popleft(), evaluation)
            opened.left -= 1
            opened.errors += isinstance(evaluation, Exception)
            is_due = len(self._untold) <= self._due_at
            if is_due or not opened.left:
                self._note()
            if not opened.left:
                self._open.popleft()
                self.last_asked |= dict.fromkeys(opened.datapoints, len(self.rounds) + 1)
                self.rounds.append(self._round(opened))
            if is_due:
                self._decide()
            return not opened.left

    def _decide(self) -> None:
        """Open the next round, if there is one now."""
        requests = next(self._to_come, ())
        new = [(number, place) for number, places in requests for place in self.cells.ask_for(number, places)]
        if new:
            self._open.append(_OpenRound(Counter(number for number, _ in new), len(new)))
            self._untold.extend(new)
            self._due_at = min(self.ahead, len(new) // 2) if self.waits_for_half else self.ahead
        elif self._open:
            self._due_at = len(self._untold) - self._open[0].left

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """What is broken off here, as by Ctrl-C, may be half a decision: nobody can go on from it."""
        if self._is_broken:
            raise RuntimeError("this search was broken off while it decided; make a new selector")
        self._is_broken = True
        yield
        self._is_broken = False

    def _round(self, told: _OpenRound) -> Round:
        survivors, last = self.survivors, self.rounds[-1].survivors if self.rounds else ()
        survivors = last if last == survivors else survivors  # many rounds may share many survivors
        return Round(
            number=len(self.rounds) + 1,
            combinations=len(told.datapoints),
            batch_size=max(told.datapoints.values()),
            evaluations=told.datapoints.total(),
            errors=told.errors,
            evaluations_so_far=int(self.cells.seen.sum()),
            survivors=survivors,
        )

    def _evaluated(
        self, at_once: int, on_evaluation: Callable[[], None] | None
    ) -> Generator[object, None, None]:
        """What comes of each cell that is not told, an exception in its place, in their order.

        Each is taken before the next is asked for, and cells may be added meanwhile.
        """
        if at_once == 1:
            while self._untold:
                outcome = self._outcome(self._untold[0])
                if on_evaluation is not None:
                    on_evaluation()
                yield outcome
            return
        most = max(_BEGUN, 10 * at_once)
        waiting: deque[Future[object]] = deque()
        with PlanRunner(self._outcome, at_once, on_evaluation, fail_fast=True) as runner:
            while self._untold:
                for cell in islice(self._untold, len(waiting), most):
                    waiting.append(runner.submit(_one(cell)))
                while not _is_done(waiting[0]):
                    for future in filter(Future.done, waiting):
                        future.result()  # what is raised anywhere ends the search
                yield waiting.popleft().result()

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


def _is_done(future: Future[object]) -> bool:
    """Whether it is after a while; what a signal raises interrupts that."""
    try:
        future.exception(POLL_S)
    except TimeoutError:
        return future.done()
    return True


def _one(cell: Cell) -> Plan[Cell, object, object]:
    (outcome,) = yield [cell]
    return outcome
