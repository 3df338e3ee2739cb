"""The page: run folders in, one HTML file out that needs no network.

Nothing of a run becomes markup or script: the template escapes what it writes, the data stand in a block
that no browser runs, and the scripts put them on the page as text. A Content-Security-Policy that names the
scripts by their hashes forbids every other script, and every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from records.run_folder import seed_folders
from records.terminal import printable
from report.charts import LEARNING_CURVES, overlaid
from report.run_files import read_run
from report.run_page import SUMMARY, page_of

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (
    *("vendor/d3.min.js", "vendor/plot.umd.min.js"),
    *("text.js", "charts.js", "steps.js", "page.js"),
)
MOST_TRANSITIONS = 20_000
"""Transitions that a page holds, unless another number is set: its runs share them."""
_TO_ESCAPE = re.compile("[<>&\u007f-\u009f\u2028\u2029\ud800-\udfff]")


def make_page(runs: Sequence[Path], *, most_transitions: int | None = None) -> str:
    """The page of these runs, as HTML.

    Args:
        runs: their folders, see `runs_in`.
        most_transitions: as many transitions of each are on the page: the last ones; None: an equal part of
            `MOST_TRANSITIONS`.

    Raises:
        UserError: one of them is no run folder.
    """
    names = names_of(runs)
    most = MOST_TRANSITIONS // len(runs) if most_transitions is None else most_transitions
    pages = [page_of(read_run(path, name), most) for path, name in zip(runs, names, strict=True)]
    curves = [chart for page in pages for chart in page.charts if chart["title"] == LEARNING_CURVES]
    together = [overlaid(curves)] if len(curves) > 1 else []
    data = {"together": together, "runs": [page.data for page in pages]}
    scripts = [_asset(name).replace("</script", "<\\/script") for name in SCRIPTS]
    environment = Environment(
        loader=FileSystemLoader(ASSETS), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["shown"] = lambda text: printable(str(text))
    return environment.get_template("page.html.jinja").render(
        title=names[0] if len(names) == 1 else f"{len(names)} runs",
        policy=_policy(scripts),
        style=Markup(_asset("page.css")),  # noqa: S704 - ours
        scripts=[Markup(script) for script in scripts],  # noqa: S704 - ours
        data=Markup(as_script_data(data)),  # noqa: S704 - escaped there
        runs=pages,
        together=together,
        summary=SUMMARY,
    )


def names_of(runs: Sequence[Path]) -> list[str]:
    """What the runs are called: by their folders, with those above for a seed's, or where names are equal."""
    paths = [path.resolve() for path in runs]
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth - (path in seed_folders(path.parent)) :]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{place} {path.name}" for place, path in enumerate(paths, start=1)]


def as_script_data(data: object) -> str:
    r"""JSON that may stand in a script block: without `<`, without what UTF-8 has not, null for nan."""
    text = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _TO_ESCAPE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _finite(data: object) -> object:
    """The same, with None in place of what is not a finite number."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, list | tuple):
        return [_finite(each) for each in data]
    return {key: _finite(each) for key, each in data.items()} if isinstance(data, dict) else data


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    rest = (
        "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    return f"default-src 'none'; script-src {allowed}; {rest}"
