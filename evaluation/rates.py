"""What rates and means are counted from: agents' episodes, clustered by query.

An episode here is a row of results.json: what one agent made of one query. It is scored, unscored
(a step failed in every attempt) or failed (its policy raised). Rates of steps, returns and the use
of mutators are of scored ones alone; the two others are counted apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from scorers.statistics import Interval, known, rate_interval, ratio_interval

Episode = Mapping[str, Any]
"""A row of `episodes` in results.json."""
Trial = Callable[[Episode], tuple[int, int]]
"""Of an episode, how often something happened, and how often it could have."""
Value = Callable[[Episode], float | None]
"""A value of an episode; None leaves it out."""
Counts = list[tuple[int, int]]
"""Of each query, how often something happened, and how often it could have."""
REFUSED = ("refused", "partial")
"""The outcomes of a step that are refusals."""


def of_success(episode: Episode) -> tuple[int, int]:
    """Whether a scored episode succeeded."""
    return (int(episode["success"]), 1) if episode["status"] == "scored" else (0, 0)


def of_status(status: str) -> Trial:
    """Whether an episode has this status."""
    return lambda episode: (int(episode["status"] == status), 1)


def of_steps(*outcomes: str) -> Trial:
    """How many steps of a scored episode came out as one of these."""

    def trial(episode: Episode) -> tuple[int, int]:
        steps = episode["outcomes"] if episode["status"] == "scored" else []
        return sum(outcome in outcomes for outcome in steps), len(steps)

    return trial


STEP_RATES: Mapping[str, Trial] = {
    "refusal": of_steps(*REFUSED),
    **{outcome: of_steps(outcome) for outcome in ("partial", "undetermined", "filtered", "wrong")},
}
RATES: Mapping[str, Trial] = {
    "success": of_success,
    **STEP_RATES,
    **{status: of_status(status) for status in ("unscored", "failed")},
}


def scored(name: str) -> Value:
    """What a scored episode has under a name; None for others."""
    return lambda episode: float(episode[name]) if episode["status"] == "scored" else None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The episodes that one row of the tables is about."""

    mission: Mapping[str, Any]
    """As results.json has it."""
    team: Mapping[str, Any]
    """Likewise; of the seeds of one training the first."""
    member: str | None
    """The policy of a mixed team, or the seed of a training, that the row is about; None: all."""
    by_seed: Sequence[Sequence[Episode]]
    """The episodes of each seed of one training; most entries have one list."""
    is_seed: bool = False
    """Whether it is one seed of several."""

    @property
    def name(self) -> str:
        """What the team is called; the seeds of one training by its name."""
        name: str = self.team.get("seeds_of") or self.team["name"]
        return name

    @property
    def episodes(self) -> list[Episode]:
        """Those of all seeds."""
        return list(chain.from_iterable(self.by_seed))

    def rate(self, trial: Trial, most: int = 1) -> dict[str, Any]:
        """A rate over the trials of all seeds; with two to four of them it has no interval.

        Args:
            trial: what is counted of each episode.
            most: trials of an episode at most.
        """
        seeds = self.counts(trial)
        episodes = max(n for seed in self.counts(lambda _: (0, 1)) for _, n in seed)
        pooled = [tuple(map(sum, zip(*query, strict=True))) for query in zip(*seeds, strict=True)]
        return _rate(pooled, ratio_interval(seeds, size=most * episodes))

    def rate_of(self, name: str) -> dict[str, Any]:
        """One of `RATES` by its name."""
        most = self.mission["max_steps"] if name in STEP_RATES else 1
        return self.rate(RATES[name], most)

    def mean_return(self) -> dict[str, Any]:
        """The mean of the returns, likewise."""
        sums, (least, most) = self.sums(scored("return")), self.mission["returns"]
        mean, low, high = map(known, ratio_interval(sums, least=least, most=most))
        by_query = [sum(n for _, n in query) for query in zip(*sums, strict=True)]
        n, queries = sum(by_query), sum(map(bool, by_query))
        return {"mean": mean, "low": low, "high": high, "n": n, "queries": queries}

    def counts(self, trial: Trial) -> list[Counts]:
        """(seeds, queries); the queries in the order of the episodes, which all seeds share."""
        return [_clusters((e["query"], *trial(e)) for e in each) for each in self.by_seed]

    def sums(self, value: Value) -> list[list[tuple[float, int]]]:
        """(seeds, queries), the sum of a query's values and their number."""
        return [[(math.fsum(each), len(each)) for each in seed] for seed in self.values(value)]

    def values(self, value: Value) -> list[list[list[float]]]:
        """(seeds, queries, trials), the queries as in `counts`; one may have no trial."""
        seeds = []
        for episodes in self.by_seed:
            by_query: defaultdict[str, list[float]] = defaultdict(list)
            for episode in episodes:
                found = value(episode)
                by_query[episode["query"]] += [] if found is None else [found]
            seeds.append(list(by_query.values()))
        return seeds


def episodes_by_team(results: Mapping[str, Any]) -> Mapping[tuple[int, int], list[Episode]]:
    """The episodes of results.json by the numbers of their mission and their team."""
    found: defaultdict[tuple[int, int], list[Episode]] = defaultdict(list)
    for episode in results["episodes"]:
        found[episode["mission"], episode["team"]].append(episode)
    return found


def entries(results: Mapping[str, Any], *, guard: bool = False) -> Iterator[Entry]:
    """The entries of all missions: each team, below a mixed one each policy of it, or each seed.

    Args:
        results: the evaluation, as results.json has it.
        guard: those of guard missions, in place of the others.
    """
    teams, episodes = results["teams"], episodes_by_team(results)
    trainings: defaultdict[object, list[int]] = defaultdict(list)
    for number, team in enumerate(teams):
        trainings[team.get("seeds_of") or number].append(number)
    for place, mission in enumerate(results["missions"]):
        for seeds in trainings.values() if mission["guard"] == guard else ():
            by_seed = [episodes[place, seed] for seed in seeds]
            whole = Entry(mission=mission, team=teams[seeds[0]], member=None, by_seed=by_seed)
            yield whole
            for seed, of_seed in zip(seeds, by_seed, strict=True):
                members = list(dict.fromkeys(teams[seed]["members"]))
                for member in members if len(members) > 1 or len(seeds) > 1 else []:
                    own = [episode for episode in of_seed if episode["policy"] == member]
                    row = replace(whole, team=teams[seed], member=member, by_seed=[own])
                    yield replace(row, is_seed=len(seeds) > 1)


def rate(trials: Iterable[tuple[str, int, int]]) -> dict[str, Any]:
    """A rate over trials with its 95 % interval, clustered by query; None without trials.

    Args:
        trials: (query, how often it happened, how often it could have) of each.
    """
    counts = _clusters(trials)
    return _rate(counts, rate_interval(counts))


def _rate(counts: Iterable[tuple[int, ...]], found: Interval) -> dict[str, Any]:
    filled = [(happened, n) for happened, n in counts if n]
    happened, n = sum(k for k, _ in filled), sum(n for _, n in filled)
    ends = {"rate": share(happened, n), "low": known(found.low), "high": known(found.high)}
    return ends | {"count": happened, "n": n, "queries": len(filled)}


def _clusters(trials: Iterable[tuple[str, int, int]]) -> Counts:
    found: dict[str, tuple[int, int]] = {}
    for query, happened, n in trials:
        before, of = found.get(query, (0, 0))
        found[query] = before + happened, of + n
    return list(found.values())


def share(part: float, whole: float) -> float | None:
    """None where there is nothing to take a share of."""
    return part / whole if whole else None
