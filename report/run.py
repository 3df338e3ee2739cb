"""A run folder and what the page says of it: what is missing or damaged is left out, and noted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs.mission import return_bounds
from envs.transitions import check_transition
from records.errors import UserError, describe
from records.json_lines import read_json_object, read_lines
from records.run_folder import (
    COMMAND_KEYS,
    CONFIG,
    METRICS,
    MISSIONS,
    QUERIES,
    SCREEN,
    SERVERS,
    SUMMARY,
    TRANSITIONS,
)
from records.settings import read_toml
from report import charts, searches
from report.charts import Chart, Row
from report.evaluations import evaluation_tables, replies_table
from report.slots import slots_chart
from report.steps import Transitions
from report.table import Table
from report.training import Training

Json = dict[str, Any]
MOST_BYTES = 2**28
"""Bytes of a file of one JSON object, of which some grow with the run: 256 MiB."""
DAMAGED = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
"""What is raised where a file is not what a run writes."""
MAKERS = {
    "evolve": (searches.evolution_tables, charts.evolution_charts),
    "select": (searches.selection_tables, charts.selection_charts),
    "optimize": (searches.optimization_tables, charts.optimization_charts),
}
"""What makes the tables of a search and its charts."""


@dataclass(kw_only=True)
class Run:
    """A run folder; see `read_run`."""

    path: Path
    name: str
    command: str
    config: Json
    summary: Json = field(default_factory=dict)
    report: Json = field(default_factory=dict)
    simulated: bool = False
    """Whether its figures are of the simulator."""
    facts: dict[str, str] = field(default_factory=dict)
    """What it was: models, sizes, cost."""
    curve: list[Row] = field(default_factory=list)
    """The rows of a training's learning curves."""
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    """The first one is shown before all else."""
    steps: Transitions | None = None
    notes: list[str] = field(default_factory=list)
    """What is left out, and why: a line each."""

    @contextmanager
    def or_note(self, what: str) -> Iterator[None]:
        """Within `with`: a file that is missing or damaged ends the block, and is noted."""
        try:
            yield
        except FileNotFoundError as error:
            self.notes.append(f"{what}: left out, there is no {Path(str(error.filename)).name}.")
        except DAMAGED as error:
            self.notes.append(f"{what}: left out, a file is damaged ({describe(error):.200}).")

    def read_json(self, name: str) -> Json:
        """The object in one of its files; empty where there is none, which is noted."""
        found: Json = {}
        with self.or_note(name.partition(".")[0].capitalize()):
            found |= read_json_object(self.path / name, MOST_BYTES)
        return found


def read_run(path: Path, name: str, most_steps: int) -> Run:
    """Read a run folder, which the page calls `name`, with its last `most_steps` transitions.

    Raises:
        UserError: config.toml cannot be read, or is of no command that writes run folders.
    """
    config = read_toml(path / CONFIG)
    command = next((command for command, key in COMMAND_KEYS.items() if key in config), None)
    if command is None:
        raise UserError(
            f"{str(path / CONFIG)!r} is of no command that writes run folders; expected one of "
            f"{', '.join(COMMAND_KEYS)}"
        )
    run = Run(path=path, name=name, command=command, config=config)
    run.summary = run.read_json(SUMMARY)
    is_embedded = config.get("ollama-host") == ["embedded"]
    run.simulated = run.read_json(SERVERS).get("simulated", is_embedded) is True
    missions = run.read_json(MISSIONS) if command == "eval" else {}
    results = run.read_json("results.json") if command != "train" else {}
    if command != "train":
        run.report = run.read_json("report.json")
    with run.or_note("Facts"):
        run.facts = _facts(run, missions, results)
    make_tables, make_charts = MAKERS.get(command, (evaluation_tables, None))
    if run.report:
        with run.or_note("Tables"):
            run.tables += make_tables(run.report)
            run.tables += [replies_table(run.report)] if command == "eval" else []
            run.notes += map(str, run.report.get("problems", []))
    with run.or_note("Charts"):
        if make_charts:
            run.charts += make_charts(list(read_lines(path / METRICS)), results)
        elif run.report:
            run.charts += charts.evaluation_charts(run.report)
    if command == "train" or config.get("save-transitions"):
        with run.or_note("Transitions"):
            names = [str(each["name"]) for each in results.get("missions", [])] or list(missions)
            teams = [str(team["name"]) for team in results.get("teams", [])]
            _add_steps(run, Transitions(names, teams, most_steps))
    elif command == "eval":
        run.notes.append("Transitions: left out, --save-transitions keeps them.")
    with run.or_note("The servers' slots"):
        if slots := slots_chart(path):
            run.charts.insert(0 if command == "train" else len(run.charts), slots)
        else:
            run.notes.append("The servers' slots: left out, no reply says how long it took.")
    run.charts = [chart for chart in run.charts if chart["rows"]]
    return run


def _training(run: Run) -> Training:
    """A training before its first rollout."""
    config = run.config
    max_steps = int(config["max-steps"])
    training = Training(
        rollout=int(config["num-steps" if config["algorithm"] == "ppo" else "bandit-steps"]),
        max_steps=max_steps,
        returns=return_bounds(
            config["reward"],
            float(config["step-cost"]),
            max_steps,
            float(config["guard-weight"]) if run.read_json(QUERIES).get("guards") else 0.0,
        ),
    )
    if (run.path / SCREEN).is_file():
        for line in read_lines(run.path / SCREEN, check_transition):
            training.add_look(line)
    return training


def _add_steps(run: Run, steps: Transitions) -> None:
    """Read transitions.jsonl once: for the learning curves, the heat map and the browser."""
    categories = run.read_json(QUERIES).get("categories", {})
    training = _training(run) if run.command == "train" else None
    successes: dict[tuple[str, str], list[int]] = {}
    for t in read_lines(run.path / TRANSITIONS, check_transition):
        category = str(categories.get(t["original_query"], ""))
        if training:
            training.add(t)
        is_reply = t["outcome"] not in {"stopped", "unscored"} and t["mutator"]
        if is_reply and not t.get("guard"):  # an answer to a guard query is no success
            counts = successes.setdefault((t["mutator"], category), [0, 0])
            counts[0] += t["success"]
            counts[1] += 1
        steps.add(t, category)
    if not steps.count:
        run.notes.append("Transitions: left out, no step was taken yet.")
        return
    run.steps = steps
    run.charts.append(charts.heat_map(successes))
    if training:
        with run.or_note("Learning curve"):
            run.tables += training.tables()
            run.charts += training.charts()
            run.curve = training.curve(run.name)
    shown, total, written = len(steps), steps.count, run.summary.get("env_steps") or 0
    if shown < total:
        run.notes.append(f"Transitions: the last {shown:,} of {total:,}; --transitions takes more.")
    if total < written:
        run.notes.append(f"Transitions: {written - total:,} of {written:,} are not in its file.")


def _facts(run: Run, missions: Mapping[str, Json], results: Json) -> dict[str, str]:
    """What the run was: models, sizes, cost."""
    config, summary = run.config, run.summary

    def setting(name: str) -> str | None:
        """Of an evaluation that of its missions, which need not be what its flags say."""
        values = [each.get(name) for each in missions.values() or [config]]
        return ", ".join(dict.fromkeys(str(value) for value in values if value is not None)) or None

    steps, wall_s = summary.get("env_steps"), summary.get("wall_s")
    calls = "llm_calls" if run.command == "train" else "calls"
    whole = summary.get("whole_run", summary)
    # The rest is of the process that ended the run, which may have resumed it.
    last = " (last process)" if whole.get(calls) != summary.get(calls) else ""
    wall, cached = None if wall_s is None else f"{wall_s:.0f} s", summary.get("cache_hits")
    found = {
        "command": run.command,
        "target": summary.get("target_model")
        or ", ".join(config.get("models", []))
        or setting("target-model"),
        "mutator": summary.get("mutator_model") or setting("mutator-model"),
        "algorithm": summary.get("algorithm"),
        "saved policy": summary.get("saved"),
        "schedule": summary.get("schedule"),
        "lanes": summary.get("num_processes"),
        "encoder": setting("encoder"),
        "reward": setting("reward"),
        "selector": config.get("selector"),
        "task": results.get("task") or results.get("dataset"),
        "seed": config.get("seed"),
        "env steps": steps,
        "model calls": whole.get(calls),
        "retries": whole.get("retries"),
        "completion tokens": whole.get("completion_tokens"),
        "wall": wall and wall + last,
        "env steps / s": f"{steps / wall_s:.1f}" if steps and wall_s else None,
        "from the cache": None if cached is None else _plain(cached) + last,
        "stopped": summary.get("stopped"),
    }
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _plain(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
