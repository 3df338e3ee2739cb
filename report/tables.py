"""The headline tables of a run, for each command but `eval`: see `report.evaluations`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from report.run_files import RunFiles
from report.training import Estimate, Span, paired

SHARED = "The training is too short to have two ends: they have steps in common. "
NONE = "\N{EN DASH}"
"""Where nothing is known."""
OF_LAST = ", last process"
"""Ends the name of what is counted of the process that ended the run, not of those before it."""


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table for people."""

    caption: str
    columns: Sequence[str]
    """The first ones hold names, the others numbers."""
    rows: Sequence[Sequence[str]]
    names: int = 1
    """How many columns hold names."""
    says: str = ""
    """What the numbers are."""


def training_tables(start: Span, end: Span, *, overlap: bool) -> list[PageTable]:
    """How a training began and ended, and whether the difference can be chance."""
    filtered = ("Ended by a content filter, % of scored steps", Span.filtered_rate, 100.0)
    measures = (
        ("Success, % of episodes", Span.success_rate, 100.0),
        ("Refusals, % of scored steps", Span.refusal_rate, 100.0),
        *([filtered] if start.filtered or end.filtered else []),
        ("Return of an episode", Span.mean_return, 1.0),
        ("Unscored, % of steps", Span.unscored_rate, 100.0),
    )
    rows = [
        [name, *(cell for span in (start, end) for cell in (estimate(of(span), times), str(of(span).n)))]
        for name, of, times in measures
    ]
    found = paired(start, end)
    compared = [
        "Success, last less first",
        f"{signed(found.difference * 100)} [{signed(found.low * 100)}, {signed(found.high * 100)}]",
        p_value(found.p_value),
        f"{found.wins} / {found.losses}",
        str(found.queries),
    ]
    return [
        PageTable(
            caption="First and last rollouts",
            columns=("measure", "first rollouts", "n", "last rollouts", "n"),
            rows=rows,
            says=f"{SHARED if overlap else ''}With 95 % intervals that allow for trials of one query being "
            "alike. The policy explores "
            "while it learns: what it came to is for mutagym eval to say, on held-out queries.",
        ),
        PageTable(
            caption="Paired by query",
            columns=("difference", "points", "p", "better / worse", "queries"),
            rows=[compared] if found.queries > 1 and not overlap else [],
            says="Over the queries that were met in both.",
        ),
    ]


def evolution_tables(results: Mapping[str, Any]) -> Iterator[PageTable]:
    """What an evolution found."""
    held_out = results["held_out"]
    yield PageTable(
        caption="Best prompt and seed",
        columns=("prompt", "fitness on the panel %", "held out %"),
        rows=[
            [name, number(results[f"{key}_fitness"], 100), number(held_out and held_out[key], 100)]
            for name, key in (("best prompt", "best"), ("seed prompt", "seed"))
        ],
        says=f"{results['generations']} generations, {results['genomes']} prompts; {results['ended']}. The "
        "fitness of the best is of the problems that it was chosen by: too high. Held-out ones are not.",
    )
    if held_out:
        yield _held_out([{"name": "best prompt", **held_out}])


def selection_tables(results: Mapping[str, Any]) -> Iterator[PageTable]:
    """The combinations of a selection."""
    yield PageTable(
        caption="Combinations",
        columns=("combination", "verdict", "score", "datapoints", "errors", "tokens"),
        names=2,
        rows=[
            [
                " · ".join(map(str, row["combination"].values())),
                row["verdict"],
                told(row, "score", 1, digits=3),
                str(row["datapoints"]),
                str(row["errors"]),
                number(row["prompt_tokens"] + row["completion_tokens"], 1),
            ]
            for row in results["combinations"]
        ],
        says=f"{results['claim']} {results['evaluations']} evaluations, {number(results['savings'], 100)} % "
        "fewer than all. Intervals hold at any time, so also where the search stopped.",
    )


def optimization_tables(results: Mapping[str, Any]) -> Iterator[PageTable]:
    """What an optimization found."""
    rows = results["held_out"] or []
    if rows:
        yield PageTable(
            caption="On held-out problems",
            columns=("prompt by", "score %", "problems"),
            rows=[[row["name"], number(row["score"], 100), str(row["queries"])] for row in rows],
        )
        yield _held_out([row for row in rows if "difference" in row])
    yield PageTable(
        caption="The population's prompts",
        columns=("prompt", "fitness", "edge", "tries"),
        rows=[
            [row["prompt"], number(row["fitness"], 1, 3), number(row["edge"], 1, 3), str(row["tries"])]
            for row in results["population"]
        ],
    )


def _held_out(rows: Sequence[Mapping[str, Any]]) -> PageTable:
    return PageTable(
        caption="Against the seed prompt, held out",
        columns=("prompt by", "points", "p", "better / worse", "problems"),
        rows=[
            [
                row["name"],
                told(row, "difference", 100, sign=True),
                p_value(row.get("p_holm", row["p_value"])),
                f"{row['wins']} / {row['losses']}",
                str(row["queries"]),
            ]
            for row in rows
        ],
        says="Problem by problem, with 95 % intervals.",
    )


def facts(run: RunFiles) -> list[tuple[str, str]]:
    """What the run was: models, sizes, cost."""
    config, summary = run.config, run.summary
    steps, models = summary.get("env_steps"), ", ".join(config.get("models") or [])
    found = {
        "command": run.command,
        "target": summary.get("target_model") or models or _of_missions(run, "target-model"),
        "mutator": summary.get("mutator_model") or _of_missions(run, "mutator-model"),
        "algorithm": summary.get("algorithm"),
        "schedule": summary.get("schedule"),
        "lanes": summary.get("num_processes"),
        "encoder": _of_missions(run, "encoder"),
        "reward": _of_missions(run, "reward"),
        "selector": config.get("selector"),
        "task": run.results.get("task") or run.results.get("dataset"),
        "seed": config.get("seed"),
        "env steps": steps,
        **_cost(run.command, summary),
        "stopped": summary.get("stopped"),
    }
    return [(name, _plain(value)) for name, value in found.items() if value is not None]


def _of_missions(run: RunFiles, name: str) -> str | None:
    """A setting of the run: of an evaluation that of its missions, which need not be what its flags say."""
    values = [mission.get(name) for mission in run.missions.values()]
    values = values or [run.config.get(name)]
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None)) or None


def _cost(command: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the run took; where it was resumed, all but trainings tell some of it of the last process."""
    is_training = command == "train"
    calls = "llm_calls" if is_training else "calls"
    whole = summary if is_training else summary.get("whole_run") or {}
    wall, steps = summary.get("wall_s"), summary.get("env_steps")
    names = {"model calls": calls, "retries": "retries", "completion tokens": "completion_tokens"}
    counts = {name: whole.get(key) for name, key in names.items()}
    last = {
        "wall": None if wall is None else f"{float(wall):.0f} s",
        "env steps / s": f"{steps / wall:.1f}" if steps and wall else None,
        "from the cache": summary.get("cache_hits"),
    }
    if not whole:  # of a version that counted by process alone
        counts, last = {}, last | {name: summary.get(key) for name, key in names.items()}
    is_all = bool(whole) and whole.get(calls) == summary.get(calls)
    return counts | {(name if is_all else f"{name}{OF_LAST}"): value for name, value in last.items()}


def _plain(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def estimate(found: Estimate, times: float) -> str:
    """`81.2 [74.1, 86.6]`."""
    told_as = {"value": found.value, "low": found.low, "high": found.high}
    return told(told_as, "value", times, digits=1 if times > 1 else 2)


def told(
    found: Mapping[str, Any], key: str, times: float, *, digits: int | None = None, sign: bool = False
) -> str:
    """A value with its interval, where it has one."""
    if found[key] is None:
        return NONE
    digits = (1 if times > 1 else 2) if digits is None else digits
    value, low, high = (number(found[name], times, digits, sign=sign) for name in (key, "low", "high"))
    return value if NONE in {low, high} else f"{value} [{low}, {high}]"


def number(value: float | None, times: float, digits: int = 1, *, sign: bool = False) -> str:
    """The number, with a true minus; a dash where there is none."""
    if value is None:
        return NONE
    return f"{value * times:{'+' if sign else ''}.{digits}f}".replace("-", "\N{MINUS SIGN}")


def signed(value: float) -> str:
    """`+3.1`."""
    return number(value, 1, sign=True)


def p_value(value: float | None) -> str:
    """`.034`, `<.001`."""
    if value is None:
        return NONE
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0")  # noqa: PLR2004 - what three digits show
