"""How a selection goes on: which combinations are evaluated next, on which datapoints.

A strategy is a generator. It yields rounds of cells, (index of a combination, index of a
datapoint); when it goes on, the table has their scores. A round ends before the next is decided,
so results depend on the seed and the scores alone, never on how many evaluations run at once.
Rounds are few and large: at the end of each, slots of a server are idle.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
from cyclopts import Parameter
from cyclopts.validators import Number
from numpy.typing import NDArray

from records.errors import describe
from records.settings import Count, NotNegative, Share
from records.user_file import score_of
from scorers.betting import interval, is_better, log_evidence

Floats = NDArray[np.float64]
Part = Annotated[float, Parameter(validator=Number(gte=1e-100, lte=1))]
"""Above 0, to 1; what is smaller yet is 0 in a product."""
Growth = Annotated[float, Parameter(validator=Number(gte=1))]
"""1 or above."""
Cell: TypeAlias = tuple[int, int]
Cells: TypeAlias = Iterator[list[Cell]]
COSTS = ("latency_s", "prompt_tokens", "completion_tokens", "price")
ROUNDING = 1e-9
FIRST = 20
"""Datapoints of the first round of a race at least: with fewer its tests decide little."""


@dataclass(frozen=True)
class Evaluation:
    """What one combination did at one datapoint: a score from 0 to 1, and what it cost."""

    score: float
    latency_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    price: float = 0.0


Outcome: TypeAlias = float | Evaluation | Exception


class ScoreTable:
    """The scores of N combinations, the arms, at M datapoints, all in one order that chance made.

    Args:
        shape: how many choices each name has; an arm is one choice of each.
        size: M.
        delta: how often what a strategy claims may be wrong.
        max_errors: an arm that fails at more than this share of all datapoints is unfit.
    """

    def __init__(self, shape: Sequence[int], size: int, *, delta: float, max_errors: float) -> None:
        self.choices = np.array(list(itertools.product(*map(range, shape))))
        """(N, number of names): the numbers of each arm's choices."""
        self.arms = range(len(self.choices))
        self.size, self.delta, self.max_errors = size, delta, max_errors
        self.scores: Floats = np.full((len(self.arms), size), np.nan)
        """(N, M): nan where nothing was evaluated, 0 where that failed."""
        self.costs: Floats = np.zeros((len(self.arms), len(COSTS)))
        """(N, 4): sums."""
        self.errors = [0 for _ in self.arms]
        """At how many datapoints each arm failed."""
        self.first_errors: dict[int, str] = {}
        """By arm, why it failed first."""
        self.verdicts: dict[int, str] = {}
        """What a strategy knows of an arm, in a few words."""
        self.ruled_out: set[int] = set()
        """The arms that cannot win any more."""

    def write(self, cell: Cell, outcome: Outcome) -> None:
        """Write the outcome of a cell; what is no score from 0 to 1 is an error."""
        arm, _ = cell
        value = outcome.score if isinstance(outcome, Evaluation) else outcome
        score = score_of(value)
        self.scores[cell] = score or 0.0
        if score is None:
            self.errors[arm] += 1
            if not isinstance(value, Exception):
                value = ValueError(f"expected a score from 0 to 1, got {value!r}")
            self.first_errors.setdefault(arm, describe(value))
        elif isinstance(outcome, Evaluation):
            self.costs[arm] += [getattr(outcome, cost) for cost in COSTS]

    @property
    def counts(self) -> NDArray[np.int64]:
        """(N,): at how many datapoints each arm was evaluated."""
        counts: NDArray[np.int64] = (~np.isnan(self.scores)).sum(1)
        return counts

    def seen(self, arm: int) -> Floats:
        """The scores of an arm in the order of the datapoints."""
        row = self.scores[arm]
        seen: Floats = row[~np.isnan(row)]
        return seen

    def mean(self, arm: int) -> float:
        """The mean score of an arm, an error as 0; nan without any."""
        seen = self.seen(arm)
        return round(float(seen.mean()), 12) if len(seen) else math.nan  # so that ties are equal

    def missing(self, arms: Sequence[int], end: int | None = None) -> list[Cell]:
        """The cells of these arms that were not evaluated, datapoint by datapoint, up to `end`."""
        empty = np.argwhere(np.isnan(self.scores[list(arms), :end].T))
        return [(arms[row], index) for index, row in empty.tolist()]

    def is_unfit(self, arm: int) -> bool:
        """Whether an arm has failed at more datapoints than it may of the whole dataset."""
        return self.errors[arm] > self.max_errors * self.size + ROUNDING

    def ranked(self, arms: Sequence[int]) -> list[int]:
        """Those of the arms that were evaluated and are not unfit, the highest mean first."""
        fit = [arm for arm in arms if len(self.seen(arm)) and not self.is_unfit(arm)]
        return sorted(fit, key=lambda arm: -self.mean(arm))

    def surest(self, arms: Sequence[int]) -> list[int]:
        """The one of them with the highest lower bound of its mean over the dataset, if any."""

        def low(arm: int) -> float:
            return round(float(interval(self.seen(arm), self.delta, self.size)[0]), 12)

        return sorted(self.ranked(arms), key=lambda arm: -low(arm))[:1]

    def winner(self) -> int | None:
        """The best of the arms evaluated on the whole dataset; before there is one, of all."""
        whole = self.ranked(np.flatnonzero(self.counts == self.size).tolist())
        return next(iter(whole or self.ranked(self.arms)), None)


def brute_force(table: ScoreTable, _rng: np.random.Generator) -> Cells:
    """All there is."""
    yield table.missing(table.arms)


def random_search(
    table: ScoreTable, rng: np.random.Generator, *, sample_fraction: Part = 0.25
) -> Cells:
    """A share of the arms, rounded up, drawn by chance."""
    yield table.missing(_some(table, rng, sample_fraction))


def _some(table: ScoreTable, rng: np.random.Generator, share: float) -> list[int]:
    count = math.ceil(share * len(table.arms) - ROUNDING)
    drawn: list[int] = rng.permutation(table.arms)[:count].tolist()
    return drawn


def hill_climbing(
    table: ScoreTable, rng: np.random.Generator, *, restarts: Count = 3, batch_size: Count = 4
) -> Cells:
    """From several arms at once to their best neighbours, until no neighbour is better.

    A neighbour differs in one choice; a climb evaluates `batch_size` of them together.
    """
    near = [np.flatnonzero((table.choices != at).sum(1) == 1).tolist() for at in table.choices]

    def top(here: int) -> int:
        """Where a climb is, as far as was evaluated."""
        while (best := table.ranked([here, *near[here]])) and best[0] != here:
            here = best[0]
        return here

    batch = climbs = rng.permutation(table.arms)[:restarts].tolist()
    while batch:
        yield table.missing(batch)
        climbs, batch = list(map(top, climbs)), []
        for here in climbs:
            new = [arm for arm in near[here] if not len(table.seen(arm)) and arm not in batch]
            rng.shuffle(new)
            batch += new[:batch_size]


def bayesian(
    table: ScoreTable, rng: np.random.Generator, *, budget: Part = 0.25, batch_size: Count = 2
) -> Cells:
    """Half of a share of the arms by chance, then those that promise the greatest improvement.

    It is expected by a Gaussian process (Matern 5/2) over the one-hot codes of an arm's choices.
    `budget` is the share, rounded up; `batch_size` arms are chosen together.
    """
    from scipy.stats import norm  # type: ignore[import-untyped]
    from sklearn.gaussian_process import GaussianProcessRegressor  # type: ignore[import-untyped]
    from sklearn.gaussian_process.kernels import Matern, WhiteKernel  # type: ignore[import-untyped]

    codes = np.hstack([np.eye(column.max() + 1)[column] for column in table.choices.T])
    drawn = _some(table, rng, budget)
    left = len(drawn)
    batch = drawn[: min(math.ceil(left / 2), 2 * table.choices.shape[1] + 2)]
    while batch:
        yield table.missing(batch)
        left -= len(batch)
        known = np.flatnonzero(table.counts).tolist()
        rest = rng.permutation(np.flatnonzero(table.counts == 0))
        if not len(rest) or not left:
            return
        means = [table.mean(arm) for arm in known]
        kernel = Matern(3.0, "fixed", nu=2.5) + WhiteKernel(0.01, "fixed")
        process = GaussianProcessRegressor(kernel, normalize_y=True).fit(codes[known], means)
        expected, deviation = process.predict(codes[rest], return_std=True)
        z = (expected - max(means)) / np.maximum(deviation, ROUNDING)
        gain = deviation * (z * norm.cdf(z) + norm.pdf(z))
        order = np.argsort(-gain.round(9), kind="stable")
        batch = rest[order][: min(batch_size, left)].tolist()


def matrix_ucb(
    table: ScoreTable,
    _rng: np.random.Generator,
    *,
    budget: Part = 0.25,
    batch_size: Count | None = None,
    exploration: NotNegative = 1.0,
) -> Cells:
    """A share of the cells, each where most can be hoped; then the surest arm is finished.

    The hope is the mean and sqrt(exploration / n): UCB-E (Audibert, Bubeck and Munos 2010, "Best
    arm identification in multi-armed bandits"), on a table of scores as in Zhou et al. (2024, "On
    Speeding Up Language Model Evaluation").

    `budget` is the share, rounded up, and at least one cell of each arm; a round has `batch_size`
    cells, or a tenth of all.
    """
    left = math.ceil(budget * table.scores.size - ROUNDING)
    most = batch_size or max(1, table.scores.size // 10)
    cells = table.missing(table.arms, max(1, min(table.size // 20, left // len(table.arms))))
    while cells:
        yield cells
        left -= len(cells)
        means, counts, cells = np.nanmean(table.scores, 1), table.counts, []
        fit = np.array([not table.is_unfit(arm) for arm in table.arms])
        while len(cells) < min(most, left) and (is_open := fit & (counts < table.size)).any():
            hopes = np.where(is_open, means + np.sqrt(exploration / counts), -1)
            arm = int(hopes.argmax())
            cells.append((arm, int(counts[arm])))
            counts[arm] += 1
    while cells := table.missing(table.surest(table.arms)):
        yield cells


def arm_elimination(
    table: ScoreTable,
    _rng: np.random.Generator,
    *,
    n_initial: Count | None = None,
    growth_factor: Growth = 2.0,
) -> Cells:
    """All arms, in rounds that grow; an arm that is surely worse than the leader is out.

    The leader has the highest mean so far. Its rivals are compared with it datapoint by datapoint,
    each at delta divided by their number, by bets that may be looked at after any round and that
    know the size of the dataset; should it be unfit, those that it beat are in again.
    The first round has `n_initial` datapoints, or a tenth of the dataset and at least `FIRST`, each
    further one `growth_factor` times as many.
    """
    return _race(table, lambda: _rivals(table, 0.0, "ruled out"), n_initial, growth_factor)


def epsilon_lucb(
    table: ScoreTable,
    _rng: np.random.Generator,
    *,
    epsilon: Share = 0.01,
    n_initial: Count | None = None,
    growth_factor: Growth = 2.0,
) -> Cells:
    """As arm elimination, but an arm is out once it is surely at most epsilon above the leader."""
    out = f"not {epsilon:g} better"
    return _race(table, lambda: _rivals(table, epsilon, out), n_initial, growth_factor)


def threshold(
    table: ScoreTable,
    _rng: np.random.Generator,
    *,
    threshold: Part = 0.75,
    n_initial: Count | None = None,
    growth_factor: Growth = 2.0,
) -> Cells:
    """As arm elimination, but an arm is out once it surely reaches the threshold, or surely fails.

    Each is tested at delta divided by their number. The surest that reaches it is evaluated on the
    whole dataset, or where none does, the surest of all: so one that reaches it wins, if any does.
    """
    return _race(table, lambda: _undecided(table, threshold), n_initial, growth_factor)


def _race(
    table: ScoreTable,
    still_in: Callable[[], list[int]],
    n_initial: Count | None,
    growth_factor: float,
) -> Cells:
    """The arms that are still in, on the next datapoints, round by round; the last one on all."""
    batch = n_initial or max(FIRST, table.size // 10)
    end, racing = min(table.size, batch), list(table.arms)
    while cells := table.missing(racing, end if len(racing) > 1 else None):
        yield cells
        racing = still_in()
        if not table.missing(racing, end):
            batch = math.ceil(min(table.size, batch * growth_factor))
            end = min(table.size, end + batch)


def _rivals(table: ScoreTable, epsilon: float, out: str) -> list[int]:
    """The leader, and the arms that may be more than epsilon above it."""
    delta = table.delta / max(1, len(table.arms) - 1)
    fit = table.ranked(table.arms)
    table.verdicts = {}
    for arm in fit[1:]:
        # All arms see the datapoints in one order: both have seen the first `count` of them.
        count = min(len(table.seen(fit[0])), len(table.seen(arm)))
        a, b = table.scores[[fit[0], arm], :count]
        if is_better(a, b, delta, margin=-epsilon, population=table.size):
            table.verdicts[arm] = out
    table.ruled_out = set(table.verdicts)
    return [arm for arm in fit if arm not in table.ruled_out]


def _undecided(table: ScoreTable, threshold: float) -> list[int]:
    """The arms of which it is not known whether they reach the threshold.

    Where it is known of all, the one that reaches it most surely, or else the surest of all.
    """
    needed = -math.log(table.delta / len(table.arms))
    for arm in table.ranked(table.arms):
        seen = table.seen(arm)
        if len(seen) == table.size:
            is_above = table.mean(arm) >= round(threshold, 12)
            is_below = not is_above
        else:
            is_above = bool(log_evidence(seen, threshold, table.size) >= needed)
            is_below = bool(log_evidence(1 - seen, 1 - threshold, table.size) >= needed)
        word = "reaches" if is_above else "does not reach" if is_below else "undecided"
        table.verdicts[arm] = word
    arms_of: dict[str, list[int]] = defaultdict(list)
    for arm in table.ranked(table.arms):
        arms_of[table.verdicts[arm]].append(arm)
    table.ruled_out = set(arms_of["does not reach"])
    return arms_of["undecided"] or table.surest(arms_of["reaches"] or table.arms)


Strategy: TypeAlias = Callable[..., Cells]
"""`(table, rng, *, settings) -> rounds of cells`; the winner has to be evaluated everywhere."""
_SOME = "The best of those seen, each on all datapoints; of the others nothing is claimed."
_WRONG = "with a chance of error of at most {delta:g}"
SELECTORS: Mapping[str, tuple[Strategy, str, str]] = {
    "brute_force": (brute_force, "best", "The best on these datapoints: all were seen."),
    "random": (random_search, "best of those seen", _SOME),
    "hill_climbing": (hill_climbing, "best of those seen", _SOME),
    "arm_elimination": (arm_elimination, "best", f"The best on these datapoints, {_WRONG}."),
    "threshold": (
        threshold,
        "best so far",
        f"Which combinations reach {{threshold:g}} on these datapoints and which do not, {_WRONG}.",
    ),
    "epsilon_lucb": (
        epsilon_lucb,
        "best, or {epsilon:g} below",
        f"At most {{epsilon:g}} worse than the best on these datapoints, {_WRONG}.",
    ),
    "bayesian": (bayesian, "best of those seen", _SOME),
    "matrix_ucb": (
        matrix_ucb,
        "best so far",
        "No chance of error is claimed: most evaluations went where a high score was likely.",
    ),
}
"""By name: the strategy, what it says of the winner, and what it claims."""
