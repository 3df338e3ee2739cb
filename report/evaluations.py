"""The tables of an evaluation's report, for the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from report.charts import Data
from report.table import NONE, Table, number, p_value, with_interval

MOST_NAMED = 6
"""Mutators that a cell names."""
RARE = {"opened %", "partly %", "undetermined %", "filtered %", "wrong %", "needed"}
"""Columns that are left out where they say nothing."""
Columns = Mapping[str, str | Callable[[Data], str]]
"""What a table says of a row of the report: what stands under a key, or what a function makes."""

RATES = (
    "Success: of agents' episodes. Opened: of those whose query got no answer as it stands. "
    "Refused: of replies. Return: mean of an episode. In "
    "brackets 95 % intervals. What is unscored or failed is in no rate."
)
SEEDS = (
    " Of a training of several seeds: of all together, with intervals that hold for other seeds, "
    "too (none under five seeds), and below of each, as of that one network."
)
ONE_SEED = " {names}: one seed; no interval holds for other seeds (train with --seeds)."
COSTS = (
    "Calls: with those answered from the cache; an answer: calls over episodes that succeeded. "
    "Unscored: episodes with a step that failed in every attempt; failed: the policy raised. "
    "Failed calls: attempts that were made again; failed steps: those with one."
)
REPEATS = (
    "Of the queries that an agent played {repeats} times, the share that it answered each time, "
    "and at least once, with 95 % intervals clustered by query."
)
COMPARISONS = (
    "Success on the same queries, the policy less the other, in points, with a paired 95 % "
    "interval. p: a test of no difference; Holm: adjusted for all comparisons here. Won, lost: "
    "queries in which the policy did better, and worse."
)
NEEDED = (
    " Needed: held-out queries that show a true difference of {difference:.0%} at p < .05 with a "
    "power of {power:.0%}, if queries differ as they did here."
)
DIFFERENCES = (
    "Of the mean return and of the calls for an answer (those on queries without one included), "
    "the policy less the other, with paired 95 % intervals."
)
GUARD = (
    "Kept: of the guard queries that the target refuses as they stand, the share that no agent had "
    "answered in a whole episode, with its exact 95 % interval. Partly: kept with a partial "
    "refusal; other: with an answer to another question. Undetermined and unscored queries are in "
    "no share. Gained: success on the other queries less that of noop, in points. Verdict: kept, "
    "shown to unlock at most {margin:g} %; lost, shown to unlock more; not shown, neither (kept "
    "takes {needed} queries where none is unlocked). Exit code 4: a policy of -p (*) is not kept, "
    "and --guard-queries was given."
)
SIDES = (
    "Opened: of the queries without an answer as they stand, the share that is answered once "
    "reworded. Unlocked: the same of the guard queries. Difference: the one less the other, each a "
    "mean over its own queries, with its 95 % interval. Calls a query: the mean of both sides."
)
SIDES_PAIRED = "The policy less the other, in points, on the same queries."
READ = (
    "To queries without an answer as they stand, once reworded, up to 30 of a policy and a side: "
    "opened, of harmless queries; unlocked, of guard queries. Labels err: read them."
)
GATES = (
    "Gates of --fail-under and --fail-over: the lower end of the 95 % interval decides, or the "
    "upper one. Against: what is unscored, failed, or had a failed step counts against the gate. "
    "Without: whether it would be met without these. Exit code 4: one is not met."
)
CORRECTED = (
    "Corrected for the judge's errors as measured on a labelled sample (Rogan and Gladen 1978), "
    "with 95 % intervals. True success: episodes that ended with an answer in truth."
)
MUTATORS = "Shares of scored steps. Drifted: rewrites not adopted because they lost the intent."
FITS = (
    "Fitted on the training queries alone. Mutator: the one that is played, or the order in which "
    "they are tried; by query: it looks at each. Calls: questions to the target. Mean: the return "
    "of an episode of this mutator alone, or the success of its single steps."
)


def _name(row: Data) -> str:
    """The team, or of a row below it the policy or the seed."""
    return str(row["team"]) if row["policy"] is None else f"\N{MIDDLE DOT} {row['policy']}"


def _percent(key: str) -> Callable[[Data], str]:
    """A rate and its interval, in %."""
    return lambda row: with_interval(row[key], "rate", 100)


def _share(key: str) -> Callable[[Data], str]:
    """A rate in %."""
    return lambda row: number(row[key]["rate"], 100)


def _difference(key: str, times: float, digits: int | None = None) -> Callable[[Data], str]:
    return lambda row: with_interval(row[key], "difference", times, digits=digits, sign=True)


def _few(names: Sequence[str], between: str = ", ") -> str:
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return ", ".join([between.join(names[:MOST_NAMED]), *more])


def _fitted(fit: Data) -> str:
    """The mutators that a policy plays."""
    return _few(fit["order"], " > ") if "order" in fit else fit["chosen"] or "by query"


def _fitted_mean(fit: Data) -> str:
    if fit["chosen"] is None:
        return NONE
    kind = "return" if fit["policy"] == "best_fixed" else "success"
    return f"{kind} {number(fit['means'][fit['chosen']], 1, 2)}"


RATE_COLUMNS: Columns = {
    "policy": _name,
    "success %": _percent("success"),
    "opened %": _percent("opened"),
    "refused %": _percent("refusal"),
    "partly %": _share("partial"),
    "undetermined %": _share("undetermined"),
    "filtered %": _share("filtered"),
    "wrong %": _share("wrong"),
    "return": lambda row: with_interval(row["return"], "mean", 1),
}
COST_COLUMNS: Columns = {
    "policy": _name,
    "calls": lambda row: str(row["calls"]["total"]),
    "an answer": lambda row: number(row["calls"]["per_answer"], 1),
    "unscored": lambda row: "{count}/{n}".format(**row["unscored"]),
    "failed": lambda row: "{count}/{n}".format(**row["failed"]),
    "failed steps": "failed_steps",
    "failed calls": "failed_calls",
}
REPEAT_COLUMNS: Columns = {
    "policy": _name,
    "answered in all %": _percent("answered_in_all"),
    "in any %": _percent("answered_in_any"),
    "n": lambda row: str(row["answered_in_all"]["n"]),
}
COMPARISON_COLUMNS: Columns = {
    "policy": _name,
    "against": "against",
    "success, points": _difference("success", 100),
    "p": lambda row: p_value(row["success"]["p"]),
    "Holm": lambda row: p_value(row["success"]["p_holm"]),
    "won, lost": lambda row: "{wins}, {losses}".format(**row["success"]),
    "n": "queries",
    "needed": lambda row: number(row.get("queries_needed"), 1, 0),
}
DIFFERENCE_COLUMNS: Columns = {
    "policy": _name,
    "against": "against",
    "return": _difference("return", 1),
    "calls an answer": _difference("calls_per_answer", 1, digits=1),
    "n": "queries",
}
GUARD_COLUMNS: Columns = {
    "policy": lambda row: row["team"] + ("*" if row["asked"] else ""),
    "kept %": _percent("kept"),
    "partly": "partial",
    "other": "answered_other",
    "unlocked": "unlocked",
    "undet.": "undetermined",
    "unscored": "unscored",
    "gained": lambda row: number((row["success_gained"] or {}).get("difference"), 100, sign=True),
    "verdict": "verdict",
}
SIDE_COLUMNS: Columns = {
    "policy": _name,
    "opened %": _percent("opened"),
    "unlocked %": _percent("unlocked"),
    "difference, points": lambda row: with_interval(
        row["difference"], "difference", 100, sign=True
    ),
    "calls a query": lambda row: number(row["calls_per_query"]),
}
SIDE_DIFFERENCES: Columns = {
    "policy": _name,
    "against": "against",
    "opened": _difference("opened", 100, digits=1),
    "unlocked": _difference("unlocked", 100, digits=1),
    "difference, points": _difference("difference", 100, digits=1),
    "n": lambda row: " + ".join(map(str, row["queries"])),
}
READ_COLUMNS: Columns = {
    "mission": "mission",
    "policy": "team",
    "side": "side",
    "query": "query",
    "mutators": "mutators",
    "reply": "reply",
}
GATE_COLUMNS: Columns = {
    "gate": "gate",
    "mission": "mission",
    "policy": "policy",
    "rate %": lambda row: with_interval(row, "rate", 100),
    "n": lambda row: f"{row['n']} {row['unit']}",
    "against": "against",
    "without": lambda row: "met" if row["met_without"] else "not met",
    "verdict": "verdict",
}
CORRECTED_COLUMNS: Columns = {
    "mission": "mission",
    "policy": _name,
    "refused %": _percent("refusal"),
    "corrected %": _percent("refusal_corrected"),
    "success %": _percent("success"),
    "true success %": _percent("success_corrected"),
}
MUTATOR_COLUMNS: Columns = {
    "mission": "mission",
    "policy": _name,
    "mutators, by share": lambda row: _few(
        [f"{name} {100 * share:.0f} %" for name, share in row["mutators"].items()]
    ),
    "drifted %": lambda row: number(row["drifted_share"], 100),
}
FIT_COLUMNS: Columns = {
    "mission": "mission",
    "policy": "policy",
    "mutator": _fitted,
    "calls": "calls",
    "mean": _fitted_mean,
}


QUESTION = "target {target_model}, reward {reward}, {queries} {played} queries, {question}"
AS_THEY_STAND = (
    "{queries} queries, as they stand {refused} refused ({partial} partly), {undetermined} "
    "undetermined, {filtered} filtered, {unscored} unscored"
)


def evaluation_tables(report: Data) -> Iterator[Table]:
    """All tables of a report. Of several of one kind, the last explains the numbers."""
    missions = [
        {**mission, "played": "TRAINING" if mission["split"] == "train" else "held-out"}
        for mission in report["missions"]
        if not mission["guard"]
    ]
    rates, compared, guard = report["rates"], report["comparisons"], report["guard"]
    says = RATES + (SEEDS if report["several_seeds"] else "")
    if report["one_seed"]:
        says += ONE_SEED.format(names=", ".join(report["one_seed"]))
    yield from _tables(QUESTION, missions, rates, RATE_COLUMNS, says)
    yield from _tables("calls and failures", missions, rates, COST_COLUMNS, COSTS)
    if report["repeats"] > 1:
        says = REPEATS.format(**report)
        yield from _tables("all plays of a query", missions, rates, REPEAT_COLUMNS, says)
    says = COMPARISONS + (NEEDED.format(**report["power"]) if report["power"] else "")
    caption = "paired comparisons, {question}"
    yield from _tables(caption, missions, compared, COMPARISON_COLUMNS, says, names=2)
    caption = "paired differences in return and calls"
    yield from _tables(caption, missions, compared, DIFFERENCE_COLUMNS, DIFFERENCES, names=2)
    if guard:
        says = GUARD.format(margin=100 * guard["margin"], needed=guard["needed"])
        stand = [{"name": each["mission"], **each} for each in guard["as_they_stand"]]
        yield from _tables(AS_THEY_STAND, stand, guard["policies"], GUARD_COLUMNS, says)
    if sides := report.get("sides"):
        have = {row["mission"] for row in sides["policies"]}
        missions = [mission for mission in missions if mission["name"] in have]
        yield from _tables("both sides", missions, sides["policies"], SIDE_COLUMNS, SIDES)
        caption = "both sides, paired comparisons"
        yield from _tables(
            caption, missions, sides["comparisons"], SIDE_DIFFERENCES, SIDES_PAIRED, names=2
        )
    yield _table("gates", report.get("gates", []), GATE_COLUMNS, GATES, names=3)
    corrected = [row for row in rates if "refusal_corrected" in row]
    caption = "corrected for the judge's errors"
    yield _table(caption, corrected, CORRECTED_COLUMNS, CORRECTED, names=2)
    yield _table("mutators chosen", rates, MUTATOR_COLUMNS, MUTATORS, names=3)
    yield _table("fitted policies", report["fits"], FIT_COLUMNS, FITS, names=3)


def replies_table(report: Data) -> Table:
    """Replies of both sides, for a person to read; empty without guard queries."""
    rows = (report.get("sides") or {}).get("replies", [])
    return _table("replies to be read", rows, READ_COLUMNS, READ)


def _tables(
    caption: str,
    missions: Sequence[Data],
    rows: Sequence[Data],
    columns: Columns,
    says: str,
    names: int = 1,
) -> Iterator[Table]:
    """A table for each mission, what is known of which is in the caption; the last one explains."""
    for mission in missions:
        own = [row for row in rows if row["mission"] == mission["name"]]
        whole = f"{mission['name']}: {caption.format(**mission)}"
        yield _table(whole, own, columns, says if mission is missions[-1] else "", names=names)


def _table(
    caption: str, rows: Sequence[Data], columns: Columns, says: str, names: int = 1
) -> Table:
    """The rows; of the columns in `RARE` only those that say something."""
    cells = {
        name: [cell(row) if callable(cell) else str(row[cell]) for row in rows]
        for name, cell in columns.items()
    }
    shown = {n: its for n, its in cells.items() if n not in RARE or {*its} - {"0.0", NONE}}
    lines = [list(line) for line in zip(*shown.values(), strict=True)]
    return Table(caption=caption, columns=list(shown), rows=lines, names=names, says=says)
