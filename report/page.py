"""The page: run folders in, one HTML file out that needs no network.

Nothing of a run becomes markup or script: the template escapes what it writes, the data stand in a block that no
browser runs, and the scripts put them on the page as text. A Content-Security-Policy that names the scripts by
their hashes forbids anything else, and every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from records.terminal import shown
from report import charts, tables
from report.categories import categories_of
from report.run_files import RunFiles, read_run
from report.slots import read_slots
from report.steps import as_columns
from report.tables import Table
from report.training import count_cells, count_training

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (
    *("vendor/d3.min.js", "vendor/plot.umd.min.js"),
    *("text.js", "charts.js", "steps.js", "page.js"),
)
MOST_TRANSITIONS = 20_000
"""Transitions that a page holds, unless another number is set."""
_TO_ESCAPE = re.compile("[<>&\u007f-\u009f\u2028\u2029\ud800-\udfff]")


@dataclass(kw_only=True)
class RunPage:
    """What the page says of one run."""

    name: str
    command: str
    simulated: bool
    facts: list[tuple[str, str]]
    headline: list[Table] = field(default_factory=list)
    charts: list[charts.Chart] = field(default_factory=list)
    steps: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def data(self) -> dict[str, Any]:
        """What the scripts show."""
        return {"name": self.name, "charts": self.charts, "steps": self.steps}


def make_page(runs: Sequence[Path], *, most_transitions: int = MOST_TRANSITIONS) -> str:
    """The page of these runs, as HTML.

    Args:
        runs: their folders, see `runs_in`.
        most_transitions: as many transitions of each are on the page: the last ones.

    Raises:
        UserError: one of them is no run folder.
    """
    names = names_of(runs)
    pages = [
        _page_of(read_run(path, name), most_transitions) for path, name in zip(runs, names, strict=True)
    ]
    curves = [page.charts[0] for page in pages if page.charts and page.charts[0]["title"] == "Learning curves"]
    together = [charts.overlaid(curves)] if len(curves) > 1 and len(pages) > 1 else []
    data = {"together": together, "runs": [page.data for page in pages]}
    scripts = [Markup((ASSETS / name).read_text(encoding="utf-8").replace("</script", "<\\/script")) for name in SCRIPTS]  # noqa: S704 - ours
    environment = Environment(
        loader=FileSystemLoader(ASSETS), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["shown"] = lambda text: shown(str(text))
    return environment.get_template("page.html.jinja").render(
        title=names[0] if len(names) == 1 else f"{len(names)} runs",
        policy=_policy(scripts),
        style=Markup((ASSETS / "page.css").read_text(encoding="utf-8")),  # noqa: S704 - ours
        scripts=scripts,
        data=Markup(as_script_data(data)),  # noqa: S704 - escaped there
        runs=pages,
        together=together,
        summaries=[_summary(page) for page in pages],
    )


def names_of(runs: Sequence[Path]) -> list[str]:
    """What the runs are called: by their folders, with those above where names are equal."""
    parts = [path.resolve().parts for path in runs]
    depth = 1
    while len({each[-depth:] for each in parts}) < len(parts) and depth < max(map(len, parts)):
        depth += 1
    return ["/".join(each[-depth:]) for each in parts]


def as_script_data(data: object) -> str:
    r"""JSON that may stand in a script block: without `<`, and without what UTF-8 has not."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _TO_ESCAPE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _policy(scripts: Sequence[str]) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )


def _summary(page: RunPage) -> list[str]:
    """The row of a run among others."""
    facts = dict(page.facts)
    table = next(iter(page.headline), None)
    is_training = page.command == "train" and table is not None
    rates = [row[3] for row in table.rows[:3]] if is_training and table else [tables.NONE] * 3
    return [page.command, *rates, *(facts.get(name, tables.NONE) for name in ("env steps", "model calls", "wall"))]


def _page_of(run: RunFiles, most: int) -> RunPage:
    page = RunPage(
        name=run.name,
        command=run.command,
        simulated=run.simulated,
        facts=run.attempt("Facts", lambda: tables.facts(run), []),
        notes=run.notes,
    )
    categories: dict[str, str] = {}
    if run.command in {"train", "eval"}:
        categories, note = run.attempt("Categories", lambda: categories_of(run.path, run.config), ({}, ""))
        run.notes += [note] if note else []
    match run.command:
        case "train":
            run.attempt("Learning curves", lambda: _add_training(page, run, categories), None)
        case "eval":
            run.attempt("Rates and comparisons", lambda: _add_evaluation(page, run), None)
        case "evolve":
            _add_search(page, run, tables.evolution_tables, lambda: charts.evolution_charts(run.metrics, run.results))
            if run.results and "births" not in run.results:
                run.notes.append("Lineage: left out, the version that made the run did not write it down.")
        case "select":
            _add_search(page, run, tables.selection_tables, lambda: charts.selection_charts(run.metrics, run.results))
            if any("trail" not in row for row in run.results.get("combinations", [])):
                run.notes.append("How intervals narrowed: left out, the version that made the run did not write it down.")
        case _:
            _add_search(page, run, tables.optimization_tables, lambda: charts.optimization_charts(run.metrics))
    slots = run.attempt("The servers' slots", lambda: read_slots(run.path), None)
    page.charts += [charts.slots_chart(slots)] if slots else []
    if run.command == "train" or run.config.get("save-transitions"):
        run.attempt("Transitions", lambda: _add_steps(page, run, categories, most), None)
    elif run.command == "eval":
        run.notes.append("Transitions: left out, an evaluation keeps them with --save-transitions alone.")
    return page


def _add_training(page: RunPage, run: RunFiles, categories: dict[str, str]) -> None:
    max_steps = int(run.config["max-steps"])
    training = count_training(run.transitions(), categories, max_steps)
    rollout = _rows_of_a_rollout(run)
    page.headline += tables.training_tables(*training.ends(rollout, max_steps))
    windows = training.windows(rollout)
    page.charts += [charts.learning_curves(run.name, windows), *charts.training_charts(training, windows)]


def _rows_of_a_rollout(run: RunFiles) -> int:
    by_bandit = run.config.get("algorithm", "ppo") != "ppo"
    return max(1, int(run.config["bandit-steps" if by_bandit else "num-steps"]))


def _add_evaluation(page: RunPage, run: RunFiles) -> None:
    if not run.report:
        return  # a note says so
    page.headline += tables.evaluation_tables(run.report)
    page.charts += charts.evaluation_charts(run.report)
    run.notes += [str(line) for line in run.report["problems"]]


def _add_search(
    page: RunPage,
    run: RunFiles,
    tables_of: Callable[[Mapping[str, Any]], Iterable[Table]],
    charts_of: Callable[[], Iterable[charts.Chart]],
) -> None:
    if run.results:
        page.headline += run.attempt("Results", lambda: list(tables_of(run.results)), [])
    if run.metrics or run.results:
        page.charts += run.attempt("Charts", lambda: list(charts_of()), [])


def _add_steps(page: RunPage, run: RunFiles, categories: Mapping[str, str], most: int) -> None:
    teams = [str(team["name"]) for team in run.results.get("teams", [])]
    page.steps = as_columns(run.transitions(), categories, teams, most)
    if page.steps["total"] > most:
        run.notes.append(
            f"Transitions: the last {most:,} of {page.steps['total']:,} are on this page; --transitions takes more."
        )
    if run.command == "eval":
        counted = count_cells(run.transitions(), categories)
        page.charts.append(charts.heat_map(counted))
