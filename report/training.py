"""What the transitions of a training come to: its two ends, and windows of it for the curves.

An episode belongs to the row in which it began, for those that end soonest end well, as in
summary.json.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from report.charts import Chart, Row, curves, shares
from report.table import Table, with_interval
from scorers.statistics import known, mean_interval
from train.summary import Span, ends_of, ends_overlap

WINDOWS = 40
"""Points of a learning curve at most."""
AXES = ("env steps", "target calls")
SUCCESS, RETURN = "Success, % of episodes", "Return of an episode"
UNLOCKED = "Unlocked, % of episodes with a guard query"
REFUSED, FILTERED = "Refusals, % of scored steps", "Ended by a content filter, % of scored steps"
UNSCORED = "Unscored, % of steps"
OUTCOMES = {REFUSED: "refused", FILTERED: "filtered"}
"""Measures that count an outcome of replies."""
CURVES = (SUCCESS, UNLOCKED, REFUSED, RETURN, UNSCORED)
OF_EPISODES = frozenset({SUCCESS, UNLOCKED, RETURN})
MEASURES = (*CURVES, FILTERED)
RARE = frozenset({UNLOCKED, FILTERED})
"""Measures that many trainings have no trial of."""
SHARES = tuple(name for name in MEASURES if name != RETURN)


class Training:
    """Counts the transitions of a training.

    Args:
        rollout: rows of a rollout.
        max_steps: the step limit of an episode.
        returns: what the return of an episode can be, at least and at most.
    """

    def __init__(self, *, rollout: int, max_steps: int, returns: tuple[float, float]) -> None:
        self._rollout, self._max_steps, self._returns = rollout, max_steps, returns
        self._rows = 0
        # By measure and row the query and the value of each trial; by row what is counted of steps.
        self._trials: defaultdict[tuple[str, int], list[tuple[str, float]]] = defaultdict(list)
        self._mutators: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._parts: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._calls: Counter[int] = Counter()
        self._looks = 0
        self._asked: set[int] = set()
        self._running: dict[int, tuple[int, float]] = {}

    def add_look(self, t: Mapping[str, Any]) -> None:
        """Count a line of screen.jsonl: a call before the first rollout."""
        if not t["unscored"]:
            self._looks += 1
            self._asked.add(hash(t["original_query"]))

    def add(self, t: Mapping[str, Any]) -> None:
        """Count the next line of transitions.jsonl."""
        row, outcome, ended = t["row"], t["outcome"], t["terminated"] or t["truncated"]
        self._rows = row + 1
        began, total = self._running.pop(t["lane"], (row, 0.0))
        total += t["reward"]
        if not ended:
            self._running[t["lane"]] = began, total
        trials = [(UNSCORED, row, t["unscored"])]
        if not t["unscored"]:
            if ended:
                trials += [(RETURN, began, total)]
                trials += [(UNLOCKED if t["guard"] else SUCCESS, began, t["success"])]
            self._mutators[row][t["mutator"]] += 1
            if outcome != "stopped":  # else nothing was asked
                found = {} if t["guard"] else OUTCOMES
                trials += [(name, row, outcome == each) for name, each in found.items()]
                self._parts[row].update({} if t["guard"] else t["reward_parts"])
                question = hash(t["mutated_query"] if t["adopted"] else t["query_before"])
                self._calls[row] += question not in self._asked
                self._asked.add(question)
        for measure, at, value in trials:
            self._trials[measure, at].append((sys.intern(t["original_query"]), float(value)))

    def windows(self) -> Iterator[tuple[list[int], Span]]:
        """Windows of whole rollouts, `WINDOWS` at most, each with its place on `AXES`."""
        size = self._rollout * max(1, math.ceil(self._rows / self._rollout / WINDOWS))
        last = self._rows - self._max_steps + 1  # one that began later may not have had the time
        steps, calls = 0, self._looks
        for at in range(0, self._rows, size):
            rows = range(at, at + size)
            steps += sum(len(self._trials[UNSCORED, row]) for row in rows)
            calls += sum(self._calls[row] for row in rows)
            yield [steps, calls], Span(rows, range(at, min(at + size, last)))

    def values(self, measure: str, window: Span) -> dict[str, list[float]]:
        """By query, the values of its trials."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for row in window.episodes if measure in OF_EPISODES else window.steps:
            for query, value in self._trials[measure, row]:
                found[query].append(value)
        return dict(found)

    def measured(self, measure: str, window: Span) -> dict[str, Any]:
        """The `mean`, `low` and `high` of its interval, None where nothing is known; and `n`."""
        values = self.values(measure, window).values()
        least, most = self._returns if measure == RETURN else (0.0, 1.0)
        found = mean_interval(values, least=least, most=most)
        if measure == UNSCORED:  # failures come in bursts
            found = found._replace(low=math.nan, high=math.nan)
        ends = {name: known(value) for name, value in found._asdict().items()}
        return {**ends, "n": sum(map(len, values))}

    def curve(self, name: str) -> list[Row]:
        """The rows of its learning curves, see `charts.curves`; `name` is that of the series."""
        rows: list[Row] = []
        for place, window in self.windows():
            for measure in CURVES:
                found = self.measured(measure, window)
                if found["n"] or measure not in RARE:
                    ends = found["mean"], found["low"], found["high"]
                    rows.append([measure, name, *place, *ends])
        return rows

    def tables(self) -> Iterator[Table]:
        """How it began and ended, as in summary.json."""
        ends = ends_of(self._rows, self._rollout, self._max_steps).values()
        overlap = ends_overlap(self._rows, self._rollout, self._max_steps)
        both = "The training is too short to have two ends: they have steps in common. "
        happened = {
            measure
            for (measure, _), trials in self._trials.items()
            if any(value for _, value in trials) or measure == UNLOCKED
        }
        rows = []
        for measure in MEASURES:
            found = [self.measured(measure, end) for end in ends]
            times = 1 if measure == RETURN else 100
            cells = [(with_interval(each, "mean", times), str(each["n"])) for each in found]
            if measure not in RARE or measure in happened:
                rows.append([measure, *cells[0], *cells[1]])
        yield Table(
            caption="First and last rollouts",
            columns=("measure", "first rollouts", "n", "last rollouts", "n"),
            rows=rows,
            says=f"{both if overlap else ''}With 95 % intervals that allow for trials of one query "
            "being alike. The policy explores while it learns: what it has learned is for mutagym "
            "eval to say, on held-out queries.",
        )

    def charts(self) -> Iterator[Chart]:
        """Which mutators it chose, and the reward's parts, as it went on."""
        points: list[tuple[Row, Counter[str], Counter[str]]] = []
        for place, window in self.windows():
            mutators, parts = Counter[str](), Counter[str]()
            for row in window.steps:
                mutators.update(self._mutators[row])
                parts.update(self._parts[row])
            points.append((place, mutators, parts))
        yield shares(
            "Mutators over time",
            [(place, mutators) for place, mutators, _ in points],
            kind="areas",
            columns=AXES,
            says="The share of the scored steps in which the policy chose each mutator.",
        )
        rows: list[Row] = [
            [name, name, *place, round(parts[name] / mutators.total(), 6), None, None]
            for name in sorted({name for *_, parts in points for name in parts})
            for place, mutators, parts in points
            if mutators
        ]
        says = "The mean of each part over the scored steps, those on guard queries left out."
        yield curves("The reward's parts", rows, axes=AXES, says=says)
