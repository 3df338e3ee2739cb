"""Every team of an evaluation against the baselines, paired by query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from scorers.comparison import Comparison, compare, holm
from scorers.power import queries_needed
from train.evaluation.rates import Entry, by_query, known

BASELINES = ("noop", "random", "best_fixed")
"""What every other team is compared with, where it played."""
MEASURES = ("success", "return")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A team and a baseline on one mission."""

    team: Entry
    baseline: Entry

    def values(self, measure: str) -> tuple[list[list[float]], list[list[float]]]:
        """Each query's scored trials, the team's and the baseline's, queries in the order of their texts."""
        a, b = (by_query(entry.scored(), measure) for entry in (self.team, self.baseline))
        queries = sorted({*a, *b})
        return [a.get(query, []) for query in queries], [b.get(query, []) for query in queries]

    def needed(self, difference: float) -> int | None:
        """Queries that show a true difference in success; None where two queries are not there to tell."""
        both = [(fmean(x), fmean(y)) for x, y in zip(*self.values("success"), strict=True) if x and y]
        if len(both) < 2:  # noqa: PLR2004 - a standard deviation takes two
            return None
        return queries_needed(difference, sd_of_differences=stdev(x - y for x, y in both))


def comparisons(
    results: Mapping[str, Any], rows: Sequence[Entry], power: float | None
) -> list[dict[str, Any]]:
    """All comparisons as plain data, p-values adjusted over all of them (Holm).

    Args:
        results: the evaluation.
        rows: the entries of whole teams.
        power: a difference in success, for which the queries that show it are counted; None: not asked.
    """
    pairs = list(_pairs(results, rows))
    made = [{measure: compare(*pair.values(measure)) for measure in MEASURES} for pair in pairs]
    adjusted = iter(holm([found[measure].p_value for found in made for measure in MEASURES]))
    told = []
    for pair, found in zip(pairs, made, strict=True):
        line: dict[str, Any] = {
            "mission": results["missions"][pair.team.mission]["name"],
            "team": results["teams"][pair.team.team]["name"],
            "against": results["teams"][pair.baseline.team]["name"],
            "queries": found["success"].queries,
            "left_out": found["success"].left_out,
        }
        line |= {measure: _told(found[measure], next(adjusted)) for measure in MEASURES}
        told.append(line if power is None else line | {"queries_needed": pair.needed(power)})
    return told


def _pairs(results: Mapping[str, Any], rows: Sequence[Entry]) -> Iterator[Pair]:
    """Every team with each baseline on every mission; of two baselines each pair once."""
    names = [team["name"] for team in results["teams"]]
    for row in rows:
        rank = BASELINES.index(names[row.team]) if names[row.team] in BASELINES else len(BASELINES)
        for baseline in BASELINES[:rank]:
            against = [
                other for other in rows if (other.mission, names[other.team]) == (row.mission, baseline)
            ]
            yield from (Pair(team=row, baseline=other) for other in against)


def _told(found: Comparison, adjusted: float) -> dict[str, Any]:
    return {
        "difference": known(found.difference),
        "low": known(found.low),
        "high": known(found.high),
        "p": found.p_value,
        "p_holm": adjusted,
        "test": found.test,
        "wins": found.wins,
        "losses": found.losses,
    }
