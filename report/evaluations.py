"""The tables of an evaluation's report, for the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from report.tables import NONE, PageTable, number, p_value, told

MOST_MUTATORS = 5
"""Mutators that the table of their use names for each policy."""
MOST_IN_ORDER = 6
"""Mutators of a cascade that are named."""
Row = Mapping[str, Any]
Cell = Callable[[Row], str]
"""What a table says of a row of the report."""

RATES = (
    "Success: of agents' episodes. Refused: of scored steps. Return: mean of an episode. In brackets 95 % "
    "intervals that hold for any number of queries; trials of one query are not independent. What is "
    "unscored or failed is in no rate."
)
SEEDS = (
    " Of a training of several seeds: of all together, and below of each, whose intervals and tests speak of "
    "that one network. Those of all hold what other seeds would come to; under five seeds there is none."
)
ONE_SEED = (
    " {names}: the network of one seed; what another seed would have come to is in no interval (train with "
    "--seeds)."
)
COSTS = (
    "Calls: all that were made, those answered from the cache included; an answer: calls over episodes that "
    "succeeded. Unscored: episodes with a step that failed in every attempt; failed: the policy raised. "
    "Failed steps: those of which an attempt failed, which is made again as it was. Failed calls: these "
    "attempts."
)
REPEATS = (
    "Of the queries that an agent played {repeats} times, the share that it answered each time, and at least "
    "once, with 95 % intervals clustered by query."
)
COMPARISONS = (
    "Success on the same queries, the policy less the other, in points, with a paired 95 % interval over the "
    "queries. p: a test of no difference, at most .05 where the interval leaves 0 out; McNemar's where each "
    "query was played once. Holm: p adjusted for all that are shown, so that under .05 it is seldom chance, "
    "however many are compared. Won, lost: queries in which the policy did better, and worse."
)
NEEDED = (
    " Needed: held-out queries that show a true difference of {difference:g} points at p < .05 with a power "
    "of {power:g} %, if queries differ as they did here; none where none differed, which tells nothing of it."
)
DIFFERENCES = (
    "Of the mean return and of the calls for an answer, the policy less the other, with paired 95 % "
    "intervals. What both spend on queries they do not answer is in the calls for an answer."
)
GUARD = (
    "Guard queries ought to be refused. Kept: of those that the target refuses as they stand, the share that "
    "no agent had answered in a whole episode, with its exact 95 % interval. Partly: kept with a partial "
    "refusal; other: with an answer to another question. Undetermined and unscored queries are in no share. "
    "Gained: success on the other queries less that of noop, in points. Verdict: kept, shown to unlock at "
    "most {margin:g} %; lost, shown to unlock more; not shown, neither: it takes {needed} queries that the "
    "target refuses to show it where none is unlocked. Exit code 4: a policy of -p (marked *) is not kept."
)
GATES = (
    "Gates of --fail-under and --fail-over: the lower end of the 95 % interval decides, or the upper one. "
    "Against: of n, what is unscored, failed, or had a failed step, and is counted against the gate. "
    "Without: whether it would be met without these. Exit code 4: one is not met."
)
CORRECTED = (
    "Corrected for the judge's errors as measured on a labelled sample (Rogan and Gladen 1978), with 95 % "
    "intervals that carry how well these are known. Success: episodes that ended with a true answer, so "
    "without those whose last reply was a refusal taken for an answer."
)
MUTATORS = "Shares of scored steps. Drifted: rewrites that were not adopted because they lost the intent."
FITS = (
    "Fitted on the training queries alone, then frozen; calls are questions to the target. Mutator: the one "
    "that is played from then on, or the order in which they are tried; by query: it looks at each. It "
    "brought: the mean return of an episode of this mutator alone, or the share of its single steps that "
    "succeeded."
)


def evaluation_tables(report: Row) -> Iterator[PageTable]:
    """All tables of a report; the last one of a kind says what its numbers are."""
    missions = {mission["name"]: mission for mission in report["missions"] if not mission["guard"]}
    rates, comparisons, guard = report["rates"], report["comparisons"], report["guard"]
    several = SEEDS if report["several_seeds"] else ""
    one = ONE_SEED.format(names=", ".join(report["one_seed"])) if report["one_seed"] else ""
    yield from _by_mission(_rates, missions, rates, RATES + several + one)
    yield from _by_mission(_costs, missions, rates, COSTS)
    if report["repeats"] > 1:
        says = REPEATS.format(repeats=report["repeats"])
        yield from _by_mission(_repeats, missions, rates, says)
    power = {name: 100 * share for name, share in (report["power"] or {}).items()}
    needed = NEEDED.format(**power) if power else ""
    yield from _by_mission(_comparisons, missions, comparisons, COMPARISONS + needed)
    yield from _by_mission(_differences, missions, comparisons, DIFFERENCES)
    if guard:
        stands = {stand["mission"]: stand for stand in guard["as_they_stand"]}
        says = GUARD.format(margin=100 * guard["margin"], needed=guard["needed"])
        yield from _by_mission(_guard, stands, guard["policies"], says)
    yield _gates(report.get("gates", []))
    yield _corrected([row for row in rates if "refusal_corrected" in row])
    yield _mutators(rates)
    yield _fits(report["fits"])


def _by_mission(
    make: Callable[[Row, Sequence[Row]], PageTable],
    missions: Mapping[str, Row],
    rows: Sequence[Row],
    says: str,
) -> Iterator[PageTable]:
    """A table for each mission, made of what is known of it and of its rows."""
    tables = [make(each, [r for r in rows if r["mission"] == name]) for name, each in missions.items()]
    yield from tables[:-1]
    yield replace(tables[-1], says=says)


def _table(
    caption: str, rows: Iterable[Row], columns: Mapping[str, Cell], *, names: int = 1, says: str = ""
) -> PageTable:
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    return PageTable(caption=caption, columns=list(columns), rows=cells, names=names, says=says)


def _name(row: Row) -> str:
    """The team, or of a row below it the policy or the seed."""
    return str(row["team"]) if row["policy"] is None else f"\N{MIDDLE DOT} {row['policy']}"


def _text(key: str) -> Cell:
    return lambda row: str(row[key])


def _percent(key: str) -> Cell:
    """A rate and its interval, in %."""
    return lambda row: told(row[key], "rate", 100)


def _share(key: str) -> Cell:
    """A rate in %."""
    return lambda row: number(row[key]["rate"], 100)


def _difference(key: str, times: float, digits: int | None = None) -> Cell:
    return lambda row: told(row[key], "difference", times, digits=digits, sign=True)


def _rates(mission: Row, rows: Sequence[Row]) -> PageTable:
    held_out = "held-out" if mission["split"] == "held-out" else "TRAINING"
    rare = {"partial": "partly %", "undetermined": "undetermined %", "filtered": "filtered %"}
    rare["wrong"] = "wrong %"
    shown = {name: key for key, name in rare.items() if any(row[key]["count"] for row in rows)}
    return _table(
        f"{mission['name']}: target {mission['target_model']}, reward {mission['reward']}, "
        f"{mission['queries']} {held_out} queries, {mission['question']}",
        rows,
        {
            "policy": _name,
            "success %": _percent("success"),
            "refused %": _percent("refusal"),
            **{name: _share(key) for name, key in shown.items()},
            "return": lambda row: told(row["return"], "mean", 1),
        },
    )


def _costs(mission: Row, rows: Sequence[Row]) -> PageTable:
    columns: Mapping[str, Cell] = {
        "policy": _name,
        "calls": lambda row: str(row["calls"]["total"]),
        "an answer": lambda row: number(row["calls"]["per_answer"], 1),
        "unscored": lambda row: "{count}/{n}".format(**row["unscored"]),
        "failed": lambda row: "{count}/{n}".format(**row["failed"]),
        "failed steps": _text("failed_steps"),
        "failed calls": _text("failed_calls"),
    }
    return _table(f"{mission['name']}: calls and failures", rows, columns)


def _repeats(mission: Row, rows: Sequence[Row]) -> PageTable:
    columns: Mapping[str, Cell] = {
        "policy": _name,
        "answered in all %": _percent("answered_in_all"),
        "in any %": _percent("answered_in_any"),
        "n": lambda row: str(row["answered_in_all"]["n"]),
    }
    return _table(f"{mission['name']}: all plays of a query", rows, columns)


def _comparisons(mission: Row, rows: Sequence[Row]) -> PageTable:
    columns: dict[str, Cell] = {
        "policy": _name,
        "against": _text("against"),
        "success, points": _difference("success", 100),
        "p": lambda row: p_value(row["success"]["p"]),
        "Holm": lambda row: p_value(row["success"]["p_holm"]),
        "won, lost": lambda row: "{wins}, {losses}".format(**row["success"]),
        "n": _text("queries"),
    }
    if any("queries_needed" in row for row in rows):
        columns["needed"] = lambda row: number(row["queries_needed"], 1, 0)
    caption = f"{mission['name']}: paired comparisons, {mission['question']}"
    return _table(caption, rows, columns, names=2)


def _differences(mission: Row, rows: Sequence[Row]) -> PageTable:
    columns = {
        "policy": _name,
        "against": _text("against"),
        "return": _difference("return", 1),
        "calls an answer": _difference("calls_per_answer", 1, digits=1),
        "n": _text("queries"),
    }
    caption = f"{mission['name']}: paired differences in return and calls"
    return _table(caption, rows, columns, names=2)


def _guard(stand: Row, rows: Sequence[Row]) -> PageTable:
    more = (f", {stand[name]} {name}" for name in ("undetermined", "filtered") if stand[name])
    return _table(
        f"{stand['mission']}: {stand['queries']} queries, as they stand {stand['refused']} refused "
        f"({stand['partial']} partly), {stand['unscored']} unscored{''.join(more)}",
        rows,
        {
            "policy": lambda row: row["team"] + ("*" if row["asked"] else ""),
            "kept %": _percent("kept"),
            "partly": _text("partial"),
            "other": _text("answered_other"),
            "unlocked": _text("unlocked"),
            "undet.": _text("undetermined"),
            "unscored": _text("unscored"),
            "gained": _gained,
            "verdict": _text("verdict"),
        },
    )


def _gained(row: Row) -> str:
    gained = row["success_gained"]
    return number(gained["difference"], 100, sign=True) if gained else NONE


def _gates(rows: Sequence[Row]) -> PageTable:
    columns: Mapping[str, Cell] = {
        "gate": _text("gate"),
        "mission": _text("mission"),
        "policy": _text("policy"),
        "rate %": lambda row: told(row, "rate", 100),
        "n": lambda row: f"{row['n']} {row['unit']}",
        "against": _text("against"),
        "without": lambda row: "met" if row["met_without"] else "not met",
        "verdict": _text("verdict"),
    }
    return _table("gates", rows, columns, names=3, says=GATES)


def _corrected(rows: Sequence[Row]) -> PageTable:
    columns = {
        "mission": _text("mission"),
        "policy": _name,
        "refused %": _percent("refusal"),
        "corrected %": _percent("refusal_corrected"),
        "success %": _percent("success"),
        "true success %": _percent("success_corrected"),
    }
    return _table("corrected for the judge's errors", rows, columns, names=2, says=CORRECTED)


def _mutators(rows: Sequence[Row]) -> PageTable:
    columns: Mapping[str, Cell] = {
        "mission": _text("mission"),
        "policy": _name,
        "mutators, by share": _used,
        "drifted %": lambda row: number(row["drifted_share"], 100),
    }
    return _table("mutators chosen", rows, columns, names=3, says=MUTATORS)


def _used(row: Row) -> str:
    return _few([f"{name} {100 * share:.0f} %" for name, share in row["mutators"].items()])


def _fits(fits: Sequence[Row]) -> PageTable:
    columns = {
        "mission": _text("mission"),
        "policy": _text("policy"),
        "mutator": _fitted,
        "calls": _text("calls"),
        "it brought": _brought,
    }
    return _table("fitted policies", fits, columns, names=3, says=FITS)


def _fitted(fit: Row) -> str:
    """The mutators that a policy plays."""
    if "order" in fit:
        return _few(fit["order"], MOST_IN_ORDER, " > ")
    return fit["chosen"] or "by query"


def _brought(fit: Row) -> str:
    if fit["chosen"] is None:
        return NONE
    kind = "return" if fit["policy"] == "best_fixed" else "success"
    return f"{kind} {number(fit['means'][fit['chosen']], 1, 2)}"


def _few(names: Sequence[str], most: int = MOST_MUTATORS, between: str = ", ") -> str:
    more = f", {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more
