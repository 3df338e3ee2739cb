"""Every team of an evaluation against the baselines, paired by query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scorers.comparison import Comparison, compare, holm
from scorers.power import queries_needed
from train.evaluation.rates import Entry, by_query, known

MEASURES = ("success", "return")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A team and a baseline on one mission."""

    team: Entry
    baseline: Entry

    def compare(self, measure: str) -> Comparison:
        """Over all queries that were played, those included that neither has a scored trial of."""
        both = (self.team, self.baseline)
        queries = sorted({episode["query"] for entry in both for episode in entry.episodes})
        a, b = (by_query(entry.scored(), measure) for entry in both)
        return compare([a.get(query, []) for query in queries], [b.get(query, []) for query in queries])


def comparisons(
    results: Mapping[str, Any], rows: Sequence[Entry], power: float | None
) -> list[dict[str, Any]]:
    """All comparisons as plain data, p-values adjusted over all of them (Holm).

    Of a pair without a query that both were scored on nothing is known, and its p-value is none of them.

    Args:
        results: the evaluation.
        rows: the entries of whole teams.
        power: a difference in success, for which the queries that show it are counted; None: not asked.
    """
    pairs = list(_pairs(results, rows))
    made = [{measure: pair.compare(measure) for measure in MEASURES} for pair in pairs]
    compared = [found[measure].p_value for found in made for measure in MEASURES if found[measure].queries]
    adjusted = iter(holm(compared))
    told = []
    for pair, found in zip(pairs, made, strict=True):
        line: dict[str, Any] = {
            "mission": results["missions"][pair.team.mission]["name"],
            "team": results["teams"][pair.team.team]["name"],
            "against": results["teams"][pair.baseline.team]["name"],
            "queries": found["success"].queries,
            "left_out": found["success"].left_out,
        }
        for measure, each in found.items():
            line[measure] = _told(each, next(adjusted) if each.queries else None)
        told.append(line if power is None else line | {"queries_needed": _needed(found["success"], power)})
    return told


def _pairs(results: Mapping[str, Any], rows: Sequence[Entry]) -> Iterator[Pair]:
    """Every team with each baseline on every mission, in their order; of two baselines each pair once."""
    places = [team["baseline"] for team in results["teams"]]
    baselines = sorted((place, team) for team, place in enumerate(places) if place is not None)
    played = {(row.mission, row.team): row for row in rows}
    for row in rows:
        rank = places[row.team]
        for place, team in baselines:
            if rank is None or place < rank:
                yield Pair(team=row, baseline=played[row.mission, team])


def _needed(found: Comparison, difference: float) -> int | None:
    """Queries that show a true difference in success; None where none differs, which tells nothing of it."""
    differing = found.wins + found.losses
    if found.queries < 2 or not differing:  # noqa: PLR2004 - a standard deviation takes two
        return None
    # No query differs by more than 1, so that a mean difference takes at least that share of them.
    share = max(differing / found.queries, difference)
    return queries_needed(difference, sd_of_differences=found.deviation, differing=share)


def _told(found: Comparison, adjusted: float | None) -> dict[str, Any]:
    is_known = adjusted is not None
    return {
        "difference": known(found.difference),
        "low": known(found.low) if is_known else None,
        "high": known(found.high) if is_known else None,
        "p": found.p_value if is_known else None,
        "p_holm": adjusted,
        "test": found.test,
        "wins": found.wins,
        "losses": found.losses,
    }
