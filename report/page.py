"""The page: run folders in, one HTML file out that needs no network.

Nothing of a run becomes markup or script: the template escapes what it writes, the data stand in a
block that no browser runs, and the scripts put them on the page as text. A Content-Security-Policy
that names the scripts by their hashes forbids every other script, and every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from records.metrics import finite
from records.run_folder import TRANSITIONS, check_is_run, seed_folders
from records.terminal import printable
from report.curves import learning_curves
from report.run import Run, read_run
from report.table import NONE, Table
from report.training import REFUSED, RETURN, SUCCESS

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (
    *("vendor/d3.min.js", "vendor/plot.umd.min.js"),
    *("text.js", "charts.js", "steps.js", "page.js"),
)
MOST_STEPS = 20_000
"""Transitions that a page holds, unless another number is set: its runs share them."""
_TO_ESCAPE = re.compile("[<>&\u007f-\u009f\u2028\u2029\ud800-\udfff]")


def runs_in(folder: Path) -> list[Path]:
    """The runs of a folder: those of its seeds, where it is a training of several, else itself."""
    check_is_run(folder, "RUN")
    return seed_folders(folder) or [folder]


def make_page(paths: Sequence[Path], beside: Path, *, most_steps: int | None = None) -> str:
    """The page of these runs, as HTML, which will lie in the folder `beside`.

    The last `most_steps` transitions of each are on it; None is an equal part of `MOST_STEPS`.
    """
    paths = list(dict.fromkeys(path.resolve() for path in paths))
    names = names_of(paths)
    most = MOST_STEPS // len(paths) if most_steps is None else most_steps
    runs = [read_run(path, name, most) for path, name in zip(paths, names, strict=True)]
    together = learning_curves(runs)
    if len(runs) == 1:
        runs[0].charts = together + runs[0].charts
        together = []
    charts = together + [chart for run in runs for chart in run.charts]
    for number, chart in enumerate(charts):
        chart["number"] = number
    steps = [
        run.steps.data(quote(os.path.relpath(run.path / TRANSITIONS, beside)))
        if run.steps
        else None
        for run in runs
    ]
    scripts = [_asset(name).replace("</script", "<\\/script") for name in SCRIPTS]
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_visible,
    )
    return environment.get_template("page.html.jinja").render(
        title=names[0] if len(names) == 1 else f"{len(names)} runs",
        policy=_policy(scripts),
        style=Markup(_asset("page.css")),  # noqa: S704 - ours
        scripts=[Markup(script) for script in scripts],  # noqa: S704 - ours
        data=Markup(as_script_data({"charts": charts, "steps": steps})),  # noqa: S704 - escaped
        runs=runs,
        together=together,
        compared=_compared(runs),
    )


def names_of(paths: Sequence[Path]) -> list[str]:
    """What runs are called: by their folders, with those above for a seed's, or of equal names."""
    seeds = [path in seed_folders(path.parent) for path in paths]
    depth, names = 0, [""] * len(paths)
    while "" in names or len({*names}) < len(names):
        depth += 1
        parts = [path.parts[-depth - is_seed :] for path, is_seed in zip(paths, seeds, strict=True)]
        names = ["/".join(each) for each in parts]
    return names


def as_script_data(data: Mapping[str, Any]) -> str:
    r"""JSON that may stand in a script block: no `<`, nothing that UTF-8 has not, null for nan."""
    text = json.dumps(finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _TO_ESCAPE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _visible(value: object) -> object:
    """What a template writes: text of others without control characters."""
    return value if isinstance(value, Markup) else printable(str(value))


def _compared(runs: Sequence[Run]) -> Table:
    """The runs side by side."""
    facts, rows = ("env steps", "model calls", "wall"), []
    for run in runs:
        last = {row[0]: row[3] for row in run.tables[0].rows} if run.curve else {}
        known = [*(last.get(name, NONE) for name in (SUCCESS, REFUSED, RETURN))]
        known += [run.facts.get(name, NONE) for name in facts]
        rows.append([run.name, run.command, *known])
    return Table(
        caption="The runs",
        columns=("run", "command", "success %, last rollouts", "refusals %", "return", *facts),
        rows=rows,
        names=2,
        says="The name of a run leads to its details, below.",
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'"
    )
