"""What the transitions of a run come to, window by window: rates, reward, mutators.

An episode belongs to the step in which it began, for those that end soonest end well, as in summary.json.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scorers.comparison import Comparison, compare
from scorers.statistics import known, mean_interval, rate_interval
from train.summary import ends_of, ends_overlap

WINDOWS = 40
"""Points of a learning curve at most."""
Episode = tuple[str, bool, float]
"""An original query, whether it was answered in the end, and the return."""
Cells = dict[tuple[str, str], list[int]]
"""By mutator and category, how many scored steps succeeded, and how many there were."""


@dataclass(kw_only=True)
class Span:
    """What happened in some rows of a training."""

    returns: tuple[float, float]
    """What the return of an episode can be, at least and at most."""
    steps: int = 0
    calls: int = 0
    """Questions to the target that were new, of scored steps: without a reply, none may have been asked."""
    unscored: int = 0
    refused: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    """By original query, how many of the scored steps were refused, and how many there were."""
    filtered: int = 0
    """Scored steps whose reply a content filter ended."""
    episodes: list[Episode] = field(default_factory=list)
    """Those that began here, and ended."""
    mutators: Counter[str] = field(default_factory=Counter)
    parts: Counter[str] = field(default_factory=Counter)

    @property
    def scored(self) -> int:
        """Steps that count."""
        return self.steps - self.unscored

    def add(self, other: Span) -> None:
        """Take in what happened in rows that follow."""
        self.steps += other.steps
        self.calls += other.calls
        self.unscored += other.unscored
        self.filtered += other.filtered
        self.episodes += other.episodes
        self.mutators.update(other.mutators)
        self.parts.update(other.parts)
        for query, (refused, scored) in other.refused.items():
            self.refused[query][0] += refused
            self.refused[query][1] += scored

    def successes(self) -> dict[str, list[float]]:
        """By original query, 1 for each episode that succeeded and 0 for each that did not."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for query, success, _ in self.episodes:
            found[query].append(float(success))
        return dict(found)

    def success_rate(self) -> Estimate:
        """Of the episodes."""
        return rate_of([(int(sum(each)), len(each)) for each in self.successes().values()])

    def refusal_rate(self) -> Estimate:
        """Of the scored steps."""
        return rate_of([(refused, scored) for refused, scored in self.refused.values()])

    def filtered_rate(self) -> Estimate:
        """Of the scored steps, without an interval."""
        return Estimate(self.filtered / self.scored if self.scored else None, None, None, self.scored)

    def unscored_rate(self) -> Estimate:
        """Of all steps, without an interval: failures come in bursts."""
        return Estimate(self.unscored / self.steps if self.steps else None, None, None, self.steps)

    def mean_return(self) -> Estimate:
        """Of the episodes."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for query, _, total in self.episodes:
            found[query].append(total)
        least, most = self.returns
        mean, low, high = mean_interval(found.values(), least=least, most=most)
        return Estimate(known(mean), known(low), known(high), len(self.episodes))


@dataclass(frozen=True)
class Estimate:
    """A rate or a mean with its interval; None where nothing is known."""

    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(kw_only=True)
class Training:
    """What the transitions of a training come to."""

    rows: list[Span]
    """One a row of all lanes; the last episodes, which may not have had the time to end, are left out."""
    successes: Cells
    returns: tuple[float, float]

    def windows(self, rollout: int) -> list[Span]:
        """The rows in windows of whole rollouts, 40 at most.

        Args:
            rollout: rows of a rollout.
        """
        rollouts = math.ceil(len(self.rows) / rollout)
        size = rollout * math.ceil(rollouts / WINDOWS) if rollouts else rollout
        return [self._joined(range(at, at + size)) for at in range(0, len(self.rows), size)]

    def ends(self, rollout: int, max_steps: int) -> tuple[Span, Span]:
        """What happened in the first and in the last rollouts, as in summary.json; see `overlap`.

        Args:
            rollout: rows of a rollout.
            max_steps: the step limit of an episode.
        """
        start, end = (
            replace(self._joined(end.steps), episodes=self._joined(end.episodes).episodes)
            for end in ends_of(len(self.rows), rollout, max_steps).values()
        )
        return start, end

    def overlap(self, rollout: int, max_steps: int) -> bool:
        """Whether both have steps in common."""
        return ends_overlap(len(self.rows), rollout, max_steps)

    def _joined(self, rows: range) -> Span:
        span = Span(returns=self.returns)
        for row in self.rows[rows.start : rows.stop]:
            span.add(row)
        return span


def count_training(
    transitions: Iterable[Mapping[str, Any]],
    categories: Mapping[str, str],
    max_steps: int,
    returns: tuple[float, float],
) -> Training:
    """Count the transitions of a training.

    Args:
        transitions: the lines of transitions.jsonl, row by row.
        categories: that of each original query that has one.
        max_steps: the step limit of an episode.
        returns: what the return of an episode can be, at least and at most.
    """
    rows: list[Span] = []
    successes: Cells = {}
    asked: set[str] = set()
    running: dict[int, tuple[int, float]] = {}
    for t in transitions:
        if t["row"] > len(rows):
            raise ValueError(f"row {t['row']} follows row {len(rows) - 1}")
        rows += [Span(returns=returns)] if t["row"] == len(rows) else []
        span = rows[t["row"]]
        began, total = running.get(t["lane"], (t["row"], 0.0))
        running[t["lane"]] = (began, total + t["reward"])
        count_step(span, t, asked)
        if t["unscored"]:
            if t["truncated"]:  # the episode is over without a result
                del running[t["lane"]]
            continue
        count_cell(successes, t, categories)
        if t["terminated"] or t["truncated"]:
            del running[t["lane"]]
            rows[began].episodes.append((t["original_query"], t["success"], total + t["reward"]))
    for span in rows[max(0, len(rows) - max_steps + 1) :]:
        span.episodes = []
    return Training(rows=rows, successes=successes, returns=returns)


def count_step(span: Span, t: Mapping[str, Any], asked: set[str]) -> None:
    """Count one step; `asked` has the questions that the target was asked before."""
    span.steps += 1
    if t["unscored"]:
        span.unscored += 1
        return
    question = t["mutated_query"] if t["adopted"] else t["query_before"]
    span.calls += question not in asked
    asked.add(question)
    counts = span.refused[t["original_query"]]
    counts[0] += t["outcome"] == "refused"
    counts[1] += 1
    span.filtered += t["outcome"] == "filtered"
    span.mutators[t["mutator"]] += 1
    span.parts.update(t["reward_parts"])


def count_cells(transitions: Iterable[Mapping[str, Any]], categories: Mapping[str, str]) -> Cells:
    """Count the scored transitions by mutator and category, but for guard queries: no answer is a success."""
    cells: Cells = {}
    for t in transitions:
        if not t["unscored"] and not t.get("guard"):
            count_cell(cells, t, categories)
    return cells


def count_cell(cells: Cells, t: Mapping[str, Any], categories: Mapping[str, str]) -> None:
    """Count one scored step."""
    counts = cells.setdefault((t["mutator"], categories.get(t["original_query"], "")), [0, 0])
    counts[0] += t["success"]
    counts[1] += 1


def rate_of(clusters: Sequence[tuple[int, int]]) -> Estimate:
    """A share of trials that come in clusters: of each how often it happened, and could have."""
    happened, n = (sum(counts[k] for counts in clusters) for k in (0, 1))
    _, low, high = rate_interval(clusters)
    return Estimate(happened / n if n else None, low, high, n)


def paired(start: Span, end: Span) -> Comparison:
    """The success of the last rollouts less that of the first, query by query."""
    before, after = start.successes(), end.successes()
    both = sorted({*before, *after})
    return compare([after.get(query, []) for query in both], [before.get(query, []) for query in both])
