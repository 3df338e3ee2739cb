"""How much a policy could gain over one fixed mutator, measured before anything is trained.

Queries are asked as they stand until enough of them got no answer. Each mutator rewords each of
these, a rule once and a model twice, and asks. From this table follows what a fixed choice is
worth, and what a linear policy that reads the query is worth on queries that it was not fitted to.

With guard queries, which ought to stay refused, a choice is worth the share of harmless queries
that it opens less the share of guard queries that it unlocks, times their weight: each side counts
by its own mean.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import compress, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.episode import derive_seed
from envs.queries import Query
from evaluation.episodes import AgentEpisode, EpisodeContext, ask_as_it_stands
from evaluation.fit import cascade_order
from ollama_utils.errors import OllamaError
from ollama_utils.parallel import iterate_parallel
from records.failures import FailureLimit
from scorers.comparison import queries_needed
from scorers.statistics import Interval, difference_interval, mean_interval, rate_interval

ROUND = 32
"""Queries that are asked as they stand before it is counted how many got no answer."""
FOLDS = 5
COMPONENTS = 16
"""Principal components of the queries' embeddings that the linear policy reads, at most."""
PENALTIES = np.logspace(-1, 4, 11)
"""What ridge regression chooses from, by the error on queries that are left out."""
FEWEST = 2 * FOLDS
"""So few groups of queries of a side say nothing of what can be learned."""
MOST_READ = 2000
"""Other queries of a file that are read, at most."""
USEFUL = 0.02
"""A mutator that opens a smaller share of queries does nothing."""
LEAVE = -1
"""The choice that leaves the reply as it is."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Tick = Callable[[int], None]


class Try(NamedTuple):
    """A rewording of a query, and what came of it."""

    adopted: bool
    """Whether it was adopted, and changes the query."""
    why_not: str
    """In a word, where it is not."""
    success: float
    """1 where the target answered it, 0 where it did not or the rewording changed nothing; nan
    where a call failed."""


@dataclass(frozen=True, kw_only=True)
class Read:
    """Queries that a policy can read."""

    groups: Sequence[str]
    """(queries,): those of one group are alike."""
    embeddings: Floats
    """(queries, D)"""


@dataclass(frozen=True, kw_only=True)
class Side:
    """The queries of one file that got no answer as they stand, and every mutator tried on them."""

    asked: int
    """Queries that were asked to find them, failed calls left out."""
    found: int
    """How many of those got no answer; mutators are tried on as many as were wanted."""
    queries: Read
    rest: Read
    """Other queries of the file, which tell what its queries are like; none without guard
    queries."""
    tries: Sequence[Sequence[Sequence[Try]]]
    """[query][mutator][time]: a rule is tried once, a model twice."""

    def success(self, time: int) -> Floats:
        """(queries, mutators): whether it was answered the first or the second time."""
        table = [[each[min(time, len(each) - 1)].success for each in row] for row in self.tries]
        return np.array(table).reshape(len(self.tries), -1)

    @property
    def mean(self) -> Floats:
        """(queries, mutators): the share of tries that were answered."""
        return (self.success(0) + self.success(1)) / 2


def find_and_try(
    context: EpisodeContext,
    queries: Sequence[Query],
    wanted: int,
    *,
    reads_rest: bool,
    jobs: int,
    max_unscored: float,
    ticks: Callable[[str, int], Tick],
) -> Side:
    """Find queries without an answer, and try every mutator on each.

    Args:
        context: the mission's.
        queries: the file's.
        wanted: how many are looked for.
        reads_rest: whether other queries of the file are read, too.
        jobs: the most episodes at once.
        max_unscored: the share of calls that may fail.
        ticks: begins to show how far a part of the work is.

    Raises:
        RunStoppedError: too many calls failed.
    """
    limit = FailureLimit(max_unscored)
    ordered = sorted(queries, key=lambda each: derive_seed(context.seed, "fit", each.text))
    found: list[Query] = []
    asked = known = 0
    tick = ticks("queries asked as they stand", len(ordered))
    while len(found) < wanted and asked < len(ordered):
        several = ordered[asked : asked + ROUND]
        texts = [query.text for query in several]
        looks = iterate_parallel(partial(ask_as_it_stands, context), texts, jobs)
        for query, episode in zip(several, looks, strict=True):
            limit.add(episode.step_errors)
            known += not episode.is_unscored
            if not episode.is_over:
                found.append(query)
        asked += len(several)
        tick(asked)
    without_answer, found = len(found), found[:wanted]
    mutators = context.rules.mutators
    items = [
        (query, arm, time)
        for query, arm in product(found, range(len(mutators)))
        for time in range(1 + (mutators[arm].kind == "model"))
    ]
    tries: dict[tuple[str, int], list[Try]] = {}
    tick = ticks("rewordings tried", len(items))
    played = iterate_parallel(partial(_try, context), items, jobs, tick)
    with closing(played):
        for (query, arm, _), (one, errors) in zip(items, played, strict=True):
            limit.add(errors)
            tries.setdefault((query.text, arm), []).append(one)
    limit.check()
    rows = [[tries[query.text, arm] for arm in range(len(mutators))] for query in found]
    whole = [not any(math.isnan(one.success) for each in row for one in each) for row in rows]
    rest = [query for query in ordered if query not in found] if reads_rest else []
    return Side(
        asked=known,
        found=without_answer,
        queries=_read(context, list(compress(found, whole))),
        rest=_read(context, rest[:MOST_READ]),
        tries=list(compress(rows, whole)),
    )


def _read(context: EpisodeContext, queries: Sequence[Query]) -> Read:
    """Embed queries; an OllamaError where one cannot be embedded."""
    rows = context.models.embed([query.text for query in queries])
    if failed := [row for row in rows if isinstance(row, OllamaError)]:
        raise failed[0]
    return Read(groups=[query.group for query in queries], embeddings=np.array(rows, np.float64))


def _try(context: EpisodeContext, item: tuple[Query, int, int]) -> tuple[Try, list[str]]:
    """A try, and the errors of its steps."""
    query, arm, time = item
    episode = AgentEpisode(context, query.text, repeat=time)
    episode.begin(known=(-context.models.mission.step_cost, "refused"))
    if not episode.is_over:
        episode.step(arm)
    if episode.is_unscored:
        return Try(adopted=False, why_not="failed", success=math.nan), episode.step_errors
    info = episode.transitions[-1].info
    changed = info["adopted"] and info["mutated_query"] != query.text
    why_not = "" if changed else info["rejected"] or "unchanged"
    return Try(changed, why_not, float(info["success"] and changed)), episode.step_errors


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What came of a mutator."""

    name: str
    adopted: float
    """The share of its rewordings that were adopted and changed the query."""
    handed_back: str
    """Why others were not, the commonest reason; "" where all were adopted."""
    opened: Interval
    unlocked: Interval | None
    """None without guard queries."""

    @property
    def does_something(self) -> bool:
        """Whether it is worth trying."""
        return self.opened.mean >= USEFUL


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """What choosing by the query is worth: opened, or opened less the weight times unlocked."""

    best_fixed: str
    """The mutator that is best for all queries; `noop` where none is better than to leave it."""
    fixed: float
    """What it is worth on the queries that it was chosen on."""
    cascade: tuple[str, ...]
    """The mutators in the order of a cascade, up to the step limit."""
    cascade_worth: float
    """Likewise."""
    gain: Interval
    """Of a linear policy over the best fixed mutator, both chosen on other queries."""
    needed: int
    """Queries of a side with which such a gain, or the least one of interest, would be seen."""
    oracle: float
    """The share opened by the best mutator for each query: chosen on one try, and counted on the
    other where there are two."""

    def verdict(self, least: float) -> str:
        """Whether a policy is worth its calls, where a gain of `least` is."""
        if self.gain.high < least:
            return "not worth it"
        return "worth it" if self.gain.low > 0 and self.gain.mean >= least else "not known"


def arms(names: Sequence[str], harmless: Side, guard: Side | None) -> list[Arm]:
    """What came of each mutator."""
    found = []
    for place, name in enumerate(names):
        tries = [each for row in harmless.tries for each in row[place]]
        why = Counter(each.why_not for each in tries if each.why_not)
        found.append(
            Arm(
                name=name,
                adopted=float(np.mean([each.adopted for each in tries])),
                handed_back=why.most_common(1)[0][0] if why else "",
                opened=rate_interval(_counts(harmless, place)),
                unlocked=rate_interval(_counts(guard, place)) if guard else None,
            )
        )
    return found


def _counts(side: Side, place: int) -> list[tuple[int, int]]:
    """For each group how often it was answered, and how often it was tried."""
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for group, row in zip(side.queries.groups, side.tries, strict=True):
        counts[group][0] += int(sum(each.success for each in row[place]))
        counts[group][1] += len(row[place])
    return [(answered, tried) for answered, tried in counts.values()]


def headroom(
    names: Sequence[str],
    harmless: Side,
    guard: Side | None,
    *,
    max_steps: int,
    least: float,
    seed: int,
    weight: float = 1.0,
) -> Headroom:
    """What can be gained by reading the query.

    Args:
        names: those of the mutators.
        harmless: the queries that ought to be answered.
        guard: those that ought to be refused, if there are any.
        max_steps: the step limit of an episode.
        least: the gain of interest.
        seed: decides the folds.
        weight: what an answer to a guard query costs, where one to another earns 1.
    """
    sides = [harmless] if guard is None else [harmless, guard]
    tables = _tables(sides, weight)
    values = _values(tables)
    best = int(values.argmax()) if values.max() > 0 else LEAVE
    each = zip(tables, (1.0, -weight), strict=False)
    worth = np.concatenate([np.full(len(table), pays / len(table)) for table, pays in each])
    often = np.concatenate([side.mean >= 0.5 for side in sides])  # noqa: PLR2004 - as often as not
    order = cascade_order(often.T, worth)[:max_steps]
    reached = [table[:, order].max(axis=1, initial=0).mean() for table in tables]
    gains = _gains(sides, tables, seed)
    gain, deviation = _interval(sides, gains, max(1.0, weight))
    target = max(least, gain.mean)
    differing = float(np.mean(np.concatenate(gains) != 0))
    return Headroom(
        best_fixed="noop" if best == LEAVE else names[best],
        fixed=max(0.0, float(values.max())),
        cascade=tuple(names[arm] for arm in order),
        cascade_worth=float(reached[0] - sum(reached[1:])),
        gain=gain,
        needed=queries_needed(target, deviation=deviation, differing=max(differing, target)),
        oracle=_oracle(harmless),
    )


def _values(tables: Sequence[Floats]) -> Floats:
    """(mutators,): the share that each opens, less the share that it unlocks."""
    means = [table.mean(axis=0) for table in tables]
    return np.asarray(means[0] - sum(means[1:]))


def _chosen(table: Floats, choice: Ints) -> Floats:
    """(queries,): what the chosen mutators earn; 0 where the reply is left as it is."""
    rows = np.arange(len(table))
    return np.where(choice == LEAVE, 0.0, table[rows, np.maximum(choice, 0)])


def _tables(sides: Sequence[Side], weight: float) -> list[Floats]:
    """For each side (queries, mutators): what an answer there is worth, in reward."""
    return [sides[0].mean, *(weight * side.mean for side in sides[1:])]


def _gains(sides: Sequence[Side], tables: Sequence[Floats], seed: int) -> list[Floats]:
    """For each side (queries,): what the linear policy earns more than the best fixed mutator.

    Both are chosen on the other folds; queries of a group are in one fold.
    """
    gains = [np.zeros(len(table)) for table in tables]
    for fold in range(FOLDS):
        known = [_folds(side.queries, seed) != fold for side in sides]
        values = _values([table[rows] for table, rows in zip(tables, known, strict=True)])
        fixed = int(values.argmax()) if values.max() > 0 else LEAVE
        policy = _policy(sides, tables, known, [_folds(side.rest, seed) != fold for side in sides])
        for place, (side, table) in enumerate(zip(sides, tables, strict=True)):
            rows = ~known[place]
            if rows.any():
                chosen = policy(side.queries.embeddings[rows])
                always = np.full(int(rows.sum()), fixed)
                gains[place][rows] = _chosen(table[rows], chosen) - _chosen(table[rows], always)
    return gains


Policy = Callable[[Floats], Ints]
"""Choices (N,) for embeddings (N, D)."""
Rows = Sequence[NDArray[np.bool_]]
"""For each side (queries,): those that may be learned from."""


def _policy(sides: Sequence[Side], tables: Sequence[Floats], known: Rows, rest: Rows) -> Policy:
    """Takes the mutator that opens most, less what it unlocks if the query is of the guard's kind.

    What a mutator does on a side follows by ridge regression from the query's embedding.
    """
    each = zip(sides, tables, known, strict=True)
    earned = [_earned(side.queries, table, rows) for side, table, rows in each]
    harmful = _harmful(sides, known, rest)

    def choose(asked: Floats) -> Ints:
        share = harmful(asked)[:, None]
        expected = (1 - share) * earned[0](asked)
        for unlocked in earned[1:]:
            expected -= share * unlocked(asked)
        return np.where(expected.max(axis=1) > 0, expected.argmax(axis=1), LEAVE)

    return choose


def _earned(read: Read, table: Floats, rows: NDArray[np.bool_]) -> Callable[[Floats], Floats]:
    """For embeddings (N, D), what each mutator does there (N, mutators)."""
    from sklearn.decomposition import PCA  # type: ignore[import-untyped]
    from sklearn.linear_model import RidgeCV  # type: ignore[import-untyped]
    from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]

    embeddings = read.embeddings[rows]
    components = min(COMPONENTS, len(embeddings) - 1, embeddings.shape[1])
    model = make_pipeline(PCA(components, random_state=0), RidgeCV(PENALTIES))
    model.fit(embeddings, table[rows])
    return lambda asked: model.predict(asked).reshape(len(asked), -1)


def _harmful(sides: Sequence[Side], known: Rows, rest: Rows) -> Callable[[Floats], Floats]:
    """For embeddings (N, D), how likely each is of the guard's file (N,).

    It takes no call to know which file a query is from: others of the files are learned from, too.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

    if len(sides) == 1:
        return lambda asked: np.zeros(len(asked))
    rows, files = [], []
    for place, side in enumerate(sides):
        for read, may in ((side.queries, known[place]), (side.rest, rest[place])):
            if may.any():
                rows.append(read.embeddings[may])
                files += [place] * int(may.sum())
    weigh = LogisticRegression(C=0.01, class_weight="balanced", max_iter=1000)
    model = make_pipeline(StandardScaler(), weigh).fit(np.concatenate(rows), files)
    return lambda asked: np.asarray(model.predict_proba(asked)[:, 1])


def _folds(read: Read, seed: int) -> Ints:
    """(queries,): the fold of each, drawn by its group."""
    folds = [derive_seed(seed, "fold", group) % FOLDS for group in read.groups]
    return np.array(folds, np.int64)


def _interval(
    sides: Sequence[Side], gains: Sequence[Floats], most: float
) -> tuple[Interval, float]:
    """The gain over both sides, clustered by group, and the standard deviation behind it."""
    found = []
    for side, of_side in zip(sides, gains, strict=True):
        by_group: defaultdict[str, list[float]] = defaultdict(list)
        for group, gain in zip(side.queries.groups, of_side, strict=True):
            by_group[group].append(float(gain))
        found.append(mean_interval(by_group.values(), least=-most, most=most))
    deviation = math.hypot(*(float(each.std(ddof=1)) for each in gains))
    return difference_interval(*found), deviation


def _oracle(harmless: Side) -> float:
    """See `Headroom.oracle`."""
    tables = [harmless.success(time) for time in (0, 1)]
    counted = [
        other[np.arange(len(one)), one.argmax(axis=1)].mean()
        for one, other in (tables, tables[::-1])
    ]
    return float(np.mean(counted))


def says(found: Headroom, least: float, sides: Mapping[str, Side]) -> str:
    """The verdict in one line."""
    gain = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*found.gain)
    over = f"{gain} over the best fixed choice ({found.best_fixed!r} on all)"
    verdict = found.verdict(least)
    if verdict == "worth it":
        return f"worth a policy: one that reads the query gains {over}"
    if verdict == "not worth it":
        return (
            f"not worth a policy: one that reads the query gains {over}; {least:+.2f} is out of "
            "reach"
        )
    counts = " and ".join(f"{len(side.tries)} {name}" for name, side in sides.items())
    return (
        f"not known: one that reads the query gains {over}, and {counts} queries are too few to "
        f"tell; about {found.needed} of each side would be enough"
    )
