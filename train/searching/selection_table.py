"""The table of `mutagym select`: a row for each combination, and what may be said of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from train.tables import new_table, number, with_interval

if TYPE_CHECKING:
    from rich.table import Table

SAYS = (
    "Score: the mean over n datapoints, an error counting as 0, with an interval that holds at any time, so "
    "also where the search stopped. Seconds and tokens, and price in the currency of --price, are of one "
    "datapoint. The one that is named, marked *, has the highest lower bound among those that the search did "
    "not rule out. Verdicts are of these datapoints, on which two combinations are compared one by one; "
    "intervals are of all datapoints there might be, so that of one that is ruled out may overlap the best's."
)


def table_of(report: Mapping[str, Any]) -> Table:
    """The combinations, the one that is named first."""
    rows = report["combinations"]
    names = list(rows[0]["combination"])
    title = (
        f"{report['selector']} on {report['dataset']}: {report['evaluations']} evaluations, "
        f"{100 * report['savings']:.0f} % less than brute force"
    )
    prices = ("price",) if any(row["price"] is not None for row in rows) else ()
    numbers = ("score", "seconds", "tokens", *prices, "n", "errors")
    table = new_table(title, "", *names, "verdict", *numbers, names=2 + len(names))
    for row in rows:
        seen = row["datapoints"]
        table.add_row(
            "*" if row["is_best"] else "",
            *row["combination"].values(),
            row["verdict"],
            with_interval(row, "score", "{:.3f}"),
            number(row["latency_s"] if seen else None, "{:.2f}"),
            number(row["prompt_tokens"] + row["completion_tokens"] if seen else None, "{:.0f}"),
            *[number(row[price] if seen else None, "{:.6f}") for price in prices],
            str(seen),
            str(row["errors"]),
        )
    return table


def problems_of(report: Mapping[str, Any]) -> list[str]:
    """What went wrong, a line for each combination."""
    return [
        f"errors: {' '.join(map(str, row['combination'].values()))}: {row['errors']} of {row['datapoints']}, "
        f"first {row['first_error']}"
        for row in report["combinations"]
        if row["errors"]
    ]
