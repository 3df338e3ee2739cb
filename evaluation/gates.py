"""Gates for CI: bounds that the rates of the policies of -p must keep, for certain.

`--fail-under success=0.8` asks that the lower end of the rate's 95 % interval be at least .8, `--fail-over
refusal=0.1` that the upper end be at most .1. It is the report's interval, but for one thing: here a query
counts as one trial at most. In the report it may count as more, once enough queries tell how alike the trials
of one are, and there the interval grows narrower by a jump: one refusal more must not make a gate met.

Episodes that are unscored or failed are in no rate; what they might have come to must not decide. So a gate
is looked at twice: with all of them taken for the best that they could have been, and for the worst. It is
met, or not met, where both say so, and else *not sure*.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal, get_args

from evaluation.report import Entry, Trials, entries, mission_name, refusals, successes, team_name
from records.errors import UserError

Measure = Literal["success", "refusal"]
Verdict = Literal["met", "not met", "not sure"]
_TRIALS: Mapping[Measure, Callable[[Entry], Trials]] = {"success": successes, "refusal": refusals}
_UNITS: Mapping[Measure, str] = {"success": "episodes", "refusal": "steps"}
_NEVER_MET = {"--fail-under": 1.0, "--fail-over": 0.0}
"""The bound that no interval keeps, by its flag."""


@dataclass(frozen=True, kw_only=True)
class RateBound:
    """A bound on a rate."""

    measure: Measure
    bound: float
    flag: Literal["--fail-under", "--fail-over"]

    def __str__(self) -> str:
        return f"{self.flag} {self.measure}={self.bound:g}"

    def is_met(self, rate: Mapping[str, Any]) -> bool:
        """Whether the end of the rate's interval that decides keeps the bound."""
        return bool(rate["low"] >= self.bound if self.flag == "--fail-under" else rate["high"] <= self.bound)


def read_gates(under: Sequence[str], over: Sequence[str]) -> list[RateBound]:
    """The gates that `--fail-under` and `--fail-over` name, in this order.

    Raises:
        UserError: one is no `success=SHARE` or `refusal=SHARE`.
    """
    return [_read(text, "--fail-under") for text in under] + [_read(text, "--fail-over") for text in over]


def _read(text: str, flag: Literal["--fail-under", "--fail-over"]) -> RateBound:
    name, equals, value = text.partition("=")
    measure: Measure | None = next((each for each in get_args(Measure) if each == name), None)
    if measure is None or not equals:
        raise UserError(f"{flag} is {text!r}; expected success=SHARE or refusal=SHARE")
    try:
        bound = float(value)
    except ValueError:
        bound = -1.0
    if not 0 <= bound <= 1:
        raise UserError(f"{flag} is {text!r}; expected a share from 0 to 1 behind '{name}='")
    if bound == _NEVER_MET[flag]:
        raise UserError(
            f"{flag} is {text!r}, which no evaluation can show: the interval of a rate ends at {bound:g} "
            "only where nothing is left to chance; expected a share that leaves room for it, such as "
            f"{name}={abs(bound - 0.05):g}"
        )
    return RateBound(measure=measure, bound=bound, flag=flag)


def gates_section(
    results: Mapping[str, Any],
    gates: Sequence[RateBound],
    held: Collection[int],
    max_steps: Sequence[int],
) -> list[dict[str, Any]]:
    """What became of each gate, by mission and policy, as plain data; the seeds of a training are one.

    Args:
        results: the evaluation, as results.json has it.
        gates: what is asked.
        held: the numbers of the teams that are held to it: those of -p.
        max_steps: the step limit of an episode, of each mission.
    """
    rows = [row for row in entries(results) if row.member is None and row.team in held]
    return [_row(results, row, gate, max_steps[row.mission]) for row in rows for gate in gates]


def gates_missed(rows: Sequence[Mapping[str, Any]], verdict: Verdict) -> str:
    """Which gates came to this verdict, in one line; "" where none did."""
    return "; ".join(f"{row['gate']} is {verdict}: {told(row)}" for row in rows if row["verdict"] == verdict)


def told(row: Mapping[str, Any]) -> str:
    """A row of `gates_section` in words."""
    share = "no rate" if row["rate"] is None else f"{100 * row['rate']:.1f} %"
    interval = f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
    lost = f", {row['lost']} episodes unscored or failed" if row["lost"] else ""
    return f"{row['policy']} on {row['mission']} has {share} {interval} of {row['n']} {row['unit']}{lost}"


def _row(results: Mapping[str, Any], row: Entry, gate: RateBound, max_steps: int) -> dict[str, Any]:
    trials = _TRIALS[gate.measure]
    most = max_steps if gate.measure == "refusal" else 1
    filled = (partial(_with_lost, trials, most=most, happened=each) for each in (0, 1))
    best_and_worst = {gate.is_met(row.rate(each, cautious=True)) for each in filled}
    verdict: Verdict = "not sure" if len(best_and_worst) > 1 else "met" if best_and_worst.pop() else "not met"
    return {
        "mission": mission_name(results, row.mission),
        "policy": team_name(results, row),
        "gate": str(gate),
        "unit": _UNITS[gate.measure],
        **row.rate(trials, cautious=True),
        "lost": sum(count for _, count in _lost(row)),
        "verdict": verdict,
    }


def _with_lost(trials: Callable[[Entry], Trials], entry: Entry, *, most: int, happened: int) -> Trials:
    """The trials of an entry, and those that its lost episodes might have had: each the most of any."""
    might = ((query, happened * most * count, most * count) for query, count in _lost(entry))
    return chain(trials(entry), might)


def _lost(entry: Entry) -> Iterator[tuple[str, int]]:
    """Of each episode how many agents' parts are in no rate: they are unscored, or it failed."""
    agents = max((len(episode["agents"]) for episode in entry.episodes), default=0) or 1
    for episode in entry.episodes:
        unscored = sum(agent["status"] == "unscored" for agent in episode["agents"])
        yield episode["query"], agents if episode["status"] == "failed" else unscored
