"""What the page says of one run: facts, tables, charts, transitions, and what is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envs.mission import return_bounds
from report import charts, tables
from report.categories import categories_of
from report.evaluations import evaluation_tables
from report.run_files import RunFiles
from report.slots import read_slots
from report.steps import as_columns
from report.tables import PageTable
from report.training import count_cells, count_training


@dataclass(kw_only=True)
class RunPage:
    """What the page says of one run."""

    name: str
    command: str
    simulated: bool | None
    """Whether the figures are of the simulator; None where it is not known."""
    facts: list[tuple[str, str]]
    headline: list[PageTable] = field(default_factory=list)
    charts: list[charts.Chart] = field(default_factory=list)
    steps: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def data(self) -> dict[str, Any]:
        """What the scripts show."""
        return {"name": self.name, "charts": self.charts, "steps": self.steps}

    @property
    def summary(self) -> list[str]:
        """The cells of the run's row among others: see `SUMMARY`."""
        facts = dict(self.facts)
        is_counted = self.command == "train" and bool(self.headline)
        rates = [row[3] for row in self.headline[0].rows[:3]] if is_counted else [tables.NONE] * 3
        return [self.command, *rates, *(facts.get(name, tables.NONE) for name in SUMMARY[4:])]


SUMMARY = (
    *("command", "success %, last rollouts", "refusals %", "return"),
    *("env steps", "model calls", "wall"),
)
"""The columns of the table of several runs, behind the name."""

NOT_KEPT_BEFORE = {"evolve": charts.LINEAGE, "select": charts.NARROWING}
"""A chart of a command that runs of earlier versions lack."""


def page_of(run: RunFiles, most: int) -> RunPage:
    """What the page says of a run.

    Args:
        run: its files.
        most: so many of its transitions at most, the last ones.
    """
    page = RunPage(
        name=run.name,
        command=run.command,
        simulated=run.simulated,
        facts=run.attempt("Facts", lambda: tables.facts(run), []),
        notes=run.notes,
    )
    {"train": _training, "eval": _evaluation}.get(run.command, _search)(page, run, most)
    return page


def _training(page: RunPage, run: RunFiles, most: int) -> None:
    categories = _categories(run)
    run.attempt("Learning curves", lambda: _add_training(page, run, categories), None)
    _add_slots(page, run)
    run.attempt("Transitions", lambda: _add_steps(page, run, categories, most), None)


def _evaluation(page: RunPage, run: RunFiles, most: int) -> None:
    if run.report:
        page.headline += run.attempt("Tables", lambda: list(evaluation_tables(run.report)), [])
        page.charts += run.attempt("Charts", lambda: list(charts.evaluation_charts(run.report)), [])
        run.notes += run.attempt("Problems", lambda: list(map(str, run.report.get("problems", []))), [])
    if run.config.get("save-transitions"):
        categories = _categories(run)
        run.attempt("Heat map", lambda: _add_cells(page, run, categories), None)
        run.attempt("Transitions", lambda: _add_steps(page, run, categories, most), None)
    else:
        run.notes.append("Transitions: left out, an evaluation keeps them with --save-transitions alone.")
    _add_slots(page, run)


def _search(page: RunPage, run: RunFiles, _most: int) -> None:
    results, metrics = run.results, run.metrics
    parts: Mapping[str, tuple[Callable[[], Iterable[PageTable]], Callable[[], Iterable[charts.Chart]]]] = {
        "evolve": (
            lambda: tables.evolution_tables(results),
            lambda: charts.evolution_charts(metrics, results),
        ),
        "select": (
            lambda: tables.selection_tables(results),
            lambda: charts.selection_charts(metrics, results),
        ),
        "optimize": (
            lambda: tables.optimization_tables(results),
            lambda: charts.optimization_charts(metrics),
        ),
    }
    make_tables, make_charts = parts[run.command]
    if results:
        page.headline += run.attempt("Tables", lambda: list(make_tables()), [])
    if results or metrics:
        page.charts += run.attempt("Charts", lambda: list(make_charts()), [])
    for command, title in NOT_KEPT_BEFORE.items():
        if run.command == command and results and all(chart["title"] != title for chart in page.charts):
            run.notes.append(f"{title}: left out, the version that made the run did not write it down.")
    _add_slots(page, run)


def _categories(run: RunFiles) -> dict[str, str]:
    """The category of each query of the run that has one."""
    return run.attempt("Categories", lambda: categories_of(run.path), {})


def _add_training(page: RunPage, run: RunFiles, categories: Mapping[str, str]) -> None:
    config = run.config
    max_steps = int(config["max-steps"])
    by_bandit = {"ppo": 0, "auto": config.get("bandit-env-steps", 0)}.get(config.get("algorithm", "ppo"), 1)
    rollout = max(1, int(config["bandit-steps" if by_bandit else "num-steps"]))
    returns = return_bounds(config["reward"], float(config["step-cost"]), max_steps)
    training = count_training(run.transitions(), categories, max_steps, returns)
    if not training.rows:
        run.notes.append("Learning curves: left out, no step was taken yet.")
        return
    windows = training.windows(rollout)
    overlap = training.overlap(rollout, max_steps)
    page.headline += tables.training_tables(*training.ends(rollout, max_steps), overlap=overlap)
    page.charts += [charts.learning_curves(run.name, windows), *charts.training_charts(training, windows)]


def _add_cells(page: RunPage, run: RunFiles, categories: Mapping[str, str]) -> None:
    page.charts.append(charts.heat_map(count_cells(run.transitions(), categories)))


def _add_slots(page: RunPage, run: RunFiles) -> None:
    def add() -> None:
        if slots := read_slots(run.path):
            page.charts.append(charts.slots_chart(slots))
        else:
            run.note("The servers' slots: left out, no reply says how long its server worked on it.")

    run.attempt("The servers' slots", add, None)


def _add_steps(page: RunPage, run: RunFiles, categories: Mapping[str, str], most: int) -> None:
    teams = [str(team["name"]) for team in run.results.get("teams", [])]
    steps = as_columns(run.transitions(), categories, list(run.missions), teams, most)
    total, told = steps["total"], run.summary.get("env_steps")
    if total > most:
        run.note(f"Transitions: the last {most:,} of {total:,} are here; --transitions takes more.")
    if isinstance(told, int) and total < told:
        run.note(f"Transitions: {told - total:,} of the run's {told:,} are not in its transitions.jsonl.")
    page.steps = steps if min(most, total) else None
