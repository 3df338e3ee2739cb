"""What an evaluation says: rates, comparisons, transfer, counted from results.json alone.

The order of missions and teams changes the order of the rows and no number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search.wrappers.tracebacks import error_line
from train.evaluation.comparisons import comparisons
from train.evaluation.correction import corrected
from train.evaluation.rates import Entry, entries

if TYPE_CHECKING:
    from scorers.correction import LabelAccuracy

POWER = 0.8
"""How often a true difference is to be found, where the queries for it are counted."""
MOST_PROBLEMS = 3
"""Different errors that are told of each row."""
LONGEST_ERROR = 200
"""Characters of an error that are told; results.json has it whole."""


def report(
    results: Mapping[str, Any], *, power: float | None = None, accuracy: LabelAccuracy | None = None
) -> dict[str, Any]:
    """The report as plain data, which `train.evaluation.tables` shows.

    Args:
        results: what `mutagym eval` counted, see results.json.
        power: a difference in success, 0 to 1, for which to say how many queries show it.
        accuracy: how often the labels are right, for corrected rates beside the raw ones.
    """
    rows = list(entries(results))
    teams = [row for row in rows if row.member is None]
    return {
        "simulated": results["simulated"],
        "seed": results["seed"],
        "missions": results["missions"],
        "rates": [_rates(results, row, accuracy) for row in rows],
        "power": None if power is None else {"difference": power, "power": POWER},
        "comparisons": comparisons(results, teams, power),
        "transfer": _transfer(results, teams),
        "fits": [fit | {"mission": _mission(results, fit["mission"])} for fit in results["fits"]],
        "problems": [line for row in teams for line in _problems(results, row)],
    }


def _rates(results: Mapping[str, Any], row: Entry, accuracy: LabelAccuracy | None) -> dict[str, Any]:
    names = {
        "mission": _mission(results, row.mission),
        "team": results["teams"][row.team]["name"],
        "policy": row.member,
    }
    return names | row.table() | (corrected(row, accuracy) if accuracy else {})


def _transfer(results: Mapping[str, Any], rows: Sequence[Entry]) -> list[dict[str, Any]]:
    """Each trained policy's success on each mission; empty where all missions have one target."""
    missions = results["missions"]
    if len({mission["target_model"] for mission in missions}) < 2:  # noqa: PLR2004 - one target is no transfer
        return []
    return [
        {
            "team": team["name"],
            "trained_on": team["trained_on"],
            "success": [
                {
                    "mission": missions[row.mission]["name"],
                    "target_model": missions[row.mission]["target_model"],
                    **row.table()["success"],
                }
                for row in rows
                if row.team == place
            ],
        }
        for place, team in enumerate(results["teams"])
        if team["trained_on"] is not None
    ]


def _problems(results: Mapping[str, Any], row: Entry) -> Iterator[str]:
    """What went wrong, the commonest first, each with how often."""
    where = f"{_mission(results, row.mission)}, {results['teams'][row.team]['name']}"
    failed = Counter(error_line(e["error"]) for e in row.episodes if e["status"] == "failed")
    unscored = Counter(
        error for _, agent in row.finished() if agent["status"] == "unscored" for error in agent["errors"][:1]
    )
    for kind, errors in (("failed", failed), ("unscored", unscored)):
        for error, count in errors.most_common(MOST_PROBLEMS):
            yield f"{kind}: {where}: {count} x {error[:LONGEST_ERROR]}"


def _mission(results: Mapping[str, Any], number: int) -> str:
    name: str = results["missions"][number]["name"]
    return name
