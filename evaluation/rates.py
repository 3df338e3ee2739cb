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
from typing import Any

from scorers.statistics import Interval, Sums, known, ratio_interval

EpisodeRow = Mapping[str, Any]
"""A row of `episodes` in results.json."""
Trial = Callable[[EpisodeRow], tuple[float, int]]
"""Of an episode the sum of some values, and their number: 0 leaves it out. For a rate that is how
often something happened, and how often it could have."""
CALLS = ("choices", "rewrites", "questions", "verdicts")
"""What was asked for: of a policy that is a model, of the mutator, of the target, of judges."""
REFUSED = ("refused", "partial")
"""The outcomes of a step that are refusals."""


def scored(name: str) -> Trial:
    """What a scored episode has under a name."""
    return lambda episode: (episode[name], 1) if episode["status"] == "scored" else (0, 0)


def _of_status(status: str) -> Trial:
    return lambda episode: (int(episode["status"] == status), 1)


def _of_steps(*outcomes: str) -> Trial:
    """How many steps of a scored episode came out as one of these."""

    def trial(episode: EpisodeRow) -> tuple[int, int]:
        steps = episode["outcomes"] if episode["status"] == "scored" else []
        steps = [outcome for outcome in steps if outcome != "stopped"]
        return sum(outcome in outcomes for outcome in steps), len(steps)

    return trial


def opened(episode: EpisodeRow) -> tuple[int, int]:
    """Whether a query was answered in the end that got no answer as it stands; a `Trial`."""
    is_of_these = episode["status"] == "scored" and episode.get("look") not in {None, "answered"}
    return (int(episode["success"]), 1) if is_of_these else (0, 0)


STEP_RATES: Mapping[str, Trial] = {
    "refusal": _of_steps(*REFUSED),
    **{name: _of_steps(name) for name in ("partial", "undetermined", "filtered", "wrong")},
}
RATES: Mapping[str, Trial] = {
    "success": scored("success"),
    "opened": opened,
    **STEP_RATES,
    **{status: _of_status(status) for status in ("unscored", "failed")},
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The episodes that one row of the tables is about."""

    mission: Mapping[str, Any]
    """As results.json has it."""
    team: Mapping[str, Any]
    """Likewise; of the seeds of one training the first."""
    member: str | None
    """The policy of a mixed team, or the seed of a training, that the row is about; None: all."""
    by_seed: Sequence[Sequence[EpisodeRow]]
    """The episodes of each seed of one training; most entries have one list."""
    is_seed: bool = False
    """Whether it is one seed of several."""

    @property
    def name(self) -> str:
        """What the team is called; the seeds of one training by its name."""
        name: str = self.team.get("seeds_of") or self.team["name"]
        return name

    @property
    def title(self) -> str:
        """What the row is called."""
        return self.member or self.name

    @property
    def episodes(self) -> list[EpisodeRow]:
        """Those of all seeds."""
        return [episode for of_seed in self.by_seed for episode in of_seed]

    def rate(self, trial: Trial, most: int = 1) -> dict[str, Any]:
        """A rate over the trials of all seeds, at most so many of an episode.

        With two to four seeds it has no interval.
        """
        episodes = max(n for seed in self.sums(lambda _: (0, 1)) for _, n in seed)
        return _rate(self.sums(trial), most * episodes)

    @property
    def questions(self) -> int:
        """How many an episode asks at most."""
        most: int = self.mission["max_steps"] + self.mission.get("asks_first", False)
        return most

    def rate_of(self, name: str) -> dict[str, Any]:
        """One of `RATES` by its name."""
        return self.rate(RATES[name], self.questions if name in STEP_RATES else 1)

    def mean_return(self) -> dict[str, Any]:
        """The mean of the returns, likewise."""
        sums, (least, most) = self.sums(scored("return")), self.mission["returns"]
        return ends("mean", ratio_interval(sums, least=least, most=most)) | _sizes(sums)

    def sums(self, trial: Trial) -> list[Sums]:
        """(seeds, queries); the queries in the order of the episodes, which all seeds share."""
        return [_clusters((e["query"], *trial(e)) for e in each) for each in self.by_seed]


def episodes_by_team(results: Mapping[str, Any]) -> Mapping[tuple[int, int], list[EpisodeRow]]:
    """The episodes of results.json by the numbers of their mission and their team."""
    found: defaultdict[tuple[int, int], list[EpisodeRow]] = defaultdict(list)
    for episode in results["episodes"]:
        found[episode["mission"], episode["team"]].append(episode)
    return found


def entries(results: Mapping[str, Any], *, guard: bool = False) -> Iterator[Entry]:
    """The entries of results.json: each team, below a mixed one each policy of it, or each seed.

    They are of all missions but those of guard queries, or with `guard` of these alone.
    """
    teams, episodes = results["teams"], episodes_by_team(results)
    trainings: defaultdict[object, list[int]] = defaultdict(list)
    for number, team in enumerate(teams):
        trainings[team.get("seeds_of") or number].append(number)
    for place, mission in enumerate(results["missions"]):
        for seeds in trainings.values() if bool(mission["guard"]) == guard else ():
            by_seed = [episodes[place, seed] for seed in seeds]
            whole = Entry(mission=mission, team=teams[seeds[0]], member=None, by_seed=by_seed)
            yield whole
            for seed, of_seed in zip(seeds, by_seed, strict=True):
                members = list(dict.fromkeys(teams[seed]["members"]))
                if len(members) == len(seeds) == 1:
                    continue  # it would be the whole again
                for member in members:
                    own = [episode for episode in of_seed if episode["policy"] == member]
                    row = replace(whole, team=teams[seed], member=member, by_seed=[own])
                    yield replace(row, is_seed=len(seeds) > 1)


def ends(name: str, found: Interval | None) -> dict[str, float | None]:
    """A value under its name, and its interval; None where nothing is known."""
    values = map(known, found) if found else (None, None, None)
    return dict(zip((name, "low", "high"), values, strict=True))


def rate(trials: Iterable[tuple[str, float, int]]) -> dict[str, Any]:
    """A rate over trials with its 95 % interval, clustered by query; None without trials.

    Args:
        trials: (query, how often it happened, how often it could have) of each.
    """
    return _rate([_clusters(trials)])


def _rate(seeds: Sequence[Sums], size: int | None = None) -> dict[str, Any]:
    count = int(sum(happened for seed in seeds for happened, _ in seed))
    return ends("rate", ratio_interval(seeds, size=size)) | {"count": count} | _sizes(seeds)


def _sizes(seeds: Sequence[Sums]) -> dict[str, int]:
    sizes = [sum(n for _, n in query) for query in zip(*seeds, strict=True)]
    return {"n": sum(sizes), "queries": sum(map(bool, sizes))}


def _clusters(trials: Iterable[tuple[str, float, int]]) -> Sums:
    found: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    for query, value, n in trials:
        found[query].append((value, n))
    return [(math.fsum(v for v, _ in each), sum(n for _, n in each)) for each in found.values()]
